"""One round of keeping CPUs quiet: irqbalance's ban first, then interrupts, then the other parts."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError
from agent.node_state import CRASHED, QuietPart, QuietResult
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Quiet, hindrance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.quiet.balancer import Balancer, BanState
    from agent.quiet.interfaces import Interrupts, Part
    from agent.quiet.interrupt_ban import InterruptBan, Unkept
    from agent.quiet.kept import Keeps, KeptLookup
    from agent.quiet.mover import InterruptMover
    from pinning.contract import QuietWord

# Name of irqbalance's list of banned CPUs in reported conflicts.
IRQBALANCE: Final = "CPUs that irqbalance must not use"
NO_PARTS: Final[Mapping[QuietWord, Part]] = MappingProxyType({})

logger = logging.getLogger(__name__)


class Kept(NamedTuple):
    """The interrupts that stay on quiet CPUs by the `irq-policy` of pods."""

    lookup: KeptLookup
    ban: InterruptBan  # makes irqbalance leave these interrupts alone

    def leave(self, keeps: Keeps) -> Unkept:
        """Send irqbalance the interrupts that it must not move; return those that it may still move."""
        return self.ban.leave(self.lookup.left_alone(keeps))


class QuietKeeper:
    """Interrupts, irqbalance and other parts of a node; called from one thread at a time.

    `why_still` is the reason why interrupts are not moved, empty if they are; `parts` are workqueues and idle
    states, by name.
    """

    def __init__(
        self,
        interrupts: Interrupts,
        mover: InterruptMover,
        balancer: Balancer,
        kept: Kept,
        parts: Mapping[QuietWord, Part] = NO_PARTS,
        why_still: str = "",
    ) -> None:
        self._interrupts = interrupts
        self._mover = mover
        self._balancer = balancer
        self._kept = kept
        self._parts = parts
        self._why_still = why_still
        self._banned = EMPTY  # quiet CPUs of the last ban
        self.has_settled = True  # the last round moved nothing, and irqbalance acts by its new list

    @property
    def is_idle(self) -> bool:
        """Return whether the agent has changed nothing, so that no round is needed without quiet CPUs."""
        return not (self._has_moved or any(part.has_taken for part in self._parts.values()))

    @property
    def _has_moved(self) -> bool:
        """Return whether interrupts or irqbalance's ban have to be restored."""
        return self._mover.has_taken or self._balancer.has_banned or self._kept.ban.has_added

    def round(self, cpus: CPUSet, fully: CPUSet, keeps: Keeps = frozenset()) -> QuietResult | None:
        """Do one round; return its result, None if the machine changed and another round is due.

        `cpus` are kept free of interrupts, `fully` of unbound workqueues and deep idle states; `keeps` are the
        interrupts that stay on CPUs of containers.
        """
        self.has_settled = True
        if self._why_still and not self._has_moved:
            result: QuietResult | None = QuietResult(cpus, self._why_still, is_off=True)
        else:
            result = self._interrupts_round(cpus, keeps)
        if result is None:
            return None
        parts = (self._part_round(name, part, fully) for name, part in self._parts.items())
        return replace(
            result, parts=tuple(filter(None, parts)), fully=None if fully == result.cpus else fully
        )

    def _part_round(self, name: QuietWord, part: Part, cpus: CPUSet) -> QuietPart | None:
        """Return the result of a part's round; an error becomes a result, so that the other parts still run."""
        try:
            return part.round(Quiet(cpus, self._interrupts.online()))
        except AgentError as error:
            return QuietPart(name, str(error))
        except Exception:  # a bug in one part must not stop the others
            logger.exception("round of quiet CPUs crashed", extra={"facts": {"part": name}})
            return QuietPart(name, CRASHED)

    def _interrupts_round(self, cpus: CPUSet, keeps: Keeps) -> QuietResult | None:
        """Return the result of moving interrupts; an error becomes a result, so that the other parts still run."""
        try:
            return self._move_interrupts(cpus, keeps)
        except AgentError as error:
            return QuietResult(cpus, str(error))
        except Exception:
            logger.exception("round of quiet CPUs crashed", extra={"facts": {"part": "interrupts"}})
            return QuietResult(cpus, CRASHED)

    def _move_interrupts(self, cpus: CPUSet, keeps: Keeps) -> QuietResult | None:
        quiet = Quiet(cpus, self._interrupts.online())
        reason = "" if self._why_still else hindrance(quiet)
        if reason or self._why_still:
            quiet, keeps = Quiet(EMPTY, quiet.online), frozenset()
        stays = self._kept.lookup.follow(keeps)
        # This comes first, because irqbalance moves the interrupts that are not in its list.
        unkept = self._kept.leave(keeps)
        state = self._keep_off(quiet.cpus | self._banned)
        moved = self._mover.round(quiet, may_take=not state.reason, is_settled=state.is_settled, stays=stays)
        self.has_settled = state.is_settled and not self._mover.has_moved
        if not moved.is_steady:
            return None
        if self._banned != quiet.cpus:
            self._keep_off(quiet.cpus)
        if stays and self._mover.has_moved:
            unkept = self._kept.leave(keeps)  # this round may have changed where these fire
        failed = f"interrupts that could not be moved: {'; '.join(moved.failed)}" if moved.failed else ""
        foreign = (
            f"another program moves interrupts back: {', '.join(moved.conflicts)}" if moved.conflicts else ""
        )
        fault = reason or state.reason or foreign or failed
        conflicts = (*([IRQBALANCE] if state.is_conflict else []), *moved.conflicts)
        is_off = bool(self._why_still) and not fault
        why = fault or self._why_still
        kept = self._kept.lookup.shown(keeps, unkept, self._mover.crowded.reasons)
        return QuietResult(cpus, why, moved.managed, conflicts, state.reason, is_off=is_off, kept=kept)

    def restore(self) -> bool:
        """Restore every original value, the last part first; return whether nothing is left to restore."""
        is_done = True
        parts = [part.restore for part in self._parts.values()]
        restores = self._mover.restore, self._balancer.restore, self._kept.ban.restore
        for restore in (*reversed(parts), *restores):
            try:
                is_done = restore() and is_done
            except AgentError as error:
                logger.warning("quiet CPUs not restored", extra={"facts": {"reason": str(error)}})
                is_done = False
            except Exception:  # the other parts are restored even if one fails
                logger.exception("quiet CPUs not restored", extra={"facts": {"reason": CRASHED}})
                is_done = False
        return is_done and self.is_idle

    def _keep_off(self, cpus: CPUSet) -> BanState:
        state = self._balancer.keep_off(cpus)
        self._banned = cpus
        return state
