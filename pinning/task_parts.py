"""Where the tasks of a container stay that runs on more CPUs than it owns, and where each goes when these change. Pure.

A cpuset holds all tasks of a container; which of them keep to its own CPUs is a matter of each task's own mask.
"""

from __future__ import annotations

from typing import NamedTuple

from pinning.machine.cpuset import EMPTY, CPUSet


class Parts(NamedTuple):
    """The CPUs of a container in two parts, or in one when `home` is empty."""

    home: CPUSet  # where tasks stay that nobody moved: its own CPUs, or the shared set
    others: CPUSet  # pools that others run on too

    @property
    def cpus(self) -> CPUSet:
        """All of them."""
        return self.home | self.others

    def within(self, cpus: CPUSet) -> Parts:
        """Return what is left of both parts where only these can be used."""
        return Parts(self.home & cpus, self.others & cpus)


NO_PARTS = Parts(EMPTY, EMPTY)


class Tally(NamedTuple):
    """How many tasks of a container may run on which part of its CPUs."""

    home: int = 0
    others: int = 0
    both: int = 0


def parts_of(cpus: CPUSet, home: CPUSet) -> Parts:
    """Return the parts of a cpuset."""
    return Parts(home, cpus - home)


def is_away(mask: CPUSet, parts: Parts) -> bool:
    """Say whether a task keeps off its container's home."""
    return bool(parts.home) and mask.isdisjoint(parts.home)


def follow(mask: CPUSet, before: Parts, after: Parts, *, was_away: bool = False) -> CPUSet:
    """Return where a task goes that may run on `mask` when the CPUs of its container change; never nowhere.

    It stays on the part that it is on: on all of it if it had all, else on what is left of its choice. Who was away
    (`was_away`, where a mask does not show it any more) never comes home by itself. Tasks that may run everywhere go
    home when parts are made, and choose again from then on.
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
    """Return where a task goes whose container had one part: whoever chose some CPUs keeps those that are its own."""
    if before.cpus <= mask:
        return after.home
    return (mask & after.home) or (mask & after.others) or after.home


def _on(part: CPUSet, mask: CPUSet, had: CPUSet) -> CPUSet:
    return part if had <= mask else (mask & part) or part


def _had_all(mask: CPUSet, parts: Parts) -> bool:
    return any(part and part <= mask for part in (parts.home, parts.others, parts.cpus))
