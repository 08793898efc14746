"""Runtime classes whose containers the agent has seen running on the host, without a virtual machine."""

from __future__ import annotations

from dataclasses import replace

from pinning.contract import UNTRUSTED, UNTRUSTED_WORKLOAD
from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.pinning.world import Wish

CLASS = frozenset({"fast"})


def started(node: FakeNode, uid: str, *, in_vm: bool = False, state: State = State.RUNNING) -> str:
    """Start a pod with the runtime class, and run a pass; return the id of its container."""
    node.add(uid, Wish())
    node.documents[uid]["spec"]["runtimeClassName"] = "fast"
    key = node.start(uid, state=state)
    if in_vm:
        node.containers[key] = replace(node.containers[key], in_vm=True)
    node.run()
    return key


def test_class_is_on_the_host_after_its_first_container(node: FakeNode) -> None:
    """A runtime class counts as one of the host after its first container there, even once that has ended."""
    node.deploy("plain", Wish())
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()

    key = started(node, "a")
    assert node.agent.reconciler.observer.host_classes == CLASS
    assert node.agent.reconciler.observer.runs_no_machine("a")

    node.remove(key)
    del node.documents["a"]
    node.run()
    assert node.agent.reconciler.observer.host_classes == CLASS


def test_class_that_starts_machines_is_not_on_the_host(node: FakeNode) -> None:
    """If a container of a runtime class runs in a virtual machine, the class no longer counts as one of the host."""
    started(node, "a")
    started(node, "b", in_vm=True)
    assert node.agent.reconciler.observer.host_classes == frozenset()
    assert not node.agent.reconciler.observer.runs_no_machine("b")


def test_annotation_of_a_running_pod_makes_no_class_one_of_the_host(node: FakeNode) -> None:
    """A user may add containerd's annotation to a pod that another handler has started, so it shows nothing."""
    node.deploy("a", Wish())
    node.run()
    node.documents["a"]["metadata"]["annotations"] = {UNTRUSTED_WORKLOAD: UNTRUSTED}
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()


def test_container_without_a_known_cgroup_decides_nothing(node: FakeNode) -> None:
    """A container without a known cgroup does not show whether its runtime class is on the host."""
    node.add("a", Wish())
    node.documents["a"]["spec"]["runtimeClassName"] = "fast"
    key = node.start("a")
    node.containers[key] = replace(node.containers[key], cgroup=None)
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()
