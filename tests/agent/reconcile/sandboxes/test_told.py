"""What the runtime is told of a machine whose number of vCPUs it may choose by cpusets: nothing, or what it took once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.reconcile.vms import AFFINITY_ALONE, STILL_TOLD
from tests.agent.reconcile.scenes import PLAIN, TWO, container, machine_state

if TYPE_CHECKING:
    from tests.agent.fakes import FakeNode
    from tests.agent.reconcile.sandboxes.kata import KataMachine


def test_without_quota_the_masks_alone_keep_it(node: FakeNode) -> None:
    """By the cpusets of such containers Kata would choose the number of vCPUs: it is told none, and its user reads why."""
    node.add("a", TWO)
    machine = node.kata.boot("a", has_quota=False)
    node.start("a")
    state = node.run()

    assert node.runtime.calls == []
    assert str(machine.cpus()) == "1,5"
    assert container(state, "a").is_pinned
    assert machine_state(state).note == AFFINITY_ALONE


def without_its_limit(node: FakeNode) -> tuple[KataMachine, str]:
    """Run a machine whose only container with a quota has ended; return it, and the container that is left."""
    node.add("a", TWO, PLAIN)
    machine = node.kata.boot("a")
    ended, left = node.start("a", "c0"), node.start("a", "c1")
    node.run()
    assert set(map(str, machine.told.values())) == {"1,5"}
    node.stop(ended)
    node.remove(ended)
    machine.has_quota = False
    assert str(machine.cpus()) == "1,5"  # of what its containers were told this is left
    return machine, left


def test_runtime_that_took_cpusets_goes_on_being_told(node: FakeNode) -> None:
    """A container with a quota has ended: by what Kata took for the others it keeps the machine where it was."""
    machine, left = without_its_limit(node)
    state = node.run(passes=2)

    assert str(machine.told[left]) == str(machine.cpus()) == "0,2-4,6-7"
    assert machine_state(state).note == STILL_TOLD
    assert state.failures == ()


def test_runtime_that_took_cpusets_from_an_earlier_agent_is_told(node: FakeNode) -> None:
    """What it took is not known then: threads that cannot leave say that it took something."""
    machine, left = without_its_limit(node)
    node.agent = node.new_agent()
    state = node.run(passes=2)

    assert str(machine.told[left]) == str(machine.cpus()) == "0,2-4,6-7"
    assert state.failures == ()


def test_fixed_machine_is_told_without_a_quota(node: FakeNode) -> None:
    """A machine whose vCPUs cannot become more takes cpusets as any other."""
    node.add("a", TWO)
    machine = node.kata.boot("a", has_quota=False, is_fixed=True)
    node.start("a")
    node.run()

    assert str(machine.cpuset) == "1,5"
