"""Keep unbound workqueues off quiet CPUs, and restore their CPU masks afterwards.

One mask bounds all of them; workqueues exported in sysfs also have their own. The same rules apply as for
interrupts: records are saved before the first write, only bits that the agent removed are restored, and a
mask that another program changes three times in ten minutes is left alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from agent.errors import Gone, Refused
from agent.node_state import QuietPart
from agent.quiet.interfaces import few
from agent.quiet.workqueues import ALL
from agent.reconcile.foreign_writes import ForeignWrites
from logs.printable import plain
from pinning.contract import QuietWord
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Decision, Quiet, Taken, decide
from pinning.truncate import NAME, truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.quiet.taken import TakenStore

ALL_LABEL: Final = "the mask of all unbound workqueues"

logger = logging.getLogger(__name__)


class Workqueues(Protocol):
    """Masks of unbound workqueues by name; ALL is the mask that bounds all of them. Called from a thread."""

    def identities(self) -> Mapping[str, int]:
        """Return by name a value that changes when a workqueue is recreated; raise Unavailable if none can be read."""
        ...

    def mask(self, name: str) -> CPUSet:
        """Return the CPUs last written to a mask; raise Gone for a workqueue that ended, Refused for other reasons."""
        ...

    def isolated(self) -> CPUSet:
        """Return the CPUs of isolated partitions, which the kernel itself keeps free; raise Refused if unknown."""
        ...

    def move(self, name: str, cpus: CPUSet) -> None:
        """Set a mask; raise as `mask` does."""
        ...


@dataclass
class _Round:
    """Facts and decisions of one round."""

    identities: Mapping[str, int]
    decisions: dict[str, Decision] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    settled: dict[str, Taken] = field(
        default_factory=dict
    )  # records of masks that were written and read back


class WorkqueueMover:
    """The unbound workqueues of a node (a `Part`)."""

    def __init__(
        self,
        workqueues: Workqueues,
        store: TakenStore,
        monotonic: Callable[[], float],
        *,
        is_wanted: bool = True,
    ) -> None:
        self._workqueues = workqueues
        self._store = store
        self._monotonic = monotonic
        self._is_wanted = is_wanted  # whether the operator has switched this part on
        # Identity and mask of each workqueue that was written and read back.
        self._proven: dict[str, tuple[int, CPUSet]] = {}
        self._writes: ForeignWrites[str] = ForeignWrites()

    @property
    def has_taken(self) -> bool:
        """Return whether a mask has to be restored."""
        return bool(self._store.taken) or not self._store.is_read

    def round(self, quiet: Quiet) -> QuietPart | None:
        """Move masks off quiet CPUs, or restore all if the operator has switched this off."""
        if not self._is_wanted and not self.has_taken:
            return None
        self._store.read()
        self._writes = self._writes.at(self._monotonic())
        cpus = quiet.cpus if self._is_wanted else EMPTY
        reason = f"no online CPU is left outside CPUs {cpus}" if cpus and not quiet.others else ""
        failed = self._move(Quiet(EMPTY if reason else cpus, quiet.online))
        if not self._is_wanted and not failed:
            return None
        conflicts = few(self._writes.conflicts, _label)
        foreign = f"another program changes back {', '.join(conflicts)}" if conflicts else ""
        return QuietPart(QuietWord.WORKQUEUES, reason or foreign or "; ".join(few(failed)), conflicts)

    def restore(self) -> bool:
        """Restore every original mask; return whether nothing is left to restore."""
        self._store.read()
        self._writes = ForeignWrites()
        for reason in few(self._move(Quiet(EMPTY, EMPTY))) if self._store.taken else ():
            logger.warning("workqueues not restored", extra={"facts": {"reason": reason}})
        return not self._store.taken

    def _move(self, quiet: Quiet) -> list[str]:
        """Change and restore masks once; return a reason for each mask that could not be changed."""
        now = _Round(self._workqueues.identities())
        for name in now.identities:
            try:
                self._look(now, name, quiet)
            except Gone:
                continue
            except Refused as error:
                now.failed.append(str(error))
        if now.foreign:
            self._writes = self._writes.saw_all(now.foreign, self._monotonic())
            facts = {"masks": list(few(now.foreign, _label))}
            logger.warning("workqueues moved by another program", extra={"facts": facts})
        taken = {name: it.taken for name, it in now.decisions.items() if it.taken}
        if taken:
            self._store.change(taken)
        dropped = [name for name in self._store.taken if name not in now.identities]
        # The mask of all unbound workqueues is narrowed first, and widened last.
        order = sorted(now.decisions, reverse=not quiet.cpus)
        dropped += [name for name in order if not self._write(now, name)]
        dropped = [name for name in dropped if name in self._store.taken]
        if dropped or now.settled:
            self._store.change(now.settled, dropped)
        self._proven = {name: it for name, it in self._proven.items() if name in self._store.taken}
        return now.failed

    def _look(self, now: _Round, name: str, quiet: Quiet) -> None:
        """Read a mask and store the change it needs, if any."""
        if self._writes.is_conflict(name):
            return
        mask, taken = self._workqueues.mask(name), self._store.taken.get(name)
        isolated = self._workqueues.isolated() if name == ALL else EMPTY
        if taken is None and (mask - isolated).isdisjoint(quiet.cpus):
            return
        identity, proven = self._proven.get(name, (None, None))
        if identity != now.identities[name]:
            proven = None  # a new workqueue has this name
        decision = decide(mask, taken, quiet, proven=proven)
        # Writing a mask would override the isolation of these CPUs.
        if decision.write and (ended := decision.write & isolated):
            raise Refused(
                f"CPUs {ended} belong to an isolated cgroup partition, and a write would let workqueues use them"
            )
        if decision.is_foreign:
            now.foreign.append(name)
            self._proven.pop(name, None)
        if decision != Decision(taken):
            now.decisions[name] = decision

    def _write(self, now: _Round, name: str) -> bool:
        """Write a mask and read it back; return whether its record is kept."""
        decision = now.decisions[name]
        if decision.write is None or self._writes.is_conflict(name):
            return decision.taken is not None and decision.write is None
        try:
            self._workqueues.move(name, decision.write)
            seen = self._workqueues.mask(name)
        except Gone:
            return False
        except Refused as error:
            now.failed.append(str(error))
            return True
        if seen != decision.write:
            now.failed.append(f"{_label(name)}: it is {seen} after {decision.write} was written")
            return True
        self._proven[name] = now.identities[name], seen
        if decision.taken and decision.taken.wrote != (seen,):
            now.settled[name] = decision.taken._replace(wrote=(seen,))
        return decision.taken is not None


def _label(name: str) -> str:
    return f"the mask of workqueue {truncate(plain(name), NAME)}" if name else ALL_LABEL
