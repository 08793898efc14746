"""Interrupts that stay on quiet CPUs by the `irq-policy` of pods: which these are on this node.

Names of interrupts and the interrupts of devices are read when the policies or the interrupts change, and once a minute,
because drivers name an interrupt after they have got its number.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Refused
from agent.node_state import KeptInterrupts
from agent.quiet.interfaces import few
from logs.printable import plain
from pinning.machine.cpuset import EMPTY
from pinning.planning.noise import note_of, stays_of
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent.quiet.interfaces import Interrupts
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.interrupts import Stay
    from pinning.planning.noise import Keep
    from pinning.planning.observed import Owner

LOOK_SECONDS: Final = 60.0
MOST_KEPT: Final = 512  # interrupts of a container in a report; a glob of its owner may match all of the node

Keeps = frozenset["Keep"]


class KeptLookup:
    """The kept interrupts of a node; called from one thread at a time."""

    def __init__(self, interrupts: Interrupts, monotonic: Callable[[], float]) -> None:
        self._interrupts = interrupts
        self._monotonic = monotonic
        self._seen: tuple[Keeps, Mapping[str, int | None]] | None = None  # for which the following was read
        self._again = 0.0
        self._names: dict[str, str] = {}
        self._devices: dict[str, Collection[str]] = {}
        self._stays: Mapping[str, Stay] = {}
        self._notes: dict[Owner, str] = {}  # compared with every name of the node, so not in each round

    def follow(self, keeps: Keeps) -> Mapping[str, Stay]:
        """Return the interrupts that stay, by number; raise Unavailable if the kernel's files cannot be used."""
        if not keeps:
            self._seen, self._names, self._devices, self._stays, self._notes = None, {}, {}, {}, {}
            return self._stays
        seen = keeps, dict.fromkeys(self._interrupts.numbers()) | self._interrupts.identities()
        now = self._monotonic()
        if seen == self._seen and now < self._again:
            return self._stays
        self._seen, self._again = seen, now + LOOK_SECONDS
        self._names = dict(self._named(seen[1])) if any(keep.globs for keep in keeps) else {}
        addresses = {device.address for keep in keeps for device in keep.devices if device.address}
        self._devices = {address: self._interrupts.of_device(address) for address in addresses}
        self._stays = stays_of(keeps, self._names, self._devices)
        self._notes = {keep.owner: note_of(keep, self._names, self._devices) for keep in keeps}
        return self._stays

    def _named(self, numbers: Collection[str]) -> dict[str, str]:
        names = {}
        for number in numbers:
            with suppress(Gone):
                names[number] = self._interrupts.name(number)
        return names

    def shown(self, keeps: Keeps, reason: str) -> dict[Owner, KeptInterrupts]:
        """Return what stays on whose CPUs; `reason` says why irqbalance may move that."""
        affinities = {number: self._affinity(number) for number in sorted(self._stays, key=int)}
        return {keep.owner: self._shown(keep, affinities, reason) for keep in keeps}

    def _shown(self, keep: Keep, affinities: Mapping[str, CPUSet], reason: str) -> KeptInterrupts:
        """Return the interrupts that may fire on the CPUs of a container, as far as their affinity says."""
        reaching = (
            number
            for number, affinity in affinities.items()
            if not affinity.isdisjoint(self._stays[number].may & keep.cpus)
        )
        numbers = tuple(islice(reaching, MOST_KEPT))
        notes = self._notes.get(keep.owner, ""), reason
        return KeptInterrupts(
            keep.cpus,
            frozenset(numbers),
            few(numbers, self._label),
            "; ".join(filter(None, notes)),
        )

    def _affinity(self, number: str) -> CPUSet:
        with suppress(Gone, Refused):
            return self._interrupts.affinity(number)
        return EMPTY

    def _label(self, number: str) -> str:
        name = ""
        with suppress(Gone):
            name = self._interrupts.name(number)
        return f"{number} ({truncate(plain(name), NAME)})" if name else number
