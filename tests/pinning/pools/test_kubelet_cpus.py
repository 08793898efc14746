"""Random pods with a budget: each container has the CPUs that the kubelet's static policy chooses at pod scope.

Without SMT policies and alignment to caches, as the kubelet without options. Where the kubelet's choice uses more NUMA
nodes than needed, corepin's differs (`packed` in docs/choices.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Owner
from tests.pinning.budgets import SIDECAR, budgeted, put
from tests.pinning.kubelet_model import CPUs, Model
from tests.pinning.random_pods import machine_called, seeded
from tests.pinning.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

MACHINES = ["smt", "snc", "epyc-7451", "epyc-9754", "opteron-drachma"]
PODS = 100


def some_slices(budget: int, random: Random) -> dict[str, int]:
    """Return lasting containers in start order, sidecars first, with the CPUs of their slices; 0: none."""
    found, left = {}, budget
    for at in range(random.randint(1, 5)):
        found[f"c{at}"] = random.randint(1, left) if left and random.random() < 0.5 else 0
        left -= found[f"c{at}"]
    return found


def chosen(model: Model, free: CPUs, budget: int, slices: dict[str, int]) -> dict[str, CPUs] | None:
    """Return the CPUs of each container as the kubelet 1.37.1 chooses them; None: on more NUMA nodes than needed.

    `policy_static.go`, allocatePodScope: the CPUs of the pod first, and slices of these in start order.
    """
    left = model.packed(free, budget)
    if not is_narrow(model, free, left):
        return None
    found = {}
    for name, count in slices.items():
        if count:
            found[name] = model.packed(left, count)
            if not is_narrow(model, left, found[name]):
                return None
            left -= found[name]
    return {name: found.get(name, left) for name in slices}


def is_narrow(model: Model, free: CPUs, taken: CPUs) -> bool:
    """Return whether CPUs are on as few NUMA nodes as that many free ones can be."""
    rooms = sorted((len(node & free) for node in model.node.values()), reverse=True)
    used = sum(not node.isdisjoint(taken) for node in model.node.values())
    return sum(rooms[: used - 1]) < len(taken)


def births(machine: str) -> Iterator[tuple[dict[str, CPUs], dict[str, CPUs]]]:
    """Yield the CPUs of each new pod's containers here and under the kubelet, while pods come and go."""
    random, topology = seeded(f"kubelet {machine}"), machine_called(machine)
    node, model = World(topology, NodeConfig(align_uncore=False)), Model(topology)
    for number in range(PODS):
        free = frozenset(node.sets.allocatable - node.ledger.exclusive)
        if node.documents and len(free) < len(topology.online) // 2:
            del node.documents[random.choice(list(node.documents))]
            node.plan()
            free = frozenset(node.sets.allocatable - node.ledger.exclusive)
        budget = random.randint(1, max(1, len(free) // 2))
        slices = some_slices(budget, random)
        expected = chosen(model, free, budget, slices)
        *sidecars, main = slices
        inits: dict[str, tuple[str | int | None, str]] = {
            it: (slices[it] or None, SIDECAR) for it in sidecars
        }
        put(node, budgeted(f"u{number}", budget, {main: slices[main] or None}, inits, created=number))
        planned = node.plan()
        if expected and all(expected.values()):
            parts = {name: planned.run_sets.part(Owner(f"u{number}", name)) for name in slices}
            yield (
                {name: frozenset(part.cpus) if part else frozenset() for name, part in parts.items()},
                expected,
            )


@pytest.mark.parametrize("machine", MACHINES)
def test_random_pods_have_the_cpus_of_the_kubelet(machine: str) -> None:
    """The CPUs of the pod are the kubelet's, and so are the slices cut from them and the pool that is left."""
    compared = list(births(machine))
    assert len(compared) > PODS // 10
    for found, expected in compared:
        assert found == expected
