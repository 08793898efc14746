"""Health, readiness and metrics endpoints, the local socket, and clients that flood the port or do not read."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from agent.errors import TooLarge
from agent.node_state import NodeState
from agent.serve.connections import ACCEPTED_AT_ONCE, MOST_CONNECTIONS
from agent.serve.endpoints import SENT_AT_ONCE, Endpoints, listen_http, listen_socket
from agent.serve.metrics_page import FRESH_SECONDS, MetricsPage
from agent.serve.state_json import agent_state
from pinning.machine.topology import Topology
from pinning.planning.ledger_json import ledger_from_dict
from published.agent_state import AgentState
from published.codec import decode
from tests.agent.fakes import FakeNode
from tests.pinning.world import Wish

Ask = Callable[[bytes], Awaitable[str]]


def asked(state: NodeState | None, request: bytes, registry: CollectorRegistry | None = None) -> str:
    """Return the answer of a real server over TCP."""

    async def talk() -> str:
        server = await listen_http(Endpoints(lambda: state, registry or CollectorRegistry()), "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(request)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer.decode()

    return asyncio.run(talk())


def get(path: str, state: NodeState | None = None, registry: CollectorRegistry | None = None) -> str:
    """Return the answer to a GET."""
    return asked(state, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode(), registry)


def test_health_is_served_before_anything_is_known() -> None:
    """The health endpoint is served before the first pass."""
    assert get("/healthz").endswith("Connection: close\r\n\r\nok\n")


def test_not_ready_before_the_first_pass() -> None:
    """Before the first pass readiness fails with the reason."""
    answer = get("/readyz")
    assert answer.startswith("HTTP/1.1 503 Service Unavailable")
    assert "pods and containers are not listed yet" in answer


def test_ready_when_everything_is_listed(node: FakeNode) -> None:
    """After a pass with complete lists the agent is ready, whatever the query."""
    assert get("/readyz?verbose", node.run()).startswith("HTTP/1.1 200 OK")


def test_not_ready_while_the_runtime_is_down(node: FakeNode) -> None:
    """While the runtime does not answer readiness fails with this reason."""
    node.run()
    node.runtime.down = True
    assert "the runtime does not answer" in get("/readyz", node.run())


def test_not_ready_names_limit_and_remedy_of_a_list(node: FakeNode) -> None:
    """Readiness fails with the limit that a list exceeds, and the remedy."""
    node.run()
    node.runtime.unlisted = TooLarge(
        "ListPodSandbox: the answer exceeds 16 MiB: find the pods and delete them"
    )
    answer = get("/readyz", node.run())
    assert answer.startswith("HTTP/1.1 503 Service Unavailable")
    assert f"the runtime does not answer: {node.runtime.unlisted}\n" in answer


def test_metrics_have_the_node(node: FakeNode) -> None:
    """Metrics have CPUs by set, assignments, refusals, containers, writes and throttled periods."""
    node.add("a", Wish("2", policy="exclusive"))
    node.add("b", Wish("7", policy="share"))
    node.start("a")
    state = node.run()
    metrics = node.agent.reconciler.metrics
    metrics.show(state)
    node.runner.run(node.agent.reconciler.sweep(lambda: False))

    text = get("/metrics", state, metrics.registry)
    for line in (
        'corepin_agent_cpus{set="exclusive"} 2.0',
        'corepin_agent_cpus{set="shared"} 6.0',
        'corepin_agent_assignments{policy="exclusive"} 1.0',
        'corepin_agent_refusals{reason="NotEnoughCPUs"} 1.0',
        'corepin_agent_containers{state="proven"} 1.0',
        'corepin_agent_cpuset_writes_total{result="done"}',
        'corepin_agent_exclusive_throttled_periods{container="c0",namespace="test",pod="pod-a"} 7.0',
    ):
        assert line in text


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        pytest.param("GET /nothing HTTP/1.1\r\n\r\n", "404 Not Found", id="unknown path"),
        pytest.param("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed", id="other method"),
        pytest.param("HEAD /healthz HTTP/1.1\r\n\r\n", "200 OK", id="head"),
    ],
)
def test_other_requests_have_their_status(request_text: str, status: str) -> None:
    """Unknown paths and other methods are answered with their HTTP status."""
    assert asked(None, request_text.encode()).startswith(f"HTTP/1.1 {status}")


def test_too_long_request_head_is_cut_off() -> None:
    """A request head without end closes the connection without an answer."""
    assert asked(None, b"GET /" + b"x" * 100_000) == ""


def test_socket_returns_the_newest_state(node: FakeNode, tmp_path: Path) -> None:
    """A client of the socket gets one line of JSON, from which topology and ledger can be parsed."""
    node.add("a", Wish("1", smt="isolate"))
    node.add("b", Wish("nonsense", policy="exclusive"))
    node.start("a")
    state = node.run()

    async def read() -> bytes:
        path = tmp_path / "run/agent.sock"
        path.parent.mkdir()
        path.write_bytes(b"")  # left by a killed agent
        async with await listen_socket(Endpoints(lambda: state, CollectorRegistry()), path):
            assert path.stat().st_mode & 0o777 == 0o660
            reader, writer = await asyncio.open_unix_connection(path)
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer

    shown = json.loads(asyncio.run(read()))
    assert decode(AgentState, json.dumps(shown)) == replace(agent_state(state), version=2)
    assert ledger_from_dict(shown["ledger"]) == state.ledger
    assert Topology.from_dict(shown["topology"]) == state.topology
    found = shown["pods"][0]["containers"]["c0"]
    assert (found["cpus"], found["idle"], found["pinned"], found["smtPolicy"]) == ("1", "5", True, "isolate")


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


@asynccontextmanager
async def served(collector: Collector | None = None) -> AsyncIterator[Port]:
    """Serve an agent's port beside the block."""
    server = await listen_http(Endpoints(lambda: None, registry_of(collector)), "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        yield server.sockets[0].getsockname()[1]
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)  # the tasks of connections that the test has closed


