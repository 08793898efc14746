"""In-place resize: its effect on the kernel, the status, the events and the published cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent.node_state import NodeState
from agent.report.events import Event, Reason, events_between
from agent.report.extended_resources import node_resources
from agent.report.pod_status import pod_status
from tests.agent.fakes import FakeNode
from tests.pinning.world import Wish
from tests.pods import CORES, OTHER_CORES

ISOLATED = "corepin.io/isolated-cores"
WHOLE, NUMA = "corepin.io/whole-cores", "corepin.io/numa-cpus"
ALONE = Wish("1", smt="isolate")  # gets the core 1,5 of FLAT, where 0,4 is reserved


def charge(node: FakeNode, uid: str, cores: int = 1) -> None:
    """Add the core count that the webhook adds for the scheduler."""
    for kind in ("limits", "requests"):
        node.documents[uid]["spec"]["containers"][0]["resources"][kind][ISOLATED] = cores


def resize(node: FakeNode, uid: str, cpu: str, allocated: str | None) -> None:
    """Change the requested CPUs of a pod, and the CPUs that the kubelet has allocated."""
    document = node.documents[uid]
    resources = document["spec"]["containers"][0]["resources"]
    for kind in ("limits", "requests"):
        resources[kind] = {**resources[kind], "cpu": cpu}
    given = {"name": "c0", "allocatedResources": {"cpu": allocated}} if allocated else {"name": "c0"}
    node.documents[uid] = {**document, "status": {"phase": "Running", "containerStatuses": [given]}}


def status(state: NodeState, uid: str) -> Any:
    """Return the status of a container."""
    shown = next(pod for pod in state.pods if pod.uid == uid)
    return json.loads(pod_status(shown, None) or "{}")["containers"]["c0"]


def published(node: FakeNode, state: NodeState) -> int:
    """Return the cores that the scheduler would still place."""
    return numbers(node, state)[ISOLATED] - 1


def numbers(node: FakeNode, state: NodeState) -> Mapping[str, int]:
    """Return the published resources."""
    pods: Any = node.documents.values()
    resources = node_resources(state, pods)
    assert resources
    return resources


def alone(node: FakeNode) -> tuple[str, NodeState]:
    """Run a pod with a core of its own; return its container and the state."""
    node.add("a", ALONE)
    charge(node, "a")
    number = node.start("a")
    return number, node.run()


def test_a_resized_isolated_pod_gets_the_free_core(node: FakeNode) -> None:
    """The container gets another core; status and event report it, and the core is no longer offered."""
    number, before = alone(node)
    assert (node.cpus(number), published(node, before)) == ("1", 2)
    resize(node, "a", "2", allocated="2")
    after = node.run()
    assert node.cpus(number) == "1-2"
    assert (status(after, "a")["cpus"], status(after, "a")["idle"]) == ("1-2", "5-6")
    [event] = events_between(before, after)
    assert event.reason is Reason.PINNED
    assert "runs on CPUs 1-2, siblings 5-6 idle" in event.message
    assert published(node, after) == 1


def test_a_resize_without_a_free_core_waits_for_one(node: FakeNode) -> None:
    """The container keeps its CPUs, with the reason in status and event, until another pod frees a core."""
    number, _ = alone(node)
    other = node.deploy("b", Wish("3", policy="exclusive"))
    before = node.run()
    resize(node, "a", "2", allocated="2")
    after = node.run()
    assert (node.cpus(number), status(after, "a")["pinned"], published(node, after)) == ("1", True, 0)
    assert status(after, "a")["refusal"]["reason"] == "KeepsFewerCPUs"
    missing = "wanted 2 wholly free cores, found 1"
    assert [event for event in events_between(before, after) if missing in event.message] == [
        Event(after.refusals[0].owner, Reason.UNPINNABLE, f"KeepsFewerCPUs: {after.refusals[0].message}")
    ]
    del node.documents["b"]
    node.stop(other)
    last = node.run()
    assert (node.cpus(number), last.refusals, published(node, last)) == ("1-2", (), 1)


@pytest.mark.parametrize("allocated", ["1", None], ids=["the kubelet waits", "it says nothing yet"])
def test_a_resize_counts_when_the_kubelet_allocates_it(allocated: str | None, node: FakeNode) -> None:
    """The CPUs that the kubelet has allocated count; without any, those of the pod spec."""
    number, _ = alone(node)
    resize(node, "a", "2", allocated)
    node.run()
    assert node.cpus(number) == ("1" if allocated else "1-2")


def test_a_shrunk_isolated_pod_stays_counted(node: FakeNode) -> None:
    """Freed cores are published for CMK's resource; isolated cores stay charged to the pod."""
    node.add("a", Wish("3", smt="isolate"))
    charge(node, "a", 3)
    number = node.start("a")
    node.run()
    resize(node, "a", "1", allocated="1")
    after = node.run()
    assert node.cpus(number) == "1"
    assert numbers(node, after) == {CORES: 2, OTHER_CORES: 2, ISOLATED: 3, WHOLE: 2, NUMA: 4}
