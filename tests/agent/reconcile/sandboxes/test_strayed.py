"""Threads of a machine that another program moved within the machine's CPUs: the next pass or poll detects them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from tests.agent.reconcile.scenes import TWO, machine_state

if TYPE_CHECKING:
    from tests.agent.fakes import FakeNode


def test_io_thread_that_a_pass_finds_elsewhere_is_put_back_by_that_pass(node: FakeNode) -> None:
    """A pass that finds an I/O thread on wrong CPUs moves it back, because polls compare only with what a pass read."""
    node.add("a", TWO)
    machine = node.kata.boot("a")
    node.start("a")
    before = machine_state(node.run(passes=2))
    assert list(map(str, before.vcpus)) == ["1", "5"]

    machine.masks["iothread"] = CPUSet.parse("1")
    state = node.run()

    assert machine_state(state) == before
    assert str(machine.allowed("iothread")) == "1,5"
