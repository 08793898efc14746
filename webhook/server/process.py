"""The webhook's process: one event loop with the TLS listener for reviews and a plain one for health and metrics."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import signal
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import uvloop
from prometheus_client import disable_created_metrics

from webhook.config.node_shapes import NodeShapes
from webhook.config.reload import File, Watched, watch
from webhook.metrics import Metrics, ReloadMeter
from webhook.review.app import create_app
from webhook.review.bodies import BODY_LIMIT
from webhook.review.log import GatheredLines, ReviewLog
from webhook.server.connection import ConnectionRules
from webhook.server.listener import Address, Limits, Listener
from webhook.server.status import Readiness, create_status_app
from webhook.server.tls import Identities, TLSFiles, listener_context, now_utc

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from webhook.config.node_watch import NodeWatch
    from webhook.config.reload import Contents
    from webhook.review.app import Decisions

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from glibc's malloc.h
# Thresholds of malloc in bytes. Fixed values keep glibc from raising them to 32 MB and more. uvloop reads TLS into a
# new buffer of 256 KiB each time; MAPPED_FROM must be larger, or every review costs an mmap (measured: 7 of 155 us). A
# large body arrives in several such buffers. With a smaller RETURNED_FROM glibc would return them to the kernel, and
# each further buffer would cost a page fault for each 4 KiB (measured: 9,000 to 18,000 faults for 18 MiB instead of
# 4,700, and 30 of 130 ms of CPU).
MAPPED_FROM = 512 * 1024
RETURNED_FROM = 4 * 2**20

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the process."""

    listen: Address
    metrics_listen: Address
    tls: TLSFiles
    config: File
    mutations: File
    client_names: frozenset[str] = frozenset()
    # Folder of the service account that watches nodes; None: nodes are not watched.
    node_account: Path | None = None
    poll_seconds: float = 2.0  # interval between two reads of the files; four small files cost 50 us
    limits: Limits = field(default_factory=Limits)
    body_limit: int = BODY_LIMIT  # bytes of the largest body


class Service:
    """All listeners with loaded files and bound sockets; raises `Unusable` for an unusable file or address."""

    def __init__(self, options: Options, build: Callable[[Contents], Decisions]) -> None:
        self.options = options
        self.metrics = Metrics()
        self.nodes = NodeShapes(self.metrics.nodes)
        self.node_watch = self._node_watch()
        self.deciders = Watched(
            "configuration",
            (options.config, options.mutations, *((self.nodes,) if self.node_watch else ())),
            build,
            ReloadMeter(self.metrics, "configuration"),
        )
        self.identities = Watched(
            "certificate",
            options.tls.watched(),
            Identities(options.tls),
            ReloadMeter(self.metrics, "certificate"),
        )
        self.deciders.load()
        self.identities.load()
        self.readiness = Readiness(self._not_after, now_utc)
        self.reviews = self._review_listener()
        self.status = self._status_listener()
        self._observe()

    def _node_watch(self) -> NodeWatch | None:
        if self.options.node_account is None:
            return None
        from webhook.config.node_watch import NodeWatch  # imported here, because httpx takes 9 MB

        return NodeWatch.of_account(self.options.node_account, os.environ, self.nodes, self.metrics.nodes)

    def _review_listener(self) -> Listener:
        options = self.options
        asks_clients = options.tls.client_ca is not None
        context = listener_context(lambda: self.identities.current().value.context, asks_clients=asks_clients)
        log = ReviewLog(GatheredLines())
        app = create_app(self.deciders.current, self.metrics, log, options.body_limit)
        rules = ConnectionRules(
            asks_clients, options.client_names, options.limits.connections, 2 * options.body_limit
        )
        return Listener(app, options.listen.bind(), options.limits, rules, context)

    def _status_listener(self) -> Listener:
        app = create_status_app(self.readiness, self.metrics)
        limits = self.options.limits
        rules = ConnectionRules(connections=limits.connections)
        return Listener(app, self.options.metrics_listen.bind(), limits, rules)

    def _not_after(self) -> datetime:
        return self.identities.current().value.not_after

    def _observe(self) -> None:
        observe = self.metrics.observe
        observe("corepin_webhook_certificate_not_after_seconds", lambda: self._not_after().timestamp())
        observe("corepin_webhook_connections", lambda: len(self.reviews.connections))
        observe("corepin_webhook_ready", lambda: self.readiness.obstacle() is None)

    async def serve(self) -> None:
        """Serve until SIGTERM or SIGINT, then drain and return."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with asyncio.TaskGroup() as group:
            background = [
                group.create_task(watch((self.deciders, self.identities), self.options.poll_seconds)),
                *([group.create_task(self.node_watch.run())] if self.node_watch else []),
            ]
            status = group.create_task(self.status.serve())
            reviews = group.create_task(self.reviews.serve())
            await self._become_ready()
            await stop.wait()
            for task in background:
                task.cancel()
            self._begin_draining()
            await reviews
            self.status.drain()
            await status
        logger.info("stopped")

    async def _become_ready(self) -> None:
        await self.status.has_started.wait()
        await self.reviews.has_started.wait()
        self.readiness.is_listening = True
        facts = {"reviews": str(self.reviews.address), "metrics": str(self.status.address)}
        logger.info("serving", extra={"facts": facts})

    def _begin_draining(self) -> None:
        self.readiness.is_draining = True
        self.reviews.drain()
        logger.info("draining", extra={"facts": {"connections": len(self.reviews.connections)}})


def give_back_memory() -> None:
    """Return free memory to the system, because glibc would otherwise keep the megabytes of a large body."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:  # only glibc has mallopt
        mallopt(M_TRIM_THRESHOLD, RETURNED_FROM)
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)


def run(options: Options, build: Callable[[Contents], Decisions]) -> None:
    """Serve until a signal to stop; raise `Unusable` if it cannot start."""
    give_back_memory()

    async def main() -> None:
        service = Service(options, build)
        gc.collect()
        gc.freeze()  # loaded modules are permanent, so garbage collections skip them
        await service.serve()

    disable_created_metrics()  # type: ignore[no-untyped-call] # unused, and a third of the exposition
    with warnings.catch_warnings(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
        # for sockets of clients in mid-handshake, which only the loop could close
        warnings.simplefilter("ignore", ResourceWarning)
