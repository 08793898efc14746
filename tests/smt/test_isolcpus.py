"""The same machine booted with `isolcpus=`."""

from __future__ import annotations

from pinning.machine.cpuset import CPUSet
from tests.smt.conftest import ISOLATED
from tests.smt.facts import cpus, owned_twice, shared, whole_cores
from tests.smt.guest import Report

ISOLATED_CPUS = CPUSet.parse(ISOLATED)


def test_scenario_comes_to_its_end(isolated_node: Report) -> None:
    """Agent and kernel agreed after every step, and no pass of the agent met a bug."""
    assert isolated_node.facts.get("unsettled", []) == []
    assert isolated_node.one("log")["crashes"] == []


def test_kernel_isolated_the_cpus(isolated_node: Report) -> None:
    """The kernel says that the CPUs are isolated."""
    assert isolated_node.one("boot")["isolated"] == ISOLATED


def test_shared_set_has_no_isolated_cpu(isolated_node: Report) -> None:
    """A container without a claim may run everywhere but on isolated CPUs, before and after somebody claims them."""
    alone, claims = isolated_node.one("alone"), isolated_node.one("claims")

    assert cpus(alone, "bystander") == shared(alone) == CPUSet.parse(alone["online"]) - ISOLATED_CPUS
    assert not cpus(claims, "bystander") & ISOLATED_CPUS


def test_claims_of_whole_cores_take_isolated_cores_first(isolated_node: Report) -> None:
    """Two cores of CMK's resource and one under `require` are exactly the three isolated ones."""
    seen = isolated_node.one("claims")

    assert len(cpus(seen, "cmk")) == 4
    assert whole_cores(cpus(seen, "cmk")) == cpus(seen, "cmk")
    assert cpus(seen, "cmk") | cpus(seen, "whole") == ISOLATED_CPUS
    assert owned_twice(seen) == CPUSet()


def test_claims_beyond_take_other_cores(isolated_node: Report) -> None:
    """When no isolated core is left the next claim takes one from the shared set, and moves nobody."""
    claims, late = isolated_node.one("claims"), isolated_node.one("late")

    assert not cpus(late, "late") & ISOLATED_CPUS
    assert shared(late) == shared(claims) - cpus(late, "late")
    assert [cpus(late, pod) for pod in ("cmk", "whole")] == [cpus(claims, pod) for pod in ("cmk", "whole")]
