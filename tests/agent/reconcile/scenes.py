"""Scenes that tests of passes share: an owner and a plain container beside it, on FLAT with CPUs 0 and 4 reserved."""

from __future__ import annotations

from agent.node_state import NodeState, VMState
from tests.agent.fakes import FakeNode
from tests.pinning.world import Wish

TWO = Wish("2", policy="exclusive")  # the core 1,5
PLAIN = Wish()


def pinned_pair(node: FakeNode) -> tuple[str, str]:
    """Run an exclusive container and a plain one until both are where they belong; return their ids."""
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


def machine_state(state: NodeState) -> VMState:
    """Return what is said of the machine of the pod a."""
    vm = next(pod for pod in state.pods if pod.uid == "a").vm
    assert vm is not None
    return vm
