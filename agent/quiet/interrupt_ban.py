"""Interrupts that irqbalance must not move, because they stay on quiet CPUs by the `irq-policy` of pods.

irqbalance moves interrupts off banned CPUs. The request `settings ban irqs` lists interrupts that it must not move. A
request replaces the earlier list, so the agent sends the earlier list with its own interrupts added. `setup` shows the
new list at once.
"""

from __future__ import annotations

import json
import logging
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import Refused, Unavailable
from agent.quiet.irqbalance import MOST_LETTERS, Daemon, LastAnswer, ban_text
from agent.reconcile.foreign_writes import ForeignWrites
from agent.reconcile.restorable import RestorableValue
from pinning.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from agent.quiet.irqbalance import Irqbalance
    from agent.reconcile.restorable import Restorable

# Seconds between two requests to an irqbalance that has the right list or does not answer.
LOOK_SECONDS: Final = 60.0
_KEY: Final = "added"

logger = logging.getLogger(__name__)


class _Added(NamedTuple):
    """The interrupts that this program or an earlier agent added to the list of a running irqbalance."""

    pid: int
    started: int
    numbers: frozenset[int]


class Unkept(NamedTuple):
    """Interrupts that irqbalance may move although they must stay, with the reason."""

    reason: str = ""  # why irqbalance may move interrupts; empty: it may move none of them
    numbers: frozenset[str] | None = None  # the interrupts that it may move; None: all that stay


class InterruptBan:
    """The interrupts that irqbalance must not move; called from one thread at a time."""

    def __init__(
        self,
        irqbalance: Irqbalance,
        saved: Restorable,
        monotonic: Callable[[], float],
        *,
        is_managed: bool = True,
    ) -> None:
        self._irqbalance = irqbalance
        self._is_managed = is_managed  # False: the operator configures irqbalance, so nothing is sent
        # While the file of the saved list cannot be used, no list may be sent.
        self._saved = RestorableValue(saved, _KEY, _parse, _text)
        self._monotonic = monotonic
        # The daemon and the interrupts of the last request.
        self._last: tuple[Daemon, frozenset[int]] | None = None
        self._again = 0.0
        self._unkept = Unkept()
        self._heard: LastAnswer[Unkept] = LastAnswer()
        self._is_proven = False  # the list was read back
        self._writes: ForeignWrites[str] = ForeignWrites()

    @property
    def has_added(self) -> bool:
        """Return whether interrupts have to be removed from irqbalance's list."""
        return self._saved.is_left

    @property
    def _added(self) -> _Added | None:
        return self._saved.value

    def leave(self, numbers: Iterable[str]) -> Unkept:
        """Send irqbalance the interrupts that it must not move; return those that it may still move.

        Interrupts that other programs have added to its list stay there. If the list has no room for all, it gets the
        first ones.
        """
        wanted = dict.fromkeys(map(int, numbers if self._is_managed else ()))
        try:
            self._saved.read()
            return self._leave(wanted)
        except Refused as error:
            return Unkept(f"irqbalance may move them: {error}")

    def _leave(self, wanted: Mapping[int, None]) -> Unkept:
        daemon = self._irqbalance.with_socket()
        if self._added and (daemon is None or daemon[:2] != self._added[:2]):
            if self._irqbalance.runs(Daemon(self._added.pid, self._added.started)):
                return Unkept(
                    "irqbalance may move them: its socket is not visible any more: restart irqbalance"
                )
            self._saved.save(None)  # irqbalance exited, and its list with it
        if daemon is None or not (wanted or self._added):
            self._last = None
            # The balancer reports an irqbalance without a socket, and no interrupt is moved then.
            return Unkept()
        now = self._monotonic()
        asked = daemon, frozenset(wanted)
        if self._last != asked or now >= self._again:
            self._last, self._again = asked, now + LOOK_SECONDS
            self._unkept = self._ask(daemon, wanted, now)
        return self._unkept

    def _ask(self, daemon: Daemon, wanted: Mapping[int, None], now: float) -> Unkept:
        self._writes = self._writes.at(now)
        if self._writes.is_conflict(_KEY):
            return Unkept("another program keeps replacing the interrupts that irqbalance must not move")
        try:
            shown = self._irqbalance.setup(daemon).interrupts
        except Unavailable as error:
            unkept = self._heard.holds(daemon, wanted.keys(), now)
            return _unasked(error) if unkept is None else unkept
        self._heard.drop()
        try:
            unkept = self._correct(daemon, shown, wanted, now)
        except Unavailable as error:
            unkept = _unasked(error)
        self._heard.keep(daemon, wanted.keys(), unkept, now)
        return unkept

    def _correct(
        self, daemon: Daemon, shown: frozenset[int], wanted: Mapping[int, None], now: float
    ) -> Unkept:
        """Send the wanted list if irqbalance shows another one; return the interrupts that it may still move."""
        added = self._added.numbers if self._added else frozenset()
        before = shown - added
        fitting = _fitting(before, [number for number in wanted if number not in before])
        left = wanted.keys() - before - fitting
        if self._is_proven and not added <= shown:
            self._writes = self._writes.saw(_KEY, now)
        if shown != before | fitting:
            # If the request fails, the next round must not treat the missing interrupts as a foreign write.
            self._is_proven = False
            self._saved.save(_Added(*daemon[:2], added | fitting))
            self._irqbalance.ban_interrupts(daemon, before | fitting)
            shown = self._irqbalance.setup(daemon).interrupts
        self._is_proven = shown == before | fitting
        if not self._is_proven:
            return Unkept(
                f"irqbalance ({daemon.pid}) may move them: it ignores the list of interrupts to leave alone"
            )
        self._saved.save(_Added(*daemon[:2], fitting) if fitting else None)
        if not left:
            return Unkept()
        return Unkept(f"its list has at most {MOST_LETTERS} characters", frozenset(map(str, left)))

    def restore(self) -> bool:
        """Remove the added interrupts from irqbalance's list; return whether none is left there."""
        self._writes, self._last = ForeignWrites(), None
        self._heard.drop()  # an earlier answer must not hide that the list cannot be restored now
        if reason := self.leave(()).reason:
            logger.warning("irqbalance's ban not lifted", extra={"facts": {"reason": reason}})
        return not self.has_added


def _unasked(error: Unavailable) -> Unkept:
    return Unkept(f"irqbalance may move them: {error}")


def _fitting(before: Collection[int], wanted: Sequence[int]) -> frozenset[int]:
    """Return the first interrupts that fit into irqbalance's list together with those of other programs."""
    used = len(ban_text(before)) if before else len(ban_text([0])) - len(" 0")
    lengths = accumulate((len(f" {number}") for number in wanted), initial=used)
    fits = sum(length <= MOST_LETTERS for length in lengths) - 1
    return frozenset(wanted[: max(0, fits)])


def _text(added: _Added) -> str:
    return json.dumps([added.pid, added.started, sorted(added.numbers)])


def _parse(text: str) -> _Added:
    """Return a saved list; raise an error for a damaged one."""
    pid, started, numbers = parse_json(text)
    return _Added(int(pid), int(started), frozenset(map(int, numbers)))
