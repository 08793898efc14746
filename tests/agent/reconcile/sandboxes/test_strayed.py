"""Threads of a machine that moved inside of its CPUs: the next reading, of a pass or a poll, shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from tests.agent.reconcile.scenes import TWO, machine_state

if TYPE_CHECKING:
    from tests.agent.fakes import FakeNode


def test_io_thread_that_a_pass_finds_elsewhere_is_put_back_by_that_pass(node: FakeNode) -> None:
    """Polls compare with the last reading: what a pass has read would stay until the next sweep otherwise."""
    node.add("a", TWO)
    machine = node.kata.boot("a")
    node.start("a")
    before = machine_state(node.run(passes=2))
    assert list(map(str, before.vcpus)) == ["1", "5"]

    machine.masks["iothread"] = CPUSet.parse("1")
    state = node.run()

    assert machine_state(state) == before
    assert str(machine.allowed("iothread")) == "1,5"
