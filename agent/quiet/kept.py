"""Lookup of the interrupts that stay on quiet CPUs by the `irq-policy` of pods.

Names of interrupts and the interrupts of devices are read when the policies or the interrupts change, and once a
minute, because a new interrupt has a number before its driver names it.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain, zip_longest
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused
from agent.node_state import KeptInterrupts
from agent.quiet.interfaces import few
from logs.printable import plain
from pinning.machine.cpuset import EMPTY
from pinning.machine.interrupts import NO_STAY
from pinning.planning.noise import match_globs, note_of, stays_of
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from agent.quiet.interfaces import Interrupts
    from agent.quiet.interrupt_ban import Unkept
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.interrupts import Stay
    from pinning.planning.noise import Keep
    from pinning.planning.observed import Owner

LOOK_SECONDS: Final = 60.0
# Limit of interrupts reported for a container, because a glob may match all interrupts of the node.
MOST_KEPT: Final = 512

NONE_CROWDED: Final[Mapping[str, str]] = MappingProxyType({})
Keeps = frozenset["Keep"]


class KeptLookup:
    """The kept interrupts of a node; called from one thread at a time."""

    def __init__(self, interrupts: Interrupts, monotonic: Callable[[], float]) -> None:
        self._interrupts = interrupts
        self._monotonic = monotonic
        # Inputs from which the cached values below were computed.
        self._seen: tuple[Keeps, Mapping[str, int | None]] | None = None
        self._again = 0.0
        self._stays: Mapping[str, Stay] = {}
        # Notes for the report, by container; cached, because globs are compared with the names of all interrupts.
        self._notes: dict[Owner, str] = {}

    def follow(self, keeps: Keeps) -> Mapping[str, Stay]:
        """Return the interrupts that stay, by number; raise Unavailable if the kernel's files cannot be used."""
        if not keeps:
            self._seen, self._stays, self._notes = None, {}, {}
            return self._stays
        seen = keeps, dict.fromkeys(self._interrupts.numbers()) | self._interrupts.identities()
        now = self._monotonic()
        if seen == self._seen and now < self._again:
            return self._stays
        self._seen, self._again = seen, now + LOOK_SECONDS
        names = dict(self._named(seen[1])) if any(keep.globs for keep in keeps) else {}
        addresses = {device.address for keep in keeps for device in keep.devices if device.address}
        devices = {address: self._interrupts.of_device(address) for address in addresses}
        matches = match_globs(keeps, names)
        self._stays = stays_of(keeps, matches, devices)
        self._notes = {keep.owner: note_of(keep, matches, devices) for keep in keeps}
        return self._stays

    def _named(self, numbers: Collection[str]) -> dict[str, str]:
        names = {}
        for number in numbers:
            with suppress(Gone):
                names[number] = self._interrupts.name(number)
        return names

    def left_alone(self, keeps: Keeps) -> tuple[str, ...]:
        """Return the interrupts that irqbalance must not move, in order of priority.

        Interrupts of the containers' devices come first, then those that match globs, one of each container in turn,
        because a glob comes from a user and may match all interrupts of the node. Interrupts that cannot fire on the
        container's CPUs are left out.
        """
        in_order, reach = sorted(keeps, key=lambda keep: keep.owner), self._reach()
        home = {number: stay.home for number, stay in self._stays.items() if stay.home}
        homes = [list(_reaching(keep, home)) for keep in in_order]
        others = [list(_reaching(keep, reach)) for keep in in_order]
        turns = chain(zip_longest(*homes), zip_longest(*others))
        return tuple(dict.fromkeys(number for turn in turns for number in turn if number))

    def _is_home(self, number: str, keep: Keep) -> bool:
        return not self._stays.get(number, NO_STAY).home.isdisjoint(keep.cpus)

    def shown(
        self, keeps: Keeps, unkept: Unkept, crowded: Mapping[str, str] = NONE_CROWDED
    ) -> dict[Owner, KeptInterrupts]:
        """Return the interrupts that stay, by container, with a note about those that may move or fire elsewhere.

        `crowded` are interrupts that the kernel refused to confine to the CPUs of their container, with the reason.
        """
        reach = self._reach()
        return {keep.owner: self._shown(keep, reach, unkept, crowded) for keep in keeps}

    def _shown(
        self, keep: Keep, reach: Mapping[str, CPUSet], unkept: Unkept, crowded: Mapping[str, str]
    ) -> KeptInterrupts:
        numbers = tuple(_reaching(keep, reach))
        roving = [reason for number, reason in crowded.items() if self._is_home(number, keep)]
        notes = self._notes.get(keep.owner, ""), _roving_note(roving), _note(unkept, numbers)
        return KeptInterrupts(
            keep.cpus,
            frozenset(numbers[:MOST_KEPT]),
            few(numbers[:MOST_KEPT], self._label),
            "; ".join(filter(None, notes)),
        )

    def _reach(self) -> dict[str, CPUSet]:
        """Return the CPUs on which each interrupt that stays may fire, by its affinity and the policies."""
        return {
            number: self._affinity(number) & self._stays[number].may
            for number in sorted(self._stays, key=int)
        }

    def _affinity(self, number: str) -> CPUSet:
        with suppress(Gone, Refused):
            return self._interrupts.affinity(number)
        return EMPTY

    def _label(self, number: str) -> str:
        name = ""
        with suppress(Gone):
            name = self._interrupts.name(number)
        return f"{number} ({truncate(plain(name), NAME)})" if name else number


def _reaching(keep: Keep, reach: Mapping[str, CPUSet]) -> Iterator[str]:
    """Yield the interrupts that may fire on the CPUs of a container."""
    return (number for number, cpus in reach.items() if not cpus.isdisjoint(keep.cpus))


def _note(unkept: Unkept, numbers: Collection[str]) -> str:
    """Return why irqbalance may move some of these interrupts; empty: it may not."""
    if unkept.numbers is None:
        return unkept.reason
    count = len(unkept.numbers.intersection(numbers))
    return f"irqbalance may move {count} of them: {unkept.reason}" if count else ""


def _roving_note(reasons: Sequence[str]) -> str:
    if not reasons:
        return ""
    return f"{len(reasons)} interrupts of its devices fire on other CPUs too: {reasons[0]}"
