"""Pods of the kubelet's own tests of its static policy with the topology scope `pod`, by the CPUs of each container.

Facts of Kubernetes 1.37.1: TestStaticPolicyAllocatePod and TestValidatePodScopeResources of
`pkg/kubelet/cm/cpumanager/policy_static_test.go`, TestTopologyHintsPodLevelResources of `topology_hints_test.go`, and the
cases labelled `pod-scope` of `test/e2e_node/cpu_manager_test.go`. All 38 are here but what they say beside counts of CPUs:

- hints, because corepin places on NUMA nodes by its own policies (`tests/pinning/allocation/`);
- the quotas of two pods (`tests/pinning/planning/test_quota.py`), of which one has the counts of "e2e: a slice of the whole
  budget"; the other, with a limit and a request of 0, has those of "e2e: a pool alone";
- metrics.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from pinning.machine.cpuset import EMPTY, union
from pinning.planning.observed import Owner
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted, pool, put, runs, updated
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
    row("container scope: a slice, and a pool without users", 2, {"c": (1, 1)}),
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
    # The kubelet rejects the pod with an SMTAlignmentError, and corepin leaves the sibling idle.
    row("an odd count of whole cores", 3, {"a": (3, 3)}, {}, frozenset(), REQUIRE),
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
    row("hints: a fraction", 3, {"a": ("1500m", 3)}),
    row("hints: a slice", 3, {"a": (2, 2)}),
    row("e2e: a slice of the whole budget", 1, {"a": (1, 1)}),
    row("e2e: a pool alone", 1, {"a": (None, 1)}),
    row("e2e: two slices and a pool", 3, {"a": (1, 1), "b": (1, 1), "c": (None, 1)}),
    row("e2e: no CPU left for a container", 2, {"a": (1, 1), "b": (1, 1), "c": (None, None)}),
    row("e2e: slices and an init slice", 2, {"a": (1, 1), "b": (None, 1)}, {"i": (1, 1)}),
    row("e2e: many containers of the pool", 4, {f"c{at}": (None, 4) for at in range(10)}),
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


@pytest.mark.parametrize(
    ("cpu", "own"),
    [
        pytest.param(1, 1, id="two cases: a whole CPU, which the kubelet does not serve"),
        pytest.param(None, 0, id="e2e: no amount"),
        pytest.param("1500m", 0, id="hints: a fraction"),
    ],
)
def test_a_pod_that_requests_less_than_its_limit_has_no_pool(cpu: str | int | None, own: int) -> None:
    """A non-guaranteed pod has no pool: its containers are read as without its amounts, and refused if none has whole CPUs."""
    node = world()
    document = budgeted("a", 2, {"m": cpu})
    document["spec"]["resources"]["requests"]["cpu"] = "1"
    put(node, document)
    planned = node.plan()
    part = planned.run_sets.part(Owner("a", "m"))
    assert (pool(node), len(node.ledger.held), part is not None) == (EMPTY, own, bool(own))
    assert reasons(planned) == ({} if own else {"test/pod-a": "Invalid"})


def test_the_next_pod_gets_the_cpus_of_one_that_ended() -> None:
    """Two pods that each want most of the node run one after the other on the same CPUs."""
    node = world()
    found = []
    for uid, mains in (("a", {"m": 1, "p": None}), ("b", {"m": 1, "p": None}), ("c", {"m": 1})):
        updated(node, budgeted(uid, 13, mains))
        found.append(union(held.cpus for held in node.ledger.of_pod(uid)))
        del node.documents[uid]
    assert len(found[0]) == 13
    assert found == [found[0]] * 3


def test_a_pool_stays_while_one_of_its_containers_runs() -> None:
    """A container that ended gives nothing of the pool to another pod."""
    node = world()
    updated(node, budgeted("a", 2, {"short": None, "long": None}), "short", "long")
    node.stop(next(seen.id for seen in node.live() if seen.owner.container == "short"))
    updated(node, budgeted("b", 1, {"m": 1}, created=1), "m")
    assert runs(node, "long") == pool(node, "a")
    assert runs(node, "m", "b").isdisjoint(pool(node, "a"))
