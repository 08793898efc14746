"""Runtime classes that are known to run on the host."""

from __future__ import annotations

from dataclasses import replace

from pinning.planning.observed import State
from tests.agent.fakes import FakeNode
from tests.pinning.world import Wish

CLASS = frozenset({"fast"})


def started(node: FakeNode, uid: str, *, in_vm: bool = False, state: State = State.RUNNING) -> str:
    """Start a pod of the runtime class, and run a pass; return the id of its container."""
    node.add(uid, Wish())
    node.documents[uid]["spec"]["runtimeClassName"] = "fast"
    key = node.start(uid, state=state)
    if in_vm:
        node.containers[key] = replace(node.containers[key], in_vm=True)
    node.run()
    return key


def test_class_is_on_the_host_after_its_first_container(node: FakeNode) -> None:
    """The first container of a class that the runtime lists on the host decides for later pods, also once it ended."""
    node.add("plain", Wish())
    node.start("plain")
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
    """A container in a virtual machine takes its class back, as after the class was deleted and made again."""
    started(node, "a")
    started(node, "b", in_vm=True)
    assert node.agent.reconciler.observer.host_classes == frozenset()
    assert not node.agent.reconciler.observer.runs_no_machine("b")


def test_container_without_a_known_cgroup_decides_nothing(node: FakeNode) -> None:
    """A container whose cgroup the runtime does not name proves nothing about its class."""
    node.add("a", Wish())
    node.documents["a"]["spec"]["runtimeClassName"] = "fast"
    key = node.start("a")
    node.containers[key] = replace(node.containers[key], cgroup=None)
    node.run()
    assert node.agent.reconciler.observer.host_classes == frozenset()
