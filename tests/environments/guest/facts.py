"""Snapshots that the guest reported: the CPUs of each pod."""

from __future__ import annotations

from typing import Any

from pinning.machine.cpuset import EMPTY, CPUSet, union

Snapshot = dict[str, Any]
CORES = [CPUSet((first, first + 1)) for first in range(0, 16, 2)]
SOCKETS = [CPUSet.parse("0-7"), CPUSet.parse("8-15")]
ALL = CPUSet.parse("0-15")


def cpus(snapshot: Snapshot, pod: str) -> CPUSet:
    """Return the CPUs of a pod's container: its cpuset, which must equal the masks of its two tasks."""
    seen = snapshot["pods"][pod]
    assert len(seen["tasks"]) == 2
    assert seen["allowed"] == [seen["cpuset"]]
    return CPUSet.parse(seen["cpuset"])


def idle(snapshot: Snapshot, pod: str) -> CPUSet:
    """Return the siblings kept idle for a pod."""
    return CPUSet.parse(snapshot["held"][pod]["idle"])


def others(snapshot: Snapshot, pod: str) -> CPUSet:
    """Return the CPUs of all other pods."""
    return union(cpus(snapshot, other) for other in snapshot["pods"] if other != pod)


def shared(snapshot: Snapshot) -> CPUSet:
    """Return the shared set."""
    return CPUSet.parse(snapshot["sets"]["shared"])


def whole_cores(these: CPUSet) -> CPUSet:
    """Return all CPUs of the cores of `these`."""
    return union(core for core in CORES if core & these)


def owners(snapshot: Snapshot) -> list[str]:
    """Return the pods that own their CPUs."""
    return [pod for pod, held in snapshot["held"].items() if held["policy"] == "exclusive"]


def owned_twice(snapshot: Snapshot) -> CPUSet:
    """Return CPUs that an owner has or keeps idle, and that other pods may use or keep idle too."""
    twice = EMPTY
    for owner in owners(snapshot):
        mine = cpus(snapshot, owner) | idle(snapshot, owner)
        twice |= mine & others(snapshot, owner)
        twice |= mine & union(idle(snapshot, other) for other in owners(snapshot) if other != owner)
    return twice


def lost_cpus(snapshot: Snapshot) -> CPUSet:
    """Return the online CPUs that are neither shared, nor owned, nor kept idle: the lost ones."""
    held = union(
        CPUSet.parse(container["cpus"]) | CPUSet.parse(container["idle"])
        for container in snapshot["held"].values()
    )
    return CPUSet.parse(snapshot["online"]) - held - shared(snapshot)
