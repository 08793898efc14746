"""Random pods with budgets on small machines and on those of the test data, for property tests."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

from pinning.machine.topology import Topology
from tests.machines import captured
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted
from tests.pinning.nodes import SNC, smt_machine

TOPOLOGIES = {
    "smt": smt_machine(8, 2),
    "snc": SNC,
    "four nodes": smt_machine(8, 4, "6-7,14-15"),
}


@cache
def machine_called(name: str) -> Topology:
    """Return a small machine or one of the test data."""
    return TOPOLOGIES.get(name) or captured(name)


def seeded(text: str) -> Random:
    """Return a generator that gives the same sequence in each run."""
    return Random(text)  # noqa: S311 - no secret


def some_pod(uid: str, random: Random, *, is_plain: bool = False, most: int = 7) -> dict[str, Any]:
    """Return a pod with a budget, whose slices fit in it."""
    budget = random.randint(1, most)
    left, containers, annotations = budget, {}, dict(EXCLUSIVE)
    inits: dict[str, tuple[str | int | None, str]] = {}
    for at in range(random.randint(1, 3)):
        cpu = random.choice([None, random.randint(1, max(1, left))]) if left else None
        containers[f"c{at}"] = cpu
        left -= cpu or 0
    if left and random.random() < 0.4:
        cpu = random.choice([None, random.randint(1, left)])
        inits["side"] = (cpu, SIDECAR)
        left -= cpu or 0
    if random.random() < 0.4:
        most = budget - (inits.get("side", (0, ""))[0] or 0)  # type: ignore[operator]
        inits["init"] = (random.choice([None, random.randint(1, most)]) if most else None, "")
    if not is_plain:
        if random.random() < 0.2:
            annotations["cpu-manager.corepin.io/container.c0"] = "share"
        for family, words in (
            ("smt-policy", ("prefer", "require", "isolate")),
            ("numa-policy", ("packed", "single", "distributed")),
        ):
            if random.random() < 0.3:
                annotations[f"{family}.corepin.io/{random.choice(['pod', 'container.c0'])}"] = random.choice(
                    words
                )
    return budgeted(uid, budget, containers, inits, annotations)
