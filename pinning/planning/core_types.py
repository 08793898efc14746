"""Core types of hybrid machines: the CPUs that a claim may take, and in which order. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.contract import CoreType
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import EFFICIENCY, PERFORMANCE

if TYPE_CHECKING:
    from pinning.machine.topology import Topology

_NAMES: Final = {
    CoreType.PERFORMANCE: PERFORMANCE,
    CoreType.EFFICIENT: EFFICIENCY,
}  # as the topology names them


def cpus_of_type(topology: Topology, word: CoreType) -> CPUSet:
    """Return the CPUs of the cores that a word allows; none where the kernel names no core types."""
    if word is CoreType.ANY:
        return topology.cpus
    return topology.core_types.get(_NAMES[word], EMPTY)


def regions(topology: Topology, word: CoreType, own: CPUSet = EMPTY) -> list[CPUSet]:
    """Return the CPU sets to try in turn: for `any` each type, the one with most own CPUs first, then all CPUs.

    Without own CPUs the performance cores come first.
    """
    types = topology.core_types
    if word is not CoreType.ANY or len(types) < 2:
        return [cpus_of_type(topology, word)]
    names = sorted(types, key=lambda name: (-len(types[name] & own), name != PERFORMANCE, name))
    return [*(types[name] for name in names), topology.cpus]


def regions_of_kept(topology: Topology, word: CoreType, kept: CPUSet, cpus_needed: int) -> list[CPUSet]:
    """Return the CPU sets to try for a placement that changes its size: types that have all of it, or enough."""
    *types, every = regions(topology, word, kept)
    staying = [cpus for cpus in types if kept <= cpus or len(kept & cpus) >= cpus_needed]
    return [*staying, every]
