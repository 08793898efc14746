"""Keep quiet CPUs out of deep idle states, and restore the original latency bounds afterwards (a `Part`).

`pm_qos_resume_latency_us` of a CPU is `0` (no bound), microseconds, or `n/a` (no idle state but polling). The
kernel then enters no idle state that takes longer to leave. The same rules apply as for interrupts: originals are
saved first, only values that the agent wrote are restored, and a CPU whose bound another program changes
three times is left alone.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agent.errors import Gone, Refused, Unavailable
from agent.kernel.settings import error_of, read_setting, write_setting
from agent.node_state import QuietPart
from agent.quiet.interfaces import few
from agent.reconcile.foreign_writes import ForeignWrites
from pinning.contract import QuietWord
from pinning.json_text import parse_json
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.reconcile.restorable import Restorable
    from pinning.machine.interrupts import Quiet

UNBOUND: Final = "0"
POLLING: Final = "n/a"
_MOST_DIGITS: Final = 10  # digits of a bound, which is a 32-bit number in the kernel

logger = logging.getLogger(__name__)


class IdleStates(Protocol):
    """The latency bounds of CPUs, as texts of `pm_qos_resume_latency_us`; called from a thread."""

    def check(self) -> None:
        """Raise Unavailable if no bound can be written."""
        ...

    def bound(self, cpu: int) -> str:
        """Return a CPU's latency bound as the kernel's text; raise Gone if it has none, Refused if unreadable."""
        ...

    def change(self, cpu: int, bound: str) -> None:
        """Set the bound of a CPU; raise as `bound` does."""
        ...


class KernelIdleStates:
    """The bounds of one node; `folder` is its /sys/devices/system/cpu, None if that is not mounted."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def check(self) -> None:
        """Raise Unavailable if the folder is missing or read-only."""
        if self._folder is None:
            raise Unavailable("the node's CPUs are not mounted: install the component quiet-power")
        try:
            is_read_only = bool(os.statvfs(self._folder).f_flag & os.ST_RDONLY)
        except OSError as error:
            raise Unavailable(f"{self._folder}: {error.strerror}") from error
        if is_read_only:
            raise Unavailable(
                f"{self._folder} is read-only: mount the node's own, as the component quiet-power does"
            )

    def bound(self, cpu: int) -> str:
        """Return a CPU's latency bound as the kernel's text: microseconds, `0` or `n/a`."""
        file = self._file(cpu)
        text = read_setting(file)
        if not _is_bound(text):
            raise Refused(f"{file}: {text[:40]!r} is neither {POLLING} nor microseconds")
        return text

    def change(self, cpu: int, bound: str) -> None:
        """Set a CPU's latency bound, a text of the kernel's form."""
        file = self._file(cpu)
        try:
            write_setting(file, bound)
        except OSError as error:
            raise error_of(error, file) from error

    def _file(self, cpu: int) -> str:
        return f"{self._folder}/cpu{cpu}/power/pm_qos_resume_latency_us"


def _is_bound(text: str) -> bool:
    return text == POLLING or (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS)


class _Taken(NamedTuple):
    """A latency bound of a CPU that the agent changed: its original value and the values written."""

    original: str
    wrote: tuple[str, ...]  # newest last; a killed agent may have recorded the last value without writing it


