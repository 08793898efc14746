"""Pools of pods with a budget that shrinks, on a machine with two NUMA nodes: which CPUs they keep."""

from __future__ import annotations

import pytest

from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import Owner
from tests.pinning.budgets import EXCLUSIVE, budgeted, pool, started, taken, updated
from tests.pinning.devices import GPU
from tests.pinning.world import World, reasons, world

CASES: dict[str, tuple[dict[str, str], int | None, int, int, str, str]] = {
    # On 1-3,9-11 (node 0) and 4-7,12-15 (node 1): the policies of the pod, slice, budgets, and the pool before and after.
    "on the node of the slice": ({}, 3, 9, 4, "1,6-7,13-15", "13"),
    "all of that node, and one beside": ({}, 1, 10, 3, "4-7,9,12-15", "4,9"),
    "whole cores": ({"smt": "require"}, 3, 8, 4, "1,6-7,9,14", "6"),
    "whole cores, and the sibling that was idle": ({"smt": "require"}, 3, 8, 7, "1,6-7,9,14", "6-7,14-15"),
    "a thread of each core": ({"smt": "isolate"}, 2, 5, 3, "1,6-7", "6"),
    "evenly over both nodes": ({"numa": "distributed"}, 2, 10, 6, "2-6,10,12-13", "3-4,6,12"),
    "a pool without slices": ({}, None, 9, 3, "1,4-7,12-15", "4-5,12"),
}


def asking(policies: dict[str, str]) -> dict[str, str]:
    """Return the pod-wide annotations of these policies and of a budget."""
    return EXCLUSIVE | {f"{family}-policy.corepin.io/pod": word for family, word in policies.items()}


def resized(policies: dict[str, str], own: int | None, budgets: tuple[int, int]) -> tuple[World, str]:
    """Return a node after a resize of a pod's budget, and the CPUs of its pool before."""
    node = started(
        budgeted("a", budgets[0], {"m": own, "p": None}, None, asking(policies)),
        "m",
        "p",
        node=world(sockets=2),
    )
    before = str(pool(node))
    assert not updated(
        node, budgeted("a", budgets[1], {"m": own, "p": None}, None, asking(policies))
    ).refusals
    return node, before


@pytest.mark.parametrize(
    ("policies", "own", "big", "small", "before", "after"), CASES.values(), ids=list(CASES)
)
def test_a_pool_that_shrinks_keeps_the_cpus_nearest_to_the_slices(
    policies: dict[str, str], own: int | None, big: int, small: int, before: str, after: str
) -> None:
    """A pool gives back the CPUs of the other NUMA node first, unless it is distributed or the pod has no slice."""
    node, had = resized(policies, own, (big, small))
    assert (had, str(pool(node)), taken(node)) == (before, after, small)


def test_a_pool_that_shrinks_under_a_policy_that_does_not_fit_keeps_a_packed_subset() -> None:
    """Without room for the new SMT policy the pool shrinks under the old one."""
    document = budgeted("a", 9, {"m": 1, "p": None}, None, asking({"smt": "prefer"}))
    node = started(document, "m", "p", node=world(sockets=2))
    assert reasons(
        updated(node, budgeted("a", 8, {"m": 1, "p": None}, None, asking({"smt": "isolate"})))
    ) == {"test/pod-a": "KeepsOldPolicy"}
    assert str(pool(node)) == "4-7,12-14"


def test_a_pool_that_shrinks_stays_on_its_cpus_if_the_nearest_ones_are_too_few() -> None:
    """A pool whose SMT policy changes at the same time loses CPUs and gets no others."""
    words = {"smt": "isolate", "numa": "distributed"}
    node = started(
        budgeted("a", 4, {"m": 2, "p": None}, None, asking(words)), "m", "p", node=world(sockets=2)
    )
    assert str(pool(node)) == "6-7"
    assert not updated(
        node, budgeted("a", 2, {"m": 1, "p": None}, None, asking({"numa": "distributed"}))
    ).refusals
    assert str(pool(node)) == "6"


@pytest.mark.parametrize(("big", "before"), [(9, "1-3,5,9-11"), (10, "1-3,5,9-11,13")])
def test_a_pool_beside_devices_keeps_the_cpus_near_them(big: int, before: str) -> None:
    """A pool beside devices on NUMA node 0 gives back the CPUs of node 1 first, where the pod's slice is."""
    node = world(sockets=2)
    node.devices[Owner("a", "p")] = (Device(GPU, CPUSet([0])),)
    started(budgeted("a", big, {"m": 2, "p": None}), "m", "p", node=node)
    assert (str(node.ledger.of_pod("a")[0].cpus), str(pool(node))) == ("4,12", before)
    assert not updated(node, budgeted("a", 5, {"m": 2, "p": None})).refusals
    assert str(pool(node)) == "1-2,9"
