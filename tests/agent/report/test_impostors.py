"""A user's pod that says it is the mirror of another one: nothing of the other one's is told of it, or counted for it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.report.event_recorder import EventReport
from agent.report.extended_resources import node_resources
from agent.report.pod_status import PodReport
from pinning.planning.requests import overcommit, sidecars
from pinning.pods.types import Pod
from tests.agent.fakes import FakeNode
from tests.agent.report import event_server as events
from tests.agent.report import pod_server as reports
from tests.agent.states import EXCLUSIVE, bound, source, state_of
from tests.pinning.world import Wish, pod_document
from tests.pods import CORES, container

OLDER = "2020-01-01T00:00:00Z"


def fake(victim: str, *containers: Any, **more: Any) -> Pod:
    """Return a pod that says it is the mirror of the victim, and is older than it."""
    notes = {"kubernetes.io/config.mirror": victim, "kubernetes.io/config.hash": victim, **EXCLUSIVE}
    return bound("fake", *containers, annotations=notes, creationTimestamp=OLDER, **more)


VICTIM = bound("victim", annotations=EXCLUSIVE)
ORDERS = pytest.mark.parametrize("pods", [(VICTIM, fake("victim")), (fake("victim"), VICTIM)])


@ORDERS
def test_the_victim_keeps_its_claims(pods: tuple[Pod, Pod]) -> None:
    """Both are seen, each with its own uid and name."""
    assert {pod.uid: pod.name for pod in state_of(*pods).pods} == {"victim": "victim", "fake": "fake"}


@ORDERS
def test_what_happened_to_the_victim_is_told_of_the_victim(pods: tuple[Pod, Pod]) -> None:
    """No event of it stands at another pod."""
    server = events.Server()

    async def act(api: Any) -> None:
        await EventReport(api, "node-1", source(*pods)).publish(state_of(VICTIM))

    events.run(server, act)
    assert [event["involvedObject"]["name"] for event in server.kept.values()] == ["victim"]


@ORDERS
def test_the_victims_report_is_written_to_the_victim(pods: tuple[Pod, Pod]) -> None:
    """No other pod looks as pinned as it is."""
    server = reports.Server()

    async def act(api: Any) -> None:
        await PodReport(api, "node-1", source(*pods)).publish(state_of(VICTIM))

    reports.run(act, server)
    assert [body["metadata"]["uid"] for _, body in server.patches] == ["victim"]


def test_what_the_victim_holds_counts_once() -> None:
    """Else the scheduler would be offered cores that are gone, and sidecars and overcommitment be told wrong."""
    victim = bound("victim", container("main", {CORES: 2}))
    impostor = fake("victim", container("main", {CORES: 2, "cpu": "200m", "memory": "64M"}))
    state = state_of(victim)
    numbers = node_resources(state, [victim, impostor])
    alone = node_resources(state, [victim])
    assert numbers
    assert alone
    assert numbers[CORES] == max(alone[CORES], 4)
    assert overcommit([victim, impostor], state.ledger, 4).requested == 200
    bare = fake(
        "victim", container("other", {"cpu": "200m", "memory": "64M"}, {"cpu": "200m", "memory": "64M"})
    )
    assert sidecars([victim, bare], state.seen_pods, ("200m", "64M")).containers == 0


def test_no_pod_speaks_for_containers_of_another_name(node: FakeNode) -> None:
    """Not even while the API does not show whose they are: they are asked for by name."""
    document = pod_document("u", [Wish("2", policy="exclusive")], created=1)
    document["metadata"]["annotations"] |= {
        "kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"
    }  # fmt: skip
    node.documents["u"] = document
    node.start("hash")
    state = node.run()
    assert {pod.uid: pod.name for pod in state.pods} == {"u": "pod-u"}
    assert node.agent.reconciler.observer.missing_pods._wanted == {"hash": ("test", "pod-hash")}
