"""Move interrupts off quiet CPUs, and back afterwards.

Each round reads every affinity. Records are saved before the first write, so that a kill at any moment leaves originals
or values that the next agent recognises. Every read and write is a system call of its own, during which Python's event
loop runs.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone, Managed, Refused, Unavailable
from agent.quiet.interfaces import few
from agent.quiet.interrupts import DEFAULT
from agent.reconcile.foreign_writes import ForeignWrites
from logs.printable import plain
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import NO_STAY, Decision, Quiet, Stay, Taken, born, decide
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from agent.quiet.interfaces import Interrupts
    from agent.quiet.taken import TakenStore

# Time until the agent retries to move an interrupt to its home CPUs, after the kernel refused that.
ROOM_SECONDS: Final = 600.0
# The second round finds interrupts requested during the first one, before it restored the default affinity.
RESTORE_ROUNDS: Final = 2
NO_STAYS: Final[Mapping[str, Stay]] = MappingProxyType({})

logger = logging.getLogger(__name__)


class Moved(NamedTuple):
    """The result of a round."""

    managed: tuple[str, ...] = ()  # interrupts that the kernel alone places, and that may fire on quiet CPUs
    failed: tuple[str, ...] = ()  # interrupts that could not be moved, each with the reason
    conflicts: tuple[str, ...] = ()  # interrupts that another program keeps moving back
    is_steady: bool = True  # False: a CPU went offline or came back, so the round changed nothing


@dataclass
class _Round:
    """Facts and decisions of one round."""

    quiet: Quiet
    may_take: bool
    stays: Mapping[str, Stay] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    # Affinities of the interrupts in `decisions`, as read.
    seen: dict[str, CPUSet] = field(default_factory=dict)
    managed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    born: dict[str, Taken] = field(default_factory=dict)
    unused: set[str] = field(default_factory=set)  # new numbers that no driver has requested yet
    identities: dict[str, int | None] = field(default_factory=dict)
    # Numbers that were freed and now stand for another interrupt than the recorded one.
    reborn: set[str] = field(default_factory=set)
    # Numbers that still stand for the recorded interrupt.
    identified: set[str] = field(default_factory=set)
    ours: set[str] = field(default_factory=set)  # numbers whose affinity was written in an earlier round
    gone: int = 0  # interrupts that were freed during the round
    foreign: dict[str, CPUSet] = field(default_factory=dict)
    done: dict[str, Taken | None] = field(default_factory=dict)  # records as they are after the writes

    def may_disturb(self, number: str, taken: Taken | None) -> bool:
        """Return whether an interrupt that the kernel alone places may fire on quiet CPUs.

        An interrupt without an action never fires, such as the timer 0 and the cascade 2 of most machines.
        """
        if taken is None or not taken.name:
            return False
        return not self.seen[number].isdisjoint(self.quiet.cpus - self.stays.get(number, NO_STAY).may)


class _Crowded(NamedTuple):
    """Home CPUs that the kernel refused to an interrupt, because a CPU has only some 200 interrupt vectors."""

    home: CPUSet
    reason: str
    since: float


class CrowdedHomes:
    """Interrupts that the kernel lately refused to confine to their home CPUs (`Stay.home`)."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._found: dict[str, _Crowded] = {}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Return why interrupts that should fire only on a container's CPUs fire on others too, by number."""
        return {number: it.reason for number, it in self._found.items()}

    def add(self, number: str, home: CPUSet, reason: str) -> None:
        """Record that the kernel refused an interrupt its home CPUs."""
        self._found[number] = _Crowded(home, reason, self._monotonic())

    def forget(self, number: str) -> None:
        """Forget an interrupt whose number now stands for another one."""
        self._found.pop(number, None)

    def left_out(self, stays: Mapping[str, Stay]) -> Mapping[str, Stay]:
        """Return `stays` without the home CPUs that the kernel refused for an interrupt lately.

        Such an interrupt may also fire on CPUs that are not quiet.
        """
        until = self._monotonic() - ROOM_SECONDS
        self._found = {
            number: it
            for number, it in self._found.items()
            if number in stays and stays[number].home == it.home and it.since > until
        }
        return {**stays, **{number: Stay(stays[number].may) for number in self._found}}