async def connect(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and let the agent accept."""
    streams = await asyncio.open_connection("127.0.0.1", port)
    await turns()
    return streams


async def turns() -> None:
    """Let the event loop do pending work."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def response_to(port: Port, path: str) -> bytes:
    """Return the response to a GET."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    response = await reader.read()
    writer.close()
    await writer.wait_closed()
    return response


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_new_connection_replaces_the_longest_idle_one(path: str) -> None:
    """With 64 idle connections a new one is answered, and only the oldest is closed."""
    async with served() as port:
        idle = [await connect(port) for _ in range(MOST_CONNECTIONS)]
        assert (await response_to(port, path)).startswith((b"HTTP/1.1 200", b"HTTP/1.1 503"))
        assert await idle[0][0].read() == b""
        await turns()
        assert not any(reader.at_eof() for reader, _ in idle[1:])
        for _, writer in idle:
            writer.transport.abort()


async def test_probes_are_answered_while_connections_come_without_end() -> None:
    """Every probe is answered while twenty times the limit of connections are opened."""
    async with served() as port:
        opened: list[asyncio.StreamWriter] = []

        async def open_some() -> None:
            for _ in range(5 * MOST_CONNECTIONS):
                opened.append((await asyncio.open_connection("127.0.0.1", port))[1])  # noqa: PERF401 as they come

        flood = asyncio.gather(*(open_some() for _ in range(4)))
        answers = 0
        while not flood.done():
            assert (await response_to(port, "/healthz")).endswith(b"ok\n")
            assert (await response_to(port, "/readyz")).endswith(b"not listed yet\n")
            answers += 1
        await flood
        assert answers > 0
        for writer in opened:
            writer.transport.abort()


def test_accepts_per_iteration_are_below_the_connection_limit() -> None:
    """A received request is read before later connections can replace its own."""
    assert 4 * ACCEPTED_AT_ONCE <= MOST_CONNECTIONS


async def test_metrics_are_rendered_once_a_second_outside_of_the_loop() -> None:
    """Requests within a second share one rendering, which runs in another thread."""
    now = [10.0]
    collector = Counting()
    page = MetricsPage(registry_of(collector), lambda: now[0])
    collected = collector.collected  # register() has collected once already
    first = await asyncio.gather(*(page.text() for _ in range(50)))
    now[0] += FRESH_SECONDS / 2
    first.append(await page.text())
    assert len(set(first)) == 1
    assert collector.collected == collected + 1
    now[0] += FRESH_SECONDS
    assert await page.text() not in first
    assert collector.collected == collected + 2
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


async def test_unread_response_takes_little_memory() -> None:
    """At most two chunks of an unread response of 8 MB are buffered."""
    sizes: list[int] = []
    async with served(Counting("x" * 8_000_000)) as port:
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
    assert len(sizes) == 1
    assert 0 < sizes[0] <= 2 * SENT_AT_ONCE
