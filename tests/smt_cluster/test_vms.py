"""A virtual machine in a real cluster on a machine whose cores have two threads."""

from __future__ import annotations

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.guest import Report
from tests.environments.guest.machine import CORES
from tests.environments.vm.seen import Seen


def test_installed_agent_pins_a_machine(walk: Report) -> None:
    """The installed agent pins guest siblings to host siblings, keeps all threads on these CPUs, and reports it."""
    fact = walk.one("vm")
    seen = Seen.of(fact["seen"])

    assert CPUSet(seen.one_each() or ()) in CORES[1:]
    assert seen.all() == CPUSet(seen.one_each() or ())
    assert fact["told"]["vcpus"] == list(seen.vcpus)
    assert fact["told"]["oneToOne"] is True
