"""Cores that are isolated by `isolcpus=` at boot; later agents do not see that they are isolated."""

from __future__ import annotations

from typing import Any

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.facts import cpus, owned_twice, shared, whole_cores
from tests.environments.guest.guest import Report
from tests.smt.conftest import ISOLATED

ISOLATED_CPUS = CPUSet.parse(ISOLATED)


def steps(node: Report) -> list[dict[str, Any]]:
    """Return the reports before the claims on whole cores, with all isolated cores taken, and with more claims."""
    found = node.all("isolcpus")
    assert [step["step"] for step in found] == ["alone", "claims", "late"]
    return found


def test_kernel_isolated_the_cpus(node: Report) -> None:
    """The kernel lists the CPUs as isolated."""
    assert [step["kernel"] for step in steps(node)] == [ISOLATED] * 3


def test_shared_set_has_no_isolated_cpu(node: Report) -> None:
    """A container without a claim may run on all but isolated CPUs, before and after other pods claim them."""
    alone, claims, _ = steps(node)

    assert cpus(alone, "bystander") == shared(alone) == CPUSet.parse(alone["online"]) - ISOLATED_CPUS
    assert not cpus(claims, "bystander") & ISOLATED_CPUS


def test_claims_of_whole_cores_take_isolated_cores_first(node: Report) -> None:
    """Two cores of CMK's resource and one under `require` are exactly the three isolated ones."""
    _, seen, _ = steps(node)

    assert len(cpus(seen, "isolated-cmk")) == 4
    assert whole_cores(cpus(seen, "isolated-cmk")) == cpus(seen, "isolated-cmk")
    assert cpus(seen, "isolated-cmk") | cpus(seen, "isolated-whole") == ISOLATED_CPUS
    assert owned_twice(seen) == CPUSet()


def test_claims_beyond_take_other_cores(node: Report) -> None:
    """When no isolated core is left the next claim takes one from the shared set, and no pod moves."""
    _, claims, late = steps(node)

    assert not cpus(late, "after-isolated") & ISOLATED_CPUS
    assert shared(late) == shared(claims) - cpus(late, "after-isolated")
    for pod in ("isolated-cmk", "isolated-whole"):
        assert cpus(late, pod) == cpus(claims, pod)
