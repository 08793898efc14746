"""Affinity of a container's tasks when it runs on more CPUs than it owns, and their new masks when those change. Pure.

The cpuset bounds all tasks of a container; whether a task stays on the container's own CPUs is set by its own mask.
"""

from __future__ import annotations

from typing import NamedTuple

from pinning.machine.cpuset import EMPTY, CPUSet


class Parts(NamedTuple):
    """The CPUs of a container in two parts, or in one if `home` is empty."""

    home: CPUSet  # CPUs of tasks that the application does not place itself: its own, or the shared set
    others: CPUSet  # pools shared with other containers

    @property
    def cpus(self) -> CPUSet:
        """CPUs of both parts together."""
        return self.home | self.others

    def within(self, cpus: CPUSet) -> Parts:
        """Return both parts without CPUs outside of `cpus`."""
        return Parts(self.home & cpus, self.others & cpus)


NO_PARTS = Parts(EMPTY, EMPTY)


class Tally(NamedTuple):
    """Number of a container's tasks by the part that they may run on."""

    home: int = 0
    others: int = 0
    both: int = 0


def parts_of(cpus: CPUSet, home: CPUSet) -> Parts:
    """Return the two parts of a cpuset."""
    return Parts(home, cpus - home if home else cpus)


def is_away(mask: CPUSet, parts: Parts) -> bool:
    """Return whether a task's mask excludes the container's home."""
    return bool(parts.home) and mask.isdisjoint(parts.home)


def follow(mask: CPUSet, before: Parts, after: Parts, *, was_away: bool = False) -> CPUSet:
    """Return the new mask of a task with mask `mask` when the CPUs of its container change; never empty.

    A task stays in its part: on the whole part if it had all of it, else on the CPUs that are left of its mask. A
    task that left home (`was_away`, if the mask no longer shows it) is not moved back. Tasks that may run on all
    CPUs move to the home part when the container gets two parts; afterwards the application decides.
    """
    if not after.home:
        return after.cpus if _had_all(mask, before) else (mask & after.cpus) or after.cpus
    if not before.home and not was_away:
        return _divided(mask, before, after)
    if was_away or is_away(mask, before):
        return _on(after.others, mask, before.others) or after.home
    if mask <= before.home:
        return _on(after.home, mask, before.home)
    return after.cpus if before.cpus <= mask else (mask & after.cpus) or after.home


def _divided(mask: CPUSet, before: Parts, after: Parts) -> CPUSet:
    """Return the new mask of a task whose container had one part; a task that chose CPUs keeps those within home."""
    if before.cpus <= mask:
        return after.home
    return (mask & after.home) or (mask & after.others) or after.home


def _on(part: CPUSet, mask: CPUSet, had: CPUSet) -> CPUSet:
    return part if had <= mask else (mask & part) or part


def _had_all(mask: CPUSet, parts: Parts) -> bool:
    return any(part and part <= mask for part in (parts.home, parts.others, parts.cpus))