class InterruptMover:
    """Keeps the interrupts of a node off its quiet CPUs; called from one thread at a time."""

    def __init__(self, interrupts: Interrupts, store: TakenStore, monotonic: Callable[[], float]) -> None:
        self._interrupts = interrupts
        self._label = partial(_label, interrupts)
        self._store = store
        self._monotonic = monotonic
        self._proven: dict[str, CPUSet] = {}  # affinities that were written and read back, by number
        self._online = EMPTY
        # Name of each interrupt whose affinity the kernel refused to change, by number.
        self._fixed: dict[str, str] = {}
        self.crowded = CrowdedHomes(monotonic)
        self._writes: ForeignWrites[str] = ForeignWrites()
        self.has_moved = False  # the last round changed an affinity

    @property
    def has_taken(self) -> bool:
        """Return whether any interrupt has to be restored."""
        return bool(self._store.taken) or not self._store.is_read

    def round(
        self,
        quiet: Quiet,
        *,
        may_take: bool = True,
        is_settled: bool = True,
        stays: Mapping[str, Stay] = NO_STAYS,
    ) -> Moved:
        """Do one round; raise Unavailable if the kernel's files cannot be used, Refused if saving fails.

        `stays` are the interrupts that may fire on quiet CPUs, by number. While `is_settled` is False irqbalance may
        still move interrupts by its old list, which does not count as a conflict.
        """
        self.has_moved = False
        self._store.read()
        self._writes = self._writes.at(self._monotonic())
        if quiet.online != self._online or not is_settled:
            self._proven = {}  # the kernel may have moved interrupts itself
        self._online = quiet.online
        now = _Round(quiet, may_take, self.crowded.left_out(stays))
        numbers = [DEFAULT, *self._interrupts.numbers()]
        now.identities = self._identities(numbers)
        self._forget_freed(now)
        for number in numbers:
            self._look(now, number)
        if now.gone == len(numbers) - 1:
            raise Unavailable("no interrupt has an affinity that can be read: mount the node's /proc/irq")
        if self._interrupts.online() != quiet.online:
            return Moved(is_steady=False)
        self._saw(now.foreign)
        self._save(now)
        for number in _in_order(now.decisions):
            if (write := now.decisions[number].write) is not None:
                self._write(now, number, write)
        self._settle(now, frozenset(numbers))
        conflicts = few(self._writes.conflicts, self._label)
        return Moved(few(now.managed, self._label), few(now.failed), conflicts)

    def restore(self) -> bool:
        """Restore the original affinity of every interrupt; return whether nothing is left to restore."""
        self._store.read()
        self._writes = ForeignWrites()
        for _ in range(RESTORE_ROUNDS if self._store.taken else 0):
            self.round(Quiet(EMPTY, self._interrupts.online()), may_take=False)
        return not self._store.taken

    def _look(self, now: _Round, number: str) -> None:
        """Read an interrupt's affinity and store the change it needs; most need none and cost one read."""
        if self._writes.is_conflict(number):
            return
        try:
            affinity = self._interrupts.affinity(number)
            record = None if number in now.reborn else self._store.taken.get(number)
            taken = record or self._born(now, number, affinity)
            if affinity.isdisjoint(now.quiet.cpus) and taken is None and number not in now.stays:
                return
            decision = self._decide(now, number, affinity, taken)
        except Gone as error:
            if number == DEFAULT:
                raise Unavailable(str(error)) from error
            now.gone += 1
            return
        except Refused as error:
            now.failed.append(str(error))
            return
        if decision.is_foreign:
            now.foreign[number] = affinity
        if number in now.born and decision.write is None:
            # The write shows whether the kernel lets the interrupt be moved.
            decision = decision._replace(write=affinity)
        now.seen[number] = affinity
        if decision.write is not None and self._is_managed(number):
            self._report_fixed(now, number, decision.taken)
            now.born.pop(number, None)
            decision = Decision(None)
        if decision != Decision(record):
            now.decisions[number] = decision

    def _decide(self, now: _Round, number: str, affinity: CPUSet, taken: Taken | None) -> Decision:
        quiet = replace(now.quiet, stay=now.stays[number]) if number in now.stays else now.quiet
        near, proven = self._near(number, affinity, taken, quiet), self._proven.get(number)
        decision = decide(affinity, taken, quiet, near=near, may_take=now.may_take, proven=proven)
        if decision.write is None and not decision.is_foreign:
            return decision._replace(taken=decision.taken and decision.taken._replace(wrote=(affinity,)))
        name = self._interrupts.name(number)
        if taken and not name and number in now.identified:
            name = taken.name  # temporarily released by its driver, as for a network card that is down
        if taken and taken.name and name != taken.name:  # the number now belongs to another driver
            taken = self._record_at_birth(now, number, affinity, name)
            decision = decide(affinity, taken, quiet, near=near, may_take=now.may_take)
        elif taken and affinity in taken.wrote and number not in now.born:
            now.ours.add(number)
        return decision._replace(taken=decision.taken and decision.taken._replace(name=name))

    def _identities(self, numbers: Iterable[str]) -> dict[str, int | None]:
        """Return the identity of each number: from the kernel, otherwise from the records."""
        shown, known = self._interrupts.identities(), self._store.known or {}
        return {number: shown.get(number, known.get(number)) for number in numbers if number != DEFAULT}

    def _forget_freed(self, now: _Round) -> None:
        """Find numbers that now stand for another interrupt, and drop the records of the earlier one."""
        for number, before in (self._store.known or {}).items():
            if before is None:
                continue
            if before == now.identities.get(number, before):
                now.identified.add(number)
            else:
                now.reborn.add(number)
                self._proven.pop(number, None)
                self._fixed.pop(number, None)
                self.crowded.forget(number)
        self._writes = self._writes.without(now.reborn)

    def _born(self, now: _Round, number: str, affinity: CPUSet) -> Taken | None:
        """Return the record of an interrupt that was requested while the default affinity was narrowed."""
        known = self._store.known
        if number == DEFAULT or known is None or (number in known and number not in now.reborn):
            return None
        name = self._interrupts.name(number)
        if not name:
            now.unused.add(number)  # the kernel sets its affinity once more when a driver requests it
            return None
        return self._record_at_birth(now, number, affinity, name)

    def _record_at_birth(self, now: _Round, number: str, affinity: CPUSet, name: str) -> Taken | None:
        near = self._interrupts.near(number)
        found = born(affinity, self._store.taken.get(DEFAULT), now.quiet.online, near)
        if found:
            now.born[number] = found = found._replace(name=name)
        return found

    def _near(self, number: str, affinity: CPUSet, taken: Taken | None, quiet: Quiet) -> CPUSet:
        """Return the CPUs near an interrupt whose CPUs are all quiet or offline; empty for others, without a read."""
        may_use = (affinity, taken.original) if taken else (affinity,)
        if number == DEFAULT or not any((cpus - quiet.cpus).isdisjoint(quiet.online) for cpus in may_use):
            return EMPTY
        return self._interrupts.near(number)

    def _has_missed(self, now: _Round) -> bool:
        """Return whether drivers have freed or requested interrupts since the round listed them."""
        with suppress(Gone):
            is_same = self._identities(self._interrupts.numbers()) == now.identities
            return not is_same or any(map(self._interrupts.name, now.unused))
        return True

    def _is_managed(self, number: str) -> bool:
        """Return whether an interrupt cannot be moved: by its file, or because the kernel refused it before."""
        if self._interrupts.is_managed(number):
            return True
        return number in self._fixed and self._fixed[number] == self._interrupts.name(number)

    def _report_fixed(self, now: _Round, number: str, taken: Taken | None) -> None:
        """Report an interrupt that the kernel alone places, if a device may raise it on quiet CPUs."""
        if now.may_disturb(number, taken) and self._interrupts.has_place(number):
            now.managed.append(number)

    def _saw(self, foreign: Mapping[str, CPUSet]) -> None:
        """Count the interrupts that were moved back, and log them once for the round."""
        if not foreign:
            return
        self._writes = self._writes.saw_all(foreign, self._monotonic())
        moved = few(foreign, lambda number: f"{self._label(number)} to {foreign[number]}")
        logger.warning("interrupts moved by another program", extra={"facts": {"interrupts": list(moved)}})

    def _save(self, now: _Round) -> None:
        """Save the records of all interrupts about to be written, and drop those of freed ones."""
        changed = now.born | {number: it.taken for number, it in now.decisions.items() if it.taken}
        dropped = (now.reborn & self._store.taken.keys()) - changed.keys()
        known = self._store.known
        if changed or self._store.taken:
            known = {number: it for number, it in now.identities.items() if number not in now.unused}
        if changed or dropped or known != self._store.known:
            self._store.change(changed, dropped, known)

    def _write(self, now: _Round, number: str, cpus: CPUSet) -> None:
        """Write one affinity and read it back; the kernel applies it when the interrupt fires next.

        If the write fails or another value is read back, the record is kept, and the next round decides by the current
        value.
        """
        decision, before = now.decisions[number], self._store.taken.get(number)
        try:
            if self._writes.is_conflict(number):
                now.done[number] = None
                return
            self._interrupts.move(number, cpus, now.identities.get(number))
            self.has_moved = True
            seen = self._interrupts.affinity(number)
        except Gone:
            now.done[number] = None
        except Refused as error:
            if isinstance(error, Managed) and number not in now.ours | {DEFAULT}:
                self._report_fixed(now, number, decision.taken)
                self._fixed[number] = decision.taken.name if decision.taken else ""
                now.done[number] = None
                return
            self._refused(now, number, str(error))
            now.done[number] = before
        else:
            if seen == cpus:
                self._proven[number] = cpus
                is_missed = number == DEFAULT and self._has_missed(now)
                now.done[number] = _written(decision.taken, cpus, before if is_missed else None)
                return
            now.failed.append(f"{self._label(number)}: its CPUs are {seen} after {cpus} was written")
            now.done[number] = before

    def _refused(self, now: _Round, number: str, reason: str) -> None:
        """Record a failed write; if the interrupt has home CPUs, the next round no longer confines it to them."""
        may, home = now.stays.get(number, NO_STAY)
        if home:
            self.crowded.add(number, home, reason)
            self.has_moved = True  # so that the next round is soon
        if not home or not now.seen[number].isdisjoint(now.quiet.cpus - may):
            now.failed.append(reason)

    def _settle(self, now: _Round, numbers: frozenset[str]) -> None:
        """Save the records after the writes, without interrupts that were restored, freed or are in conflict."""
        records: dict[str, Taken | None] = {number: it.taken for number, it in now.decisions.items()}
        records |= now.done
        records |= dict.fromkeys(self._store.taken.keys() - numbers)
        kept = {number: it for number, it in records.items() if it and it != self._store.taken.get(number)}
        dropped = [number for number, it in records.items() if it is None and number in self._store.taken]
        is_any_left = any({**self._store.taken, **records}.values())
        known = self._store.known if is_any_left else None
        if kept or dropped or known != self._store.known:
            self._store.change(kept, dropped, known)
        self._proven = {number: it for number, it in self._proven.items() if number in self._store.taken}


def _written(taken: Taken | None, cpus: CPUSet, default: Taken | None) -> Taken | None:
    """Return the record of an affinity that was read back.

    `default` is the saved record of the default affinity, if interrupts were requested during the round. The
    default's record is kept for one more round with its earlier affinity, by which these interrupts are
    recognised.
    """
    if default:
        return default._replace(wrote=tuple(dict.fromkeys((*default.wrote, cpus))))
    return taken and taken._replace(wrote=(cpus,))


def _label(interrupts: Interrupts, number: str) -> str:
    """Return an interrupt's number with the names of its actions, for messages."""
    if number == DEFAULT:
        return "interrupts of drivers loaded later"
    try:
        name = interrupts.name(number)
    except AgentError:
        name = ""
    return f"{number} ({truncate(plain(name), NAME)})" if name else number


def _in_order(decisions: Mapping[str, Decision]) -> list[str]:
    """Return the numbers in the order of writes: the default is narrowed first, and widened last."""
    numbers = sorted(decisions.keys() - {DEFAULT})
    if DEFAULT not in decisions:
        return numbers
    return [DEFAULT, *numbers] if decisions[DEFAULT].taken else [*numbers, DEFAULT]
