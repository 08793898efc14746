"""Bans irqbalance from quiet CPUs, in addition to what is banned already, and lifts that ban afterwards."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import Unavailable
from agent.reconcile.foreign_writes import ForeignWrites
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.quiet.irqbalance import Daemon, Irqbalance, Setup
    from agent.reconcile.restorable import Restorable

FILE: Final = "irqbalance.json"  # in the state directory
LOOK_SECONDS: Final = (
    60.0  # between requests to an irqbalance that has the right ban, or that does not answer
)
SETTLE_INTERVALS: Final = 2  # of irqbalance after its ban was read back
MOST_SENDS: Final = 6  # of a ban that is not read back
_KEY: Final = "ban"
_DAMAGES: Final = (ValueError, TypeError, KeyError, PinningError)


class Told(NamedTuple):
    """How far irqbalance keeps off quiet CPUs."""

    reason: str = ""  # why it may move interrupts onto them; empty: it does not run, or is banned
    is_settled: bool = True  # False: it may still act by its old list


class _Ban(NamedTuple):
    """A ban that this program or an earlier agent sent."""

    pid: int
    started: int
    before: CPUSet  # what was banned without it
    sent: tuple[CPUSet, ...]  # newest last


class Balancer:
    """The irqbalance of a node, as far as quiet CPUs go; called from one thread at a time."""

    def __init__(
        self,
        irqbalance: Irqbalance,
        saved: Restorable,
        monotonic: Callable[[], float],
        *,
        is_told: bool = True,
    ) -> None:
        self._irqbalance = irqbalance
        self._is_told = is_told  # False: the operator has configured it
        self._saved = saved
        self._monotonic = monotonic
        self._ban = _read(saved.originals.get(_KEY))
        self._last: tuple[Daemon, CPUSet] | None = None  # of the last request
        self._answer = Told()
        self._again = 0.0  # when the next request is due
        self._settled = 0.0  # when it has acted by its ban
        self._searched = -LOOK_SECONDS
        self._silent: Daemon | None = None
        self._is_proven = False  # the ban was read back
        self._sends = 0  # since it was read back last
        self._writes: ForeignWrites[str] = ForeignWrites()

    @property
    def has_banned(self) -> bool:
        """Return whether a ban has to be lifted."""
        return self._ban is not None

    def keep_off(self, quiet: CPUSet) -> Told:
        """Ban irqbalance from CPUs, from no other than before if these are none."""
        quiet = quiet if self._is_told else EMPTY
        daemon = self._find(is_needed=bool(quiet))
        if daemon is None or (self._ban and (daemon.pid, daemon.started) != self._ban[:2]):
            self._keep(None)  # its ban ended with it
        if daemon is None or not (quiet or self._ban):
            self._last = None
            return Told()
        if daemon.socket is None:
            return Told(
                f"irqbalance ({daemon.pid}) runs and has no socket below {self._irqbalance.folder}: if it was restarted"
                f" after the agent, restart the agent; else ban the CPUs in its file: IRQBALANCE_BANNED_CPULIST={quiet}"
            )
        now = self._monotonic()
        if self._last != (daemon, quiet) or now >= self._again:
            self._last, self._again = (daemon, quiet), now + LOOK_SECONDS
            self._answer = self._ask(daemon, quiet, now)
        return self._answer._replace(is_settled=now >= self._settled)

    def _find(self, *, is_needed: bool) -> Daemon | None:
        """Return the running irqbalance; a search by its name through all processes is rare."""
        daemon = self._irqbalance.with_socket()
        if daemon or not is_needed:
            return daemon
        now = self._monotonic()
        if now >= self._searched + LOOK_SECONDS:
            self._searched, self._silent = now, self._irqbalance.without_socket()
        return self._silent

    def _ask(self, daemon: Daemon, quiet: CPUSet, now: float) -> Told:
        """Compare its ban with the one that it is to have, and send that."""
        self._writes = self._writes.at(now)
        if self._writes.is_conflict(_KEY):
            return Told("another program keeps replacing the CPUs that irqbalance must not use")
        try:
            setup = self._irqbalance.setup(daemon)
            self._correct(daemon, setup, quiet, now)
        except Unavailable as error:
            return Told(f"irqbalance runs and cannot be asked: {error}")
        if self._sends > MOST_SENDS:
            return Told(f"irqbalance ({daemon.pid}) does not take over the CPUs that it must not use")
        return Told()

    def restore(self) -> bool:
        """Lift the ban; return whether none is left."""
        self._writes, self._last = ForeignWrites(), None
        self.keep_off(EMPTY)
        return self._ban is None

    def _correct(self, daemon: Daemon, setup: Setup, quiet: CPUSet, now: float) -> None:
        ban = self._ban
        if ban and setup.banned not in (ban.before, *ban.sent):
            if self._is_proven:
                self._writes = self._writes.saw(_KEY, now)
            ban = None  # another program replaced the list
        before = ban.before if ban else setup.banned
        wanted = before | quiet
        if setup.banned == wanted:
            self._confirm(ban if quiet else None, setup, now)
            return
        if quiet:
            sent = (*(ban.sent[-1:] if ban else ()), wanted)
            self._keep(_Ban(daemon.pid, daemon.started, before, sent))
        self._is_proven, self._sends = False, self._sends + 1
        self._irqbalance.ban(daemon, wanted)
        self._settled = now + (SETTLE_INTERVALS + 1) * setup.interval_seconds
        self._again = now + setup.interval_seconds  # it takes effect with the next interval
        if not quiet:
            self._keep(None)

    def _confirm(self, ban: _Ban | None, setup: Setup, now: float) -> None:
        """Note that irqbalance shows the right ban; it acts by it at the latest two intervals later."""
        if ban and not self._is_proven:
            self._settled = now + SETTLE_INTERVALS * setup.interval_seconds
        self._is_proven, self._sends = ban is not None, 0
        self._keep(ban)

    def _keep(self, ban: _Ban | None) -> None:
        """Save a ban, or forget the one there was; raise Refused if that cannot be written."""
        if ban == self._ban:
            return
        if ban:
            text = json.dumps([ban.pid, ban.started, str(ban.before), list(map(str, ban.sent))])
            self._saved.remember({_KEY: text})
        else:
            self._saved.forget([_KEY])
            self._is_proven = False
        self._ban = ban


def _read(text: str | None) -> _Ban | None:
    """Return a saved ban, None for a damaged one."""
    with suppress(*_DAMAGES):
        pid, started, before, sent = parse_json(text or "")
        return _Ban(
            int(pid), int(started), CPUSet.parse(str(before)), tuple(CPUSet.parse(str(it)) for it in sent)
        )
    return None
