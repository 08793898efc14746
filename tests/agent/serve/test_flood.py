"""The agent's port with clients that hold connections, flood it, or do not read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from agent.serve.connections import ACCEPTED_AT_ONCE, MOST_CONNECTIONS
from agent.serve.endpoints import SENT_AT_ONCE, Endpoints, listen_http
from agent.serve.metrics_page import FRESH_SECONDS, MetricsPage

Port = int
TURNS = 20  # iterations of the event loop, enough for all pending work


class Counting(Collector):
    """One metric that records its collections and the threads that format it."""

    def __init__(self, text: str = "x") -> None:
        self.text = text
        self.collected = 0
        self.threads: list[int] = []

    def collect(self) -> Iterator[Metric]:
        """Yield the metric."""
        self.collected += 1
        metric = Metric("numbers", self.text, "gauge")
        metric.samples = Samples(self.threads, metric.samples)
        metric.add_sample("numbers", {}, self.collected)
        yield metric


class Samples(list[Any]):
    """Samples that record the threads that read them."""

    def __init__(self, threads: list[int], samples: list[Any]) -> None:
        super().__init__(samples)
        self._threads = threads

    def __iter__(self) -> Iterator[Any]:
        """Record the thread."""
        self._threads.append(threading.get_ident())
        return super().__iter__()


def registry_of(collector: Collector | None = None) -> CollectorRegistry:
    """Return a registry with this collector."""
    registry = CollectorRegistry()
    if collector:
        registry.register(collector)
    return registry


def serve(talk: Callable[[Port], Awaitable[None]], collector: Collector | None = None) -> None:
    """Run a test with an agent's port."""

    async def play() -> None:
        server = await listen_http(Endpoints(lambda: None, registry_of(collector)), "127.0.0.1", 0)
        async with server, asyncio.timeout(60):
            await talk(server.sockets[0].getsockname()[1])
            if others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)  # the tasks of connections that the test has closed

    asyncio.run(play())


async def connect(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and let the agent accept."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    await turns()
    return streams


async def turns() -> None:
    """Let the event loop do pending work."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def get(port: Port, path: str) -> bytes:
    """Return the response to a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = await reader.read()
    writer.close()
    await writer.wait_closed()
    return response


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_new_connection_replaces_the_longest_idle_one(path: str) -> None:
    """With 64 idle connections a new one is answered, and only the oldest is closed."""

    async def talk(port: Port) -> None:
        idle = [await connect(port) for _ in range(MOST_CONNECTIONS)]
        assert (await get(port, path)).startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))
        assert await idle[0][0].read() == b""
        await turns()
        assert not any(reader.at_eof() for reader, _ in idle[1:])
        for _, writer in idle:
            writer.transport.abort()

    serve(talk)


def test_probes_are_answered_while_connections_come_without_end() -> None:
    """Every probe is answered while twenty times the limit of connections are opened."""

    async def talk(port: Port) -> None:
        opened: list[asyncio.StreamWriter] = []

        async def open_some() -> None:
            for _ in range(5 * MOST_CONNECTIONS):
                opened.append((await asyncio.open_connection("127.0.0.1", port))[1])  # noqa: PERF401 as they come

        flood = asyncio.gather(*(open_some() for _ in range(4)))
        answers = 0
        while not flood.done():
            assert (await get(port, "/healthz")).endswith(b"ok\n")
            assert (await get(port, "/readyz")).endswith(b"not listed yet\n")
            answers += 1
        await flood
        assert answers > 0
        for writer in opened:
            writer.transport.abort()

    serve(talk)


def test_accepts_per_iteration_are_below_the_connection_limit() -> None:
    """A received request is read before later connections can replace its own."""
    assert 4 * ACCEPTED_AT_ONCE <= MOST_CONNECTIONS


def test_metrics_are_rendered_once_a_second_outside_of_the_loop() -> None:
    """Requests within a second share one rendering, which runs in another thread."""
    now = [10.0]
    collector = Counting()
    page = MetricsPage(registry_of(collector), lambda: now[0])
    collected = collector.collected  # register() has collected once already

    async def ask() -> None:
        first = await asyncio.gather(*(page.text() for _ in range(50)))
        now[0] += FRESH_SECONDS / 2
        first.append(await page.text())
        assert len(set(first)) == 1
        assert collector.collected == collected + 1
        now[0] += FRESH_SECONDS
        assert await page.text() not in first
        assert collector.collected == collected + 2

    asyncio.run(ask())
    assert threading.get_ident() not in collector.threads
    assert len(collector.threads) == 2


async def test_disconnect_does_not_cancel_the_rendering_for_others() -> None:
    """A concurrent request gets the metrics although the first client disconnects."""
    page = MetricsPage(registry_of(Counting()))
    first = asyncio.create_task(page.text())
    await asyncio.sleep(0)
    second = asyncio.create_task(page.text())
    first.cancel()
    assert b"numbers" in await second


def test_unread_response_takes_little_memory() -> None:
    """At most two chunks of an unread response of 8 MB are buffered."""
    sizes: list[int] = []

    async def talk(port: Port) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert await reader.read(1) == b"H"
        transports = [
            task.get_coro().cr_frame.f_locals["writer"].transport  # type: ignore[union-attr]
            for task in asyncio.all_tasks()
            if "Connections" in repr(task.get_coro())
        ]
        await turns()
        sizes.extend(transport.get_write_buffer_size() for transport in transports)
        writer.transport.abort()
        await turns()

    serve(talk, Counting("x" * 8_000_000))
    assert len(sizes) == 1
    assert 0 < sizes[0] <= 2 * SENT_AT_ONCE
