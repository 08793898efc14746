"""Scenes shared by pass tests: an exclusive and a plain container on FLAT, CPUs 0 and 4 reserved."""

from __future__ import annotations

from typing import Any

from agent.node_state import NodeState, VMState
from pinning.planning.observed import State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.sandboxes.kata import KataMachine
from tests.agent.vm.fake_vms import FakeVM, machine
from tests.pinning.world import Wish

TWO = Wish("2", policy="exclusive")  # the core 1,5
PLAIN = Wish()
FOUR = Wish("4")  # KubeVirt's dedicated CPUs: KubeVirt names the launcher's container compute


def pinned_pair(node: FakeNode) -> tuple[str, str]:
    """Run an exclusive and a plain container until both have their CPUs; return their ids."""
    node.add("a", TWO)
    node.add("b", PLAIN)
    owner, other = node.start("a"), node.start("b")
    node.run()
    assert (node.cpus(owner), node.cpus(other)) == ("1,5", "0,2-4,6-7")
    return owner, other


def container(state: NodeState, uid: str, name: str = "c0"):  # type: ignore[no-untyped-def]
    """Return one container of the state."""
    pod = next(pod for pod in state.pods if pod.uid == uid)
    return next(container for container in pod.containers if container.name == name)


def planned_start(node: FakeNode, uid: str, wish: Wish, state: State = State.RUNNING) -> str:
    """Create a pod, plan it in a pass, and start its container on every CPU; return the container's id."""
    node.add(uid, wish)
    node.run()
    return node.start(uid, state=state)


def planned_creation(node: FakeNode, watch: FakeWatch, uid: str, wish: Wish) -> str:
    """Create a pod, plan it in a pass, and create its container over NRI; return the container's id."""
    node.add(uid, wish)
    node.run()
    return watch.create(uid)


def run_later(node: FakeNode, seconds: float) -> NodeState:
    """Run a pass some seconds later."""
    node.time.now += seconds
    return node.run()


def in_machine(node: FakeNode, uid: str, *wishes: Wish, **facts: Any) -> KataMachine:
    """Run a pod in a Kata machine with these facts, and its first container; return the machine."""
    node.add(uid, *wishes)
    machine = node.kata.boot(uid, **facts)
    node.start(uid)
    return machine


def machine_state(state: NodeState) -> VMState:
    """Return the state of the virtual machine of pod a."""
    vm = next(pod for pod in state.pods if pod.uid == "a").vm
    assert vm is not None
    return vm


def launched(node: FakeNode, vm: FakeVM | None = None) -> str:
    """Run a launcher pod v with a virtual machine that owns CPUs 1,5 and 2,6; return its container's id."""
    number = node.deploy("v", FOUR, vm=True)
    node.vms.machines[number] = vm or machine(4, node.topology.online, worker=2)
    node.run()
    return number


def state_of(node: FakeNode) -> VMState:
    """Run a pass; return the state of the launcher's virtual machine."""
    state = node.run()
    vm = next(pod for pod in state.pods if pod.uid == "v").vm
    assert vm is not None
    return vm


def pins(node: FakeNode, number: str) -> list[str]:
    """Return the affinity of each vCPU of a virtual machine."""
    return list(map(str, node.vms.machines[number].vcpus))


def poll(node: FakeNode) -> bool:
    """Let the agent poll the thread counts of virtual machines."""
    return node.runner.run(node.agent.reconciler.vms.poll())