class IdleStatePart:
    """The latency bounds of a node's quiet CPUs (a `Part`)."""

    def __init__(
        self,
        states: IdleStates,
        saved: Restorable,
        monotonic: Callable[[], float],
        most: int | None,
    ) -> None:
        self._states = states
        self._saved = saved
        self._monotonic = monotonic
        self._most = most  # bound in microseconds; None: the operator sets none
        self._taken: dict[int, _Taken] = {}
        self._is_read = False  # False: the file cannot be used, so that nothing may be changed
        self._proven: dict[int, str] = {}  # bounds that were written and read back
        self._writes: ForeignWrites[str] = ForeignWrites()
        saved.require(_parse)
        with suppress(Refused):
            self._read()

    @property
    def has_taken(self) -> bool:
        """Return whether a bound has to be restored."""
        return bool(self._taken) or not self._is_read

    def round(self, quiet: Quiet) -> QuietPart | None:
        """Set the operator's latency bound on quiet CPUs, and restore the original bound of the others."""
        if self._most is None and not self.has_taken:
            return None
        self._writes = self._writes.at(self._monotonic())
        failed = self._change(quiet.cpus if self._most is not None else EMPTY, quiet.online)
        if self._most is None and not failed:
            return None
        numbers = map(str, sorted(map(int, self._writes.conflicts)))
        conflicts = few(numbers, "the bound of CPU {}".format)
        foreign = f"another program changes back {', '.join(conflicts)}" if conflicts else ""
        return QuietPart(QuietWord.IDLE_STATES, foreign or "; ".join(few(failed)), conflicts)

    def restore(self) -> bool:
        """Restore the original bound of every CPU; return whether nothing is left to restore."""
        self._writes = ForeignWrites()
        self._read()
        for reason in few(self._change(EMPTY, EMPTY)) if self._taken else ():
            logger.warning("idle states not restored", extra={"facts": {"reason": reason}})
        return not self._taken

    def _read(self) -> None:
        """Take over the records of an earlier agent, once; raise Refused while their file cannot be used."""
        if self._is_read:
            return
        self._saved.reread()
        self._taken = dict(_parse(key, text) for key, text in self._saved.originals.items())
        self._is_read = True

    def _change(self, quiet: CPUSet, online: CPUSet) -> list[str]:
        """Set and restore bounds once; return a reason for each bound that could not be changed.

        A CPU without a bound may still enter deep idle states, so that this is a reason too, unless the CPU is offline.
        """
        self._read()
        self._states.check()
        failed: list[str] = []
        writes: dict[int, str] = {}
        records = dict(self._taken)
        for cpu in quiet | CPUSet(self._taken):
            try:
                self._decide(cpu, quiet, records, writes)
            except Gone as error:
                records.pop(cpu, None)
                if cpu in quiet & online:
                    failed.append(f"CPU {cpu} has no bound: {error}")
            except Refused as error:
                failed.append(str(error))
        self._save(records)
        for cpu, bound in writes.items():
            self._write(cpu, bound, records, failed)
        self._save(records)
        self._proven = {cpu: it for cpu, it in self._proven.items() if cpu in records}
        return failed

    def _decide(self, cpu: int, quiet: CPUSet, records: dict[int, _Taken], writes: dict[int, str]) -> None:
        """Read the bound of a CPU, and store its record and the value to write."""
        if self._writes.is_conflict(str(cpu)):
            return
        now, taken = self._states.bound(cpu), self._taken.get(cpu)
        is_ours = taken is not None and now in taken.wrote
        original = taken.original if taken and is_ours else now
        wanted = self._bounded(original) if cpu in quiet else original
        if not is_ours and cpu in self._proven and wanted != now:
            del self._proven[cpu]
            self._writes = self._writes.saw(str(cpu), self._monotonic())
            facts = {"cpu": cpu, "bound": now}
            logger.warning("idle states changed by another program", extra={"facts": facts})
            if self._writes.is_conflict(str(cpu)):
                records.pop(cpu, None)
                return
        if wanted == original:
            records.pop(cpu, None)
        else:
            records[cpu] = _Taken(original, (now, wanted) if is_ours and now != wanted else (wanted,))
        if wanted != now:
            # The record is kept until the original bound is restored.
            records[cpu] = records.get(cpu) or _Taken(original, (now,))
            writes[cpu] = wanted

    def _bounded(self, original: str) -> str:
        """Return the stricter of a CPU's original bound and the operator's."""
        if self._most is None or original == POLLING:
            return original
        return original if original != UNBOUND and int(original) <= self._most else str(self._most)

    def _write(self, cpu: int, bound: str, records: dict[int, _Taken], failed: list[str]) -> None:
        """Write a bound and read it back; a failed write keeps the record."""
        try:
            self._states.change(cpu, bound)
            seen = self._states.bound(cpu)
        except Gone:
            records.pop(cpu, None)
            return
        except Refused as error:
            failed.append(str(error))
            return
        if seen != bound:
            failed.append(f"the bound of CPU {cpu} is {seen} after {bound} was written")
        elif bound == records[cpu].original:
            del records[cpu]
        else:
            self._proven[cpu] = bound
            records[cpu] = records[cpu]._replace(wrote=(bound,))

    def _save(self, records: dict[int, _Taken]) -> None:
        """Save records if they changed; raise Refused if that is not possible."""
        if records != self._taken:
            texts = {str(cpu): json.dumps([it.original, list(it.wrote)]) for cpu, it in records.items()}
            self._saved.replace(texts)
            self._taken = dict(records)


def _parse(key: str, text: str) -> tuple[int, _Taken]:
    """Return a saved record; raise an error for a damaged one, because no invented value may be restored."""
    original, wrote = parse_json(text)
    taken = _Taken(str(original), tuple(map(str, wrote)))
    if not taken.wrote or not all(map(_is_bound, (taken.original, *taken.wrote))):
        raise ValueError(text)
    (cpu,) = CPUSet([int(key)])
    return cpu, taken
