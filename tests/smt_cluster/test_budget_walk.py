"""In-place resize of a pod's budget on a real cluster of one node with ten cores of two threads."""

from __future__ import annotations

from typing import Any

from pinning.machine.cpuset import CPUSet
from tests.environments.guest.cluster import MAIN
from tests.environments.guest.guest import Report
from tests.smt_cluster.budget_walk import BUDGETS, BYSTANDER, POOLED, SLICE


def cpus_of(container: dict[str, Any]) -> CPUSet:
    """Return the CPUs of a container: its cpuset, which must equal the masks of its two tasks."""
    assert container["allowed"] == [container["cpuset"]] * 2
    return CPUSet.parse(container["cpuset"])


def test_pool_is_the_budget_less_the_slice(claim_walk: Report) -> None:
    """Before and after each resize the pool is the budget less the slice, and no other container runs on either."""
    looks = claim_walk.all("budget")
    assert [(look["budget"], look["pool"]["budget"]) for look in looks] == [(it, it) for it in BUDGETS]
    for look in looks:
        own, pool = cpus_of(look[MAIN]), cpus_of(look[POOLED])
        assert [len(own), len(own | pool)] == [SLICE, look["budget"]]
        assert pool == CPUSet.parse(look["pool"]["cpus"])
        assert not (own | pool) & cpus_of(look[BYSTANDER])


def test_resize_of_the_budget_keeps_the_slice_and_cpus_of_the_pool(claim_walk: Report) -> None:
    """A resize keeps the slice's CPUs; the pool keeps its CPUs when it grows, and a subset of them when it shrinks."""
    looks = claim_walk.all("budget")
    assert len({look[MAIN]["cpuset"] for look in looks}) == 1
    first, grown, shrunk = (cpus_of(look[POOLED]) for look in looks)
    assert first <= grown >= shrunk
