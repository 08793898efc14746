"""Health, readiness and metrics endpoints, and the local socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from agent.errors import TooLarge
from agent.node_state import NodeState
from agent.serve.endpoints import Endpoints, listen_http, listen_socket
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
