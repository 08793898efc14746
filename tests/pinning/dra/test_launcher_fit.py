"""KubeVirt's launcher on the CPUs of its claim: it needs at least as many CPUs as its machine has threads.

virt-launcher takes them from a pool (`NewRelaxedCPUPool`) that ends the machine with "not enough exclusive threads
provided" where it is too small, and leaves the rest unused where it is larger.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pinning.machine.cpuset import CPUSet
from tests.pinning.dra.claiming import ClaimWorld, claim
from tests.pinning.nodes import smt_machine


class Machine(NamedTuple):
    """CPUs that a virtual machine needs."""

    vcpus: int
    io_threads: int = 0  # the supplemental pool
    emulator: int = 0  # 1, or 2 for an even number

    @property
    def asked(self) -> int:
        """The amount in the claim that KubeVirt makes."""
        return self.vcpus + self.io_threads + self.emulator

    def fits(self, cpus: CPUSet) -> bool:
        """Return whether the launcher finds a CPU for each thread: more are fine, fewer are not."""
        return len(cpus) >= self.asked


@pytest.mark.parametrize("threads", [1, 2], ids=["one thread", "SMT-2"])
@pytest.mark.parametrize(
    "machine",
    [Machine(1), Machine(1, 0, 1), Machine(2, 0, 1), Machine(4, 1, 2), Machine(8, 2, 1), Machine(10)],
    ids=str,
)
def test_launcher_finds_enough_cpus_in_its_claim(machine: Machine, threads: int) -> None:
    """The scheduler rounds 11 up to 12 on cores of two threads; all 12 are given."""
    node = ClaimWorld(smt_machine(16) if threads > 1 else smt_machine(16, threads=1))
    consumed = -(-machine.asked // threads) * threads
    node.claims(claim("vmi-1-cpu", consumed))
    node.run_all()
    given = CPUSet.parse(node.held("vmi-1-cpu"))
    assert machine.fits(given)
    assert len(given) == consumed
    assert node.topology.siblings_of(given) == given


@pytest.mark.parametrize(("given", "fits"), [(10, False), (11, True), (12, True)])
def test_rule_of_the_launcher(given: int, fits: bool) -> None:
    """8 vCPUs, 2 I/O threads and the emulator need 11."""
    assert Machine(8, 2, 1).fits(CPUSet(range(given))) is fits
