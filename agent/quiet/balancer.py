"""Add quiet CPUs to the CPUs that irqbalance must not use, and remove them when they are no longer quiet."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import Refused, Unavailable
from agent.quiet.irqbalance import MOST_LETTERS, Daemon, LastAnswer, cpus_text
from agent.reconcile.foreign_writes import ForeignWrites
from agent.reconcile.restorable import RestorableValue
from pinning.json_text import parse_json
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.quiet.irqbalance import Irqbalance, Setup
    from agent.reconcile.restorable import Restorable

# Seconds between two requests to an irqbalance that has the right ban or does not answer.
LOOK_SECONDS: Final = 60.0
SETTLE_INTERVALS: Final = 2  # intervals of irqbalance until it has applied a new list
MOST_SENDS: Final = 6  # requests for one ban before it counts as refused
_KEY: Final = "ban"

logger = logging.getLogger(__name__)


class BanState(NamedTuple):
    """Whether the quiet CPUs are banned in irqbalance."""

    reason: str = ""  # why irqbalance may use quiet CPUs; empty: it does not run, or its ban is in force
    is_settled: bool = True  # False: irqbalance may still move interrupts by its old list
    is_conflict: bool = False  # another program keeps replacing irqbalance's list


class _Ban(NamedTuple):
    """A ban that this program or an earlier agent sent."""

    pid: int
    started: int
    before: CPUSet  # the banned CPUs without this ban
    sent: tuple[CPUSet, ...]  # lists of banned CPUs that were sent, newest last

    def after_another_program(self, banned: CPUSet) -> _Ban | None:
        """Return our ban, updated to a list that another program sent; None if the list has no CPU of our ban."""
        added = [it - self.before for it in self.sent]
        ours = union(it for it in added if it <= banned)
        return self._replace(before=banned - ours, sent=(banned,)) if ours else None


class Balancer:
    """The ban of quiet CPUs in a node's irqbalance; called from one thread at a time."""

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
        # While the file of the saved ban cannot be used, no ban may be sent.
        self._saved = RestorableValue(saved, _KEY, _parse, _text)
        self._monotonic = monotonic
        self._last: tuple[Daemon, CPUSet] | None = None  # irqbalance and the quiet CPUs of the last request
        self._answer = BanState()
        self._heard: LastAnswer[BanState] = LastAnswer()
        self._again = 0.0  # when the next request is due
        self._settled = 0.0  # when irqbalance will no longer move interrupts by its old list
        self._searched = -LOOK_SECONDS
        self._silent: Daemon | None = None
        self._is_proven = False  # the ban was read back
        self._sends = 0  # number of requests since the ban was last read back
        self._is_lifted = False  # the last list that was sent bans no quiet CPUs
        self._writes: ForeignWrites[str] = ForeignWrites()

    @property
    def has_banned(self) -> bool:
        """Return whether a saved ban is still to be lifted."""
        return self._saved.is_left

    @property
    def _ban(self) -> _Ban | None:
        return self._saved.value

    def keep_off(self, quiet: CPUSet) -> BanState:
        """Ban irqbalance from these CPUs; for an empty set restore the list from before the ban."""
        try:
            self._saved.read()
        except Refused as error:
            return BanState(str(error))
        quiet = quiet if self._is_managed else EMPTY
        daemon = self._find(is_needed=bool(quiet))
        if daemon is None or not (quiet or self._ban):
            self._last = None
            return BanState()
        if daemon.socket is None:
            return BanState(self._unreachable(daemon, quiet))
        now = self._monotonic()
        if self._last != (daemon, quiet) or now >= self._again:
            self._last, self._again = (daemon, quiet), now + LOOK_SECONDS
            self._answer = self._ask(daemon, quiet, now)
        return self._answer._replace(is_settled=now >= self._settled)

    def _find(self, *, is_needed: bool) -> Daemon | None:
        """Return the running irqbalance; the search through all processes by name is rate-limited."""
        daemon = self._irqbalance.with_socket()
        if self._ban and (daemon is None or daemon[:2] != self._ban[:2]):
            banned = Daemon(self._ban.pid, self._ban.started)
            if self._irqbalance.runs(banned):
                return banned  # its socket cannot be reached, and its ban is in force
            self._keep(None)  # irqbalance exited, and its ban with it
        if daemon or not is_needed:
            return daemon
        now = self._monotonic()
        if now >= self._searched + LOOK_SECONDS:
            self._searched, self._silent = now, self._irqbalance.without_socket()
        return self._silent

    def _unreachable(self, daemon: Daemon, quiet: CPUSet) -> str:
        """Return why a running irqbalance does not answer, and the remedy."""
        what = f"irqbalance ({daemon.pid}) runs and has no socket below {self._irqbalance.folder}"
        if not quiet:
            return f"{what}, so that corepin cannot lift its ban of CPUs: restart irqbalance"
        return (
            f"{what}: if it was restarted after the agent, restart the agent; else ban the CPUs in its file:"
            f" IRQBALANCE_BANNED_CPULIST={quiet}"
        )

    def _ask(self, daemon: Daemon, quiet: CPUSet, now: float) -> BanState:
        """Send irqbalance the wanted list of banned CPUs if its list differs; return whether the ban is in force."""
        self._writes = self._writes.at(now)
        if self._writes.is_conflict(_KEY):
            reason = "another program keeps replacing the CPUs that irqbalance must not use"
            return BanState(reason, is_conflict=True)
        try:
            setup = self._irqbalance.setup(daemon)
        except Unavailable as error:
            state = self._heard.holds(daemon, frozenset(quiet), now)
            return BanState(_unasked(error)) if state is None else state
        self._heard.drop()
        state = BanState(self._corrected(daemon, setup, quiet, now))
        if state.reason or quiet <= setup.banned:  # otherwise the list that was sent is not in force yet
            self._heard.keep(daemon, frozenset(quiet), state, now)
        return state

    def _corrected(self, daemon: Daemon, setup: Setup, quiet: CPUSet, now: float) -> str:
        """Send the wanted list if needed; return why that fails or irqbalance does not apply it; empty: no fault."""
        try:
            reason = self._correct(daemon, setup, quiet, now)
        except Unavailable as error:
            return _unasked(error)
        if reason or self._sends <= MOST_SENDS:
            return reason
        return f"irqbalance ({daemon.pid}) does not apply the list of CPUs that it must not use"

    def restore(self) -> bool:
        """Lift the ban, which takes effect at irqbalance's next interval; return whether no ban is left."""
        self._writes, self._last, self._is_lifted = ForeignWrites(), None, False
        self._heard.drop()  # an earlier answer must not hide that the ban cannot be lifted now
        state = self.keep_off(EMPTY)
        if state.reason:
            logger.warning("irqbalance's ban not lifted", extra={"facts": {"reason": state.reason}})
            return False
        if self._is_lifted:
            self._keep(None)  # an uninstall does not wait for the interval
        return self._ban is None

    def _correct(self, daemon: Daemon, setup: Setup, quiet: CPUSet, now: float) -> str:
        """Send the wanted list unless irqbalance shows it; return why it cannot be sent, empty if it can."""
        ban = self._ban
        if ban and setup.banned not in (ban.before, *ban.sent):
            if self._is_proven and not quiet <= setup.banned:
                self._writes = self._writes.saw(_KEY, now)
            ban = ban.after_another_program(setup.banned)
        before = ban.before if ban else setup.banned
        wanted = before | quiet
        if setup.banned == wanted:
            self._confirm(ban if quiet else None, setup, now)
            return ""
        if len(cpus_text(wanted)) > MOST_LETTERS:  # old irqbalance releases truncate a longer list
            return f"irqbalance reads {MOST_LETTERS} characters of a list of CPUs, and this one is longer"
        if quiet:
            # The daemon may show each of these lists until its next interval.
            shown = (setup.banned, ban.sent[-1]) if ban else ()
            sent = (*dict.fromkeys(it for it in shown if it not in {before, wanted}), wanted)
            self._keep(_Ban(daemon.pid, daemon.started, before, sent))
        self._is_proven, self._sends = False, self._sends + 1
        self._irqbalance.ban(daemon, wanted)
        self._settled = now + (SETTLE_INTERVALS + 1) * setup.interval_seconds
        self._again = now + setup.interval_seconds  # irqbalance applies a list at its next interval
        self._is_lifted = not quiet  # the record stays until the shorter list is read back
        return ""

    def _confirm(self, ban: _Ban | None, setup: Setup, now: float) -> None:
        """Record that irqbalance shows the right ban, which it applies within two of its intervals."""
        if ban and not self._is_proven:
            self._settled = now + SETTLE_INTERVALS * setup.interval_seconds
        self._is_proven, self._sends = ban is not None, 0
        self._keep(ban)

    def _keep(self, ban: _Ban | None) -> None:
        """Save a ban, or delete the saved one; raise Refused if the file cannot be written."""
        self._saved.save(ban)
        if ban is None:
            self._is_proven = False


def _unasked(error: Unavailable) -> str:
    return f"irqbalance runs and does not answer: {error}"


def _text(ban: _Ban) -> str:
    return json.dumps([ban.pid, ban.started, str(ban.before), list(map(str, ban.sent))])


def _parse(text: str) -> _Ban:
    """Return a saved ban; raise an error for a damaged one, because its CPU lists are sent to irqbalance."""
    pid, started, before, sent = parse_json(text)
    ban = _Ban(int(pid), int(started), CPUSet.parse(str(before)), tuple(CPUSet.parse(str(it)) for it in sent))
    if not ban.sent:
        raise ValueError(text)
    return ban
