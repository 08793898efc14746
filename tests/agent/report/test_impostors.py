"""Pods with a forged mirror annotation: they get no reports of the other pod and are not counted for it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.report.event_recorder import EventReport
from agent.report.extended_resources import node_resources
from agent.report.pod_status import PodReport
from pinning.planning.requests import overcommit, sidecars
from pinning.pods.types import Pod
from tests.agent.fake_api import FakeApiServer, api_of
from tests.agent.fakes import FakeNode
from tests.agent.states import EXCLUSIVE, bound, source, state_of
from tests.pinning.world import Wish, pod_document
from tests.pods import CORES, container

OLDER = "2020-01-01T00:00:00Z"


def fake(victim: str, *containers: Any, **more: Any) -> Pod:
    """Return a pod with a forged mirror annotation that is older than the victim."""
    notes = {"kubernetes.io/config.mirror": victim, "kubernetes.io/config.hash": victim, **EXCLUSIVE}
    return bound("fake", *containers, annotations=notes, creationTimestamp=OLDER, **more)


VICTIM = bound("victim", annotations=EXCLUSIVE)
ORDERS = pytest.mark.parametrize("pods", [(VICTIM, fake("victim")), (fake("victim"), VICTIM)])


@ORDERS
def test_the_victim_keeps_its_claims(pods: tuple[Pod, Pod]) -> None:
    """A pod that claims to be the mirror of another changes nothing: each pod is known by its own uid and name."""
    assert {pod.uid: pod.name for pod in state_of(*pods).pods} == {"victim": "victim", "fake": "fake"}


@ORDERS
async def test_event_refers_to_the_victim(pods: tuple[Pod, Pod]) -> None:
    """An event of the victim refers to the victim, not to the forged mirror."""
    server = FakeApiServer()
    async with api_of(server) as api:
        await EventReport(api, "node-1", source(*pods)).publish(state_of(VICTIM))
    assert [event["involvedObject"]["name"] for event in server.objects.values()] == ["victim"]


@ORDERS
async def test_the_victims_report_is_written_to_the_victim(pods: tuple[Pod, Pod]) -> None:
    """The status annotation of the victim is written to the victim only."""
    server = FakeApiServer.with_pods(*pods)
    async with api_of(server) as api:
        await PodReport(api, "node-1", source(*pods)).publish(state_of(VICTIM))
    assert [body["metadata"]["uid"] for _, body in server.patches] == ["victim"]


def test_cores_of_the_victim_count_once() -> None:
    """A forged mirror changes neither the published cores nor the shared load and the sidecars."""
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
    """A container whose pod the API does not show is looked up by name, not matched to the forged mirror."""
    document = pod_document("u", [Wish("2", policy="exclusive")], created=1)
    document["metadata"]["annotations"] |= {
        "kubernetes.io/config.mirror": "hash", "kubernetes.io/config.hash": "hash"
    }  # fmt: skip
    node.documents["u"] = document
    node.start("hash")
    state = node.run()
    assert {pod.uid: pod.name for pod in state.pods} == {"u": "pod-u"}
    assert node.agent.reconciler.observer.missing_pods._wanted == {"hash": ("test", "pod-hash")}
