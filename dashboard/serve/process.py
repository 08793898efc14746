"""Process of the dashboard: one event loop with the watches and the HTTP server."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import uvicorn

from apiserver.client import Api
from dashboard.serve.app import create_app
from dashboard.serve.connection import KEEP_ALIVE_SECONDS, Connection
from dashboard.serve.watching import USER_AGENT, Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from apiserver.client import Reach

# Seconds for which the peer may leave sent data unacknowledged before the kernel closes the connection.
SLOW_SECONDS: Final = 60
GRACE_SECONDS: Final = 2  # wait for unfinished answers when the process ends
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

logger = logging.getLogger(__name__)


class CannotListen(Exception):
    """The address cannot be bound, or other machines could reach it; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the dashboard."""

    host: str
    port: int
    allowed_hosts: frozenset[str] = frozenset()


class _Server(uvicorn.Server):
    """uvicorn's server that calls `ready` when it listens, and ends its streams at shutdown, which they would delay."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], end: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._end = end

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and call `ready`."""
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGTERM and SIGINT so that the exit code is 0; uvicorn itself would raise the signals again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave)
        yield

    def _leave(self) -> None:
        self._end()
        self.should_exit = True


def bind(options: Options) -> socket.socket:
    """Return the bound socket; raise CannotListen for an address in use, or one that other machines can reach."""
    if options.host not in LOOPBACK:
        raise CannotListen(
            f"{options.host or 'every interface'} can be reached from other machines, and the page has no login:"
            " listen on 127.0.0.1, and reach it by `kubectl port-forward` or a proxy that logs people in"
        )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SLOW_SECONDS * 1000)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        raise CannotListen(f"cannot listen on {options.host}:{options.port}: {error.strerror}") from error
    return listener


def run(options: Options, access: Reach, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; `say` is called with the address of the page when connections are accepted."""
    listener = bind(options)
    asyncio.run(_serve(options, access, listener, say))


async def _serve(
    options: Options, access: Reach, listener: socket.socket, say: Callable[[str], None]
) -> None:
    api = Api(access, USER_AGENT)
    watching = Watching(api)
    config = uvicorn.Config(
        create_app(watching, options.allowed_hosts),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        http=Connection,  # on h11, which refuses request heads above 64 kB
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    host, port = listener.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def ready() -> None:
        say(address)
        logger.info("serving", extra={"facts": {"address": address}})

    server = _Server(config, ready, watching.end)
    try:
        async with asyncio.TaskGroup() as group:  # a bug in the watches ends the process
            watches = group.create_task(watching.run())
            await server.serve(sockets=[listener])
            watches.cancel()
    finally:
        await api.close()
    logger.info("stopped")
