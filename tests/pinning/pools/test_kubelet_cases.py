"""Pods of the kubelet's own tests of its static policy with the topology scope `pod`, by the CPUs of each container.

Facts of Kubernetes 1.37.1, `pkg/kubelet/cm/cpumanager/policy_static_test.go`: TestStaticPolicyAllocatePod and
TestValidatePodScopeResources. Not here: pods without a budget, and `full-pcpus-only` with an odd count, which corepin
serves with an idle sibling.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pinning.machine.cpuset import union
from pinning.planning.observed import Owner
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted, pool, put
from tests.pinning.world import reasons, world

REQUIRE = {"smt-policy.corepin.io/pod": "require"}


class Row(NamedTuple):
    """A pod and the number of CPUs on which each of its containers runs."""

    budget: int
    # Of each container: its whole CPUs or amount, and on how many CPUs it runs; None: in no pool, because it is empty.
    mains: dict[str, tuple[str | int | None, int | None]]
    inits: dict[str, tuple[str | int | None, int | None]] = {}  # noqa: RUF012 never changed
    sidecars: frozenset[str] = frozenset()
    annotations: dict[str, str] = EXCLUSIVE


def row(name: str, *args: object) -> object:
    """Return a parameter called so."""
    return pytest.param(Row(*args), id=name)  # type: ignore[arg-type]


ROWS = [
    row("a slice, and a pool without users", 2, {"c": (1, 1)}),
    row("a pool alone", 1, {"c": (None, 1)}),
    row("two slices and a pool", 3, {"a": (1, 1), "b": (1, 1), "c": (None, 1)}),
    row("init slices", 2, {"a": (1, 1), "b": (1, 1)}, {"i": (1, 1), "j": (1, 1)}),
    row(
        "a sidecar's slice between init containers",
        3,
        {"a": (1, 1), "b": (None, 1)},
        {"i": (None, 3), "s": (1, 1), "j": (None, 2)},
        frozenset("s"),
    ),
    row(
        "a sidecar in the pool between init containers",
        3,
        {"a": (1, 1), "b": (None, 2)},
        {"i": (None, 3), "s": (None, 2), "j": (None, 3)},
        frozenset("s"),
    ),
    row("no CPU left for a container", 2, {"a": (1, 1), "b": (1, 1), "c": (None, None)}),
    row("whole cores", 4, {"a": (2, 2), "b": (2, 2)}, {}, frozenset(), REQUIRE),
    row("half a slice", 4, {"a": (2, 2), "b": (None, 2)}),
    row("slices alone", 4, {"a": (2, 2), "b": (2, 2)}),
    row("two containers of the pool", 4, {"a": (None, 4), "b": (None, 4)}),
    row("a fraction in the pool", 6, {"a": (3, 3), "b": (2, 2), "c": ("500m", 1), "d": (None, 1)}),
    row("no CPU left beside two sizes", 5, {"a": (3, 3), "b": (2, 2), "c": (None, None)}),
    row("init and sidecar slices", 2, {"a": (None, 1)}, {"i": (1, 1), "s": (1, 1)}, frozenset("s")),
    row("an init container with all CPUs", 2, {"a": (2, 2)}, {"i": (2, 2)}),
    row(
        "an init container before a sidecar with all CPUs",
        2,
        {},
        {"i": (None, 2), "s": (2, 2)},
        frozenset("s"),
    ),
    row(
        "an init container after a sidecar with all CPUs",
        2,
        {"a": (None, None)},
        {"s": (2, 2), "i": (None, None)},
        frozenset("s"),
    ),
    row("a sidecar beside one with all CPUs", 2, {}, {"s": (2, 2), "t": (None, None)}, frozenset("st")),
    row("a sidecar's slice and a slice", 2, {"a": (1, 1)}, {"s": (1, 1)}, frozenset("s")),
]


@pytest.mark.parametrize("given", ROWS)
def test_containers_have_as_many_cpus_as_under_the_kubelet(given: Row) -> None:
    """Slices are those of the kubelet, the others run in the pool of their pod, and an empty pool is reported."""
    inits = {name: (cpu, SIDECAR if name in given.sidecars else "") for name, (cpu, _) in given.inits.items()}
    mains = {name: cpu for name, (cpu, _) in given.mains.items()}
    node = world()
    put(node, budgeted("a", given.budget, mains, inits, given.annotations))
    planned = node.plan()
    expected = {name: count for name, (_, count) in {**given.inits, **given.mains}.items()}
    parts = {name: planned.run_sets.part(Owner("a", name)) for name in expected}
    assert {name: part and len(part.cpus) for name, part in parts.items()} == expected
    lasting = (held for held in node.ledger.of_pod("a") if held.is_pool or held.is_lasting_slice)
    assert len(union(held.cpus for held in lasting)) == given.budget
    assert all(part.cpus <= node.ledger.exclusive for part in parts.values() if part)
    reported = {"test/pod-a": "PodPoolEmpty"} if None in expected.values() else {}
    assert reasons(planned) == reported
    assert bool(pool(node)) == (
        not reported and sum(len(held.cpus) for held in node.ledger if held.is_lasting_slice) < given.budget
    )
