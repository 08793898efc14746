"""Runtime updates of machines without a quota, where Kata derives the number of vCPUs from cpusets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.vms import AFFINITY_ALONE, STILL_SENT
from tests.agent.reconcile.scenes import PLAIN, TWO, container, machine_state

if TYPE_CHECKING:
    from tests.agent.fakes import FakeNode
    from tests.agent.reconcile.sandboxes.kata import KataMachine


def test_without_a_quota_the_runtime_is_sent_no_cpuset(node: FakeNode) -> None:
    """Without a quota the agent sends the runtime no cpuset, and the state notes that only affinities confine the machine."""
    node.add("a", TWO)
    machine = node.kata.boot("a", has_quota=False)
    node.start("a")
    state = node.run()

    assert node.runtime.calls == []
    assert str(machine.cpus()) == "1,5"
    assert container(state, "a").is_pinned
    assert machine_state(state).note == AFFINITY_ALONE


def without_its_limit(node: FakeNode) -> tuple[KataMachine, str]:
    """Run a machine whose only container with a quota has ended; return the machine and the remaining container."""
    node.add("a", TWO, PLAIN)
    machine = node.kata.boot("a")
    ended, left = node.start("a", "c0"), node.start("a", "c1")
    node.run()
    assert set(map(str, machine.told.values())) == {"1,5"}
    node.stop(ended)
    node.remove(ended)
    machine.has_quota = False
    assert str(machine.cpus()) == "1,5"  # the union of the cpusets sent for containers that still exist
    return machine, left


def test_runtime_that_took_cpusets_is_still_updated(node: FakeNode) -> None:
    """If the runtime got cpusets before the container with a quota ended, the agent still sends them, with a note."""
    machine, left = without_its_limit(node)
    state = node.run(passes=2)

    assert str(machine.told[left]) == str(machine.cpus()) == "0,2-4,6-7"
    assert machine_state(state).note == STILL_SENT
    assert state.failures == ()


def test_accepted_cpuset_is_recognized_after_a_restart(node: FakeNode) -> None:
    """A restarted agent detects that the runtime accepted a cpuset, because threads cannot leave it."""
    machine, left = without_its_limit(node)
    node.agent = node.new_agent()
    state = node.run(passes=2)

    assert str(machine.told[left]) == str(machine.cpus()) == "0,2-4,6-7"
    assert state.failures == ()


def test_fixed_machine_is_sent_no_quota(node: FakeNode) -> None:
    """If a machine has a fixed number of vCPUs, the agent sends its cpusets even without a quota."""
    node.add("a", TWO)
    machine = node.kata.boot("a", has_quota=False, is_fixed=True)
    node.start("a")
    node.run()

    assert str(machine.cpuset) == "1,5"
