"""Events: one for each change, deduplicated and rate limited."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agent.clock import Clock
from agent.node_state import Conflict, NodeState, Path, Proof
from agent.report.event_recorder import BURST, PENDING, EventReport
from agent.report.events import LONGEST_NAME, Reason, event_document, events_between
from agent.report.publisher import Later
from apiserver.errors import Unavailable
from pinning.machine.cpuset import CPUSet
from tests.agent.fake_api import FakeApiServer, api_of
from tests.agent.states import EXCLUSIVE, WHEN, bound, owner, source, state_of
from tests.pods import container
from tests.tables import table

ONE = bound("a", annotations=EXCLUSIVE)
REFUSED = bound("a", container("main", 99), annotations=EXCLUSIVE)
REQUIRED = bound("a", annotations={**EXCLUSIVE, "smt-policy.corepin.io/pod": "require"})
DRIFTING = {owner(ONE): Proof(CPUSet([1, 5]), WHEN, outside=3)}


@table(
    "before, after, reasons",
    {
        "pinned by this agent": (None, state_of(ONE), ["Pinned"]),
        "found pinned by a new agent": (None, state_of(ONE, path=Path.FOUND), []),
        "no change": (state_of(ONE), state_of(ONE, when="2027-01-01T00:00:00Z"), []),
        "pinned later": (state_of(ONE, proven=False), state_of(ONE), ["Pinned"]),
        "no claims": (state_of(), state_of(bound("a")), []),
        "refused": (state_of(), state_of(REFUSED), ["Unpinnable"]),
        "refused still": (state_of(REFUSED), state_of(REFUSED), []),
        "refused still, with less free": (
            state_of(REFUSED),
            state_of(bound("z", annotations=EXCLUSIVE), REFUSED, proven=False),
            [],
        ),
        "fits now": (state_of(REFUSED), state_of(ONE), ["Pinned"]),
        "cannot be read": (
            None,
            state_of(bound("a", annotations={"cpu-manager.corepin.io/pod": "banana"})),
            ["Unpinnable"],
        ),
        "another policy, the same CPUs": (state_of(ONE), state_of(REQUIRED), ["PolicyChanged"]),
        "no policy any more": (state_of(ONE), state_of(bound("a")), ["PolicyChanged"]),
        "other CPUs": (
            state_of(ONE),
            state_of(bound("a", container("main", 4), annotations=EXCLUSIVE)),
            ["Pinned"],
        ),
        "drift": (state_of(ONE), state_of(ONE, proofs=DRIFTING), ["Drift"]),
        "drift still": (state_of(ONE, proofs=DRIFTING), state_of(ONE, proofs=DRIFTING), []),
        "fight": (
            state_of(ONE),
            state_of(ONE, conflicts=(Conflict("default/a/main", owner(ONE), 3),)),
            ["Conflict"],
        ),
    },
)
def test_each_change_has_one_event(before: NodeState | None, after: NodeState, reasons: list[str]) -> None:
    """Each change is reported by one event; an unchanged state by none."""
    assert [event.reason for event in events_between(before, after)] == reasons


def test_an_intruder_is_named() -> None:
    """A Drift event names the other container and its CPUs."""
    state = state_of(ONE)
    [pod] = state.pods
    [main] = pod.containers
    meant = replace(state, pods=(replace(pod, containers=(replace(main, intruders=("x/y/z",)),)),))
    [event] = events_between(state, meant)
    assert event.message == "x/y/z may run on CPUs 1,5, which belong to container main"


def test_an_event_names_its_container() -> None:
    """The event refers to the container, and its message is truncated to the API server's limit."""
    [event] = events_between(None, state_of(ONE))
    document = event_document(replace(event, message="x" * 5000), ONE, "node-1", WHEN)
    assert document["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert len(document["message"]) == 1024
    assert document["metadata"]["name"].startswith("a.")


@pytest.mark.parametrize("letter", ["-", "."])
def test_name_of_an_event_is_one(letter: str) -> None:
    """The event name is valid and short enough for any pod name."""
    name = f"{'a' * (LONGEST_NAME - 1)}{letter}{'b' * 50}"
    pod = bound(name, annotations=EXCLUSIVE)
    [event] = events_between(None, state_of(pod))
    document_name = event_document(event, pod, "node-1", WHEN)["metadata"]["name"]
    assert re.fullmatch(r"a{199}\.[0-9a-f]{16}", document_name)


async def test_the_same_event_is_counted_also_by_a_new_agent() -> None:
    """A repeated event raises the count of the first one, also after a restart of the agent."""
    server = FakeApiServer()
    async with api_of(server) as api:
        report = EventReport(api, "node-1", source(ONE))
        for state in (state_of(REFUSED), state_of(ONE), state_of(REFUSED)):
            await report.publish(state)
        await EventReport(api, "node-1", source(ONE)).publish(state_of(REFUSED))
        assert report.writes == 3
    assert sorted((event["reason"], event["count"]) for event in server.objects.values()) == [
        ("Pinned", 1),
        ("Unpinnable", 2),
    ]


async def test_an_expired_event_is_created_again() -> None:
    """An event that expired on the API server, an hour after it was sent, is created again when it repeats."""
    server = FakeApiServer()
    async with api_of(server) as api:
        report = EventReport(api, "node-1", source(ONE))
        await report.publish(state_of(REFUSED))
        server.objects.clear()
        for state in (state_of(ONE), state_of(REFUSED)):
            await report.publish(state)
    assert {event["reason"] for event in server.objects.values()} == {Reason.PINNED, Reason.UNPINNABLE}


async def test_events_are_rate_limited_per_pod() -> None:
    """Events of one pod are rate limited with a burst; other pods have their own budget."""
    server = FakeApiServer()
    now = [0.0]
    async with api_of(server) as api:
        report = EventReport(api, "node-1", source(ONE, bound("b")), Clock(monotonic=lambda: now[0]))
        for _ in range(40):
            await report.publish(state_of(ONE))
            await report.publish(state_of(bound("a")))
        assert report.writes == BURST
        assert report.held_back == 80 - BURST
        await report.publish(state_of(bound("b", annotations=EXCLUSIVE)))
        assert report.writes == BURST + 1
        now[0] = 31.0
        await report.publish(state_of(ONE))
        assert report.writes == BURST + 2


async def test_events_are_retried_while_the_server_fails() -> None:
    """While the API server fails events are retried and none is lost; a refused event is not retried."""
    server = FakeApiServer()
    async with api_of(server) as api:
        report = EventReport(api, "node-1", source(ONE))
        server.failures = [503, 503]
        for _ in range(2):
            with pytest.raises(Unavailable):
                await report.publish(state_of(ONE))
        await report.publish(state_of(ONE))
        server.failures = [422]
        await report.publish(state_of(REFUSED))
        await report.publish(state_of(REFUSED))
    assert [event["reason"] for event in server.objects.values()] == ["Pinned"]
    assert len(server.calls) == 4
    assert PENDING >= 250


def flooded(answer: httpx.Response, *namespaces: str) -> FakeApiServer:
    """Return a server that refuses events of some namespaces."""
    server = FakeApiServer()
    server.refused = dict.fromkeys(namespaces, answer)
    return server


def asked(server: FakeApiServer) -> list[str]:
    """Return the namespace of each request."""
    return [call.path.split("/")[4] for call in server.calls]


def spread(*namespaces: str) -> list[Any]:
    """Return one pod that is refused CPUs in each namespace."""
    return [
        bound(f"{at:02}", container("main", 99), annotations=EXCLUSIVE, namespace=namespace)
        for at, namespace in enumerate(namespaces)
    ]


FULL = httpx.Response(429, json={"message": "limit reached on type Namespace"})


@pytest.mark.parametrize("answer", [FULL, httpx.Response(500, json={"message": "failed calling webhook"})])
async def test_events_of_one_namespace_wait_alone(answer: httpx.Response) -> None:
    """If a namespace's event quota is used up or its webhook fails, other namespaces still get events."""
    pods = spread("bad", "bad", "fine", "bad", "good")
    server, now = flooded(answer, "bad"), [0.0]
    async with api_of(server) as api:
        report = EventReport(api, "node-1", source(*pods), Clock(monotonic=lambda: now[0]))
        for second in range(20):
            now[0] = float(second)
            with pytest.raises(Later):
                await report.publish(state_of(*pods))
        assert asked(server)[:3] == ["bad", "fine", "good"]
        assert len(asked(server)) <= 3 + 20 / 5
        server.refused, now[0] = {}, 60.0
        await report.publish(state_of(*pods))
    assert sorted(event["involvedObject"]["name"] for event in server.objects.values()) == [
        "00",
        "01",
        "02",
        "03",
        "04",
    ]


async def test_failing_server_ends_the_round() -> None:
    """After failures in two namespaces, or a Retry-After, no other namespace is tried."""
    pods = spread("a", "b", "c", "d")
    for answer, tried in (
        (httpx.Response(500), ["a", "b"]),
        (httpx.Response(429, headers={"retry-after": "1"}), ["a"]),
    ):
        server = flooded(answer, *"abcd")
        async with api_of(server) as api:
            with pytest.raises(Unavailable):
                await EventReport(api, "node-1", source(*pods)).publish(state_of(*pods))
        assert asked(server) == tried


async def test_no_event_for_a_pod_missing_in_the_api() -> None:
    """A pod that the API does not know gets no event, and reset drops pending events."""
    server = FakeApiServer()
    async with api_of(server) as api:
        report = EventReport(api, "node-1", source())
        state = state_of(ONE)
        gone = tuple(replace(pod, is_known=False) for pod in state.pods)
        await report.publish(replace(state, pods=gone))
        await report.reset()
    assert server.calls == []


async def test_event_waits_until_the_watch_shows_its_pod() -> None:
    """An event is sent when the watch shows its pod; events of other pods do not wait for it."""
    server = FakeApiServer()
    other = bound("b", container("main", 1), annotations=EXCLUSIVE)
    state = state_of(ONE, other)
    async with api_of(server) as api:
        pods = source(other)
        report = EventReport(api, "node-1", pods)
        for _ in range(2):
            with pytest.raises(Later):
                await report.publish(state)
        assert [event["involvedObject"]["name"] for event in server.objects.values()] == ["b"]
        pods.shown = source(ONE, other).shown
        server.failures = [503]
        with pytest.raises(Unavailable):
            await report.publish(state)
        await report.publish(state)
    assert [event["involvedObject"]["name"] for event in server.objects.values()] == ["b", "a"]
