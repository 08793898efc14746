"""Random pods with a budget: each container has as many CPUs as under the kubelet's static policy at pod scope."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from pinning.planning.observed import Owner
from tests.pinning.budgets import SIDECAR, budgeted, updated
from tests.pinning.world import reasons, world

PODS = 400


class Started(NamedTuple):
    """A container in start order; `cpus` are those of its slice, 0: none."""

    name: str
    cpus: int
    ends_first: bool  # an ordinary init container
    is_main: bool


def kubelet_counts(budget: int, containers: list[Started]) -> dict[str, int] | None:
    """Return the CPUs of each container as the kubelet 1.37.1 counts them, None if it rejects the pod.

    `policy_static.go`, allocatePodScope: init containers in their order, then the others. An ordinary init container
    without a slice runs on the set less the slices of sidecars before it; other containers without one share what all
    lasting slices leave.
    """
    pool = budget - sum(it.cpus for it in containers if not it.ends_first)
    found, left = {}, budget
    for it in containers:
        found[it.name] = it.cpus or (left if it.ends_first else pool)
        if not it.ends_first and not it.is_main:
            left -= it.cpus
    return found if all(found.values()) else None


def some_containers(budget: int, random: Random) -> list[Started]:
    """Return containers whose requests the API server accepts beside the budget."""
    found, left = [], budget
    for at in range(random.randint(0, 5)):
        is_sidecar = random.random() < 0.5
        cpus = random.randint(1, left) if left and random.random() < 0.5 else 0
        found.append(Started(f"i{at}", cpus, not is_sidecar, is_main=False))
        left -= cpus if is_sidecar else 0
    for at in range(random.randint(1, 4)):
        cpus = random.randint(1, left) if left and random.random() < 0.5 else 0
        found.append(Started(f"m{at}", cpus, ends_first=False, is_main=True))
        left -= cpus
    return found


@pytest.mark.parametrize("part", range(4))
def test_random_pods_have_the_counts_of_the_kubelet(part: int) -> None:
    """Random pods get as many CPUs as from the kubelet; where it rejects one, corepin reports an empty pool."""
    random = Random(f"counts {part}")  # noqa: S311 - the same pods in each run
    admitted = 0
    for _ in range(PODS // 4):
        budget = random.randint(1, 12)
        containers = some_containers(budget, random)
        inits = {
            it.name: (it.cpus or None, "" if it.ends_first else SIDECAR)
            for it in containers
            if not it.is_main
        }
        mains = {it.name: it.cpus or None for it in containers if it.is_main}
        node = world()
        planned = updated(
            node, budgeted("a", budget, mains, inits), *(it.name for it in containers if not it.ends_first)
        )
        expected = kubelet_counts(budget, containers)
        if expected is None:
            is_initial = all(
                it.cpus or it.ends_first for it in containers
            )  # only an init container has no CPU
            assert is_initial or reasons(planned) == {"test/pod-a": "PodPoolEmpty"}
            continue
        admitted += 1
        parts = {name: planned.run_sets.part(Owner("a", name)) for name in expected}
        assert {name: part and len(part.cpus) for name, part in parts.items()} == expected, containers
        assert not planned.refusals
    assert admitted > PODS // 16
