"""One round of keeping interrupts off quiet CPUs: irqbalance's ban first, then interrupts, and backwards afterwards."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.node_state import QuietResult
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.interrupts import Quiet, hindrance

if TYPE_CHECKING:
    from agent.quiet.balancer import Balancer, Told
    from agent.quiet.interrupt_interface import Interrupts
    from agent.quiet.mover import InterruptMover

IRQBALANCE: Final = "CPUs that irqbalance must not use"  # a list, among the conflicts

logger = logging.getLogger(__name__)


class QuietKeeper:
    """Interrupts and irqbalance of a node; called from one thread at a time."""

    def __init__(self, interrupts: Interrupts, mover: InterruptMover, balancer: Balancer) -> None:
        self._interrupts = interrupts
        self._mover = mover
        self._balancer = balancer
        self._banned = EMPTY  # for which CPUs irqbalance was asked last
        self.has_settled = True  # the last round moved nothing, and irqbalance acts by its ban

    @property
    def is_idle(self) -> bool:
        """Return whether nothing is changed on this node, so that no round is needed without quiet CPUs."""
        return not (self._mover.has_taken or self._balancer.has_banned)

    def round(self, cpus: CPUSet) -> QuietResult | None:
        """Keep interrupts off CPUs; None if the machine changed while it was read, and a round is due again."""
        try:
            quiet = Quiet(cpus, self._interrupts.online())
            reason = hindrance(quiet)
            if reason:
                quiet = Quiet(EMPTY, quiet.online)
            self.has_settled = True
            told = self._tell(quiet.cpus | self._banned)
            moved = self._mover.round(quiet, may_take=not told.reason, is_settled=told.is_settled)
            self.has_settled = told.is_settled and not self._mover.has_moved
            if not moved.is_steady:
                return None
            if self._banned != quiet.cpus:
                self._tell(quiet.cpus)
        except AgentError as error:
            return QuietResult(cpus, str(error))
        failed = f"interrupts that could not be moved: {'; '.join(moved.failed)}" if moved.failed else ""
        foreign = (
            f"another program moves interrupts back: {', '.join(moved.conflicts)}" if moved.conflicts else ""
        )
        why = reason or told.reason or foreign or failed
        conflicts = (*([IRQBALANCE] if told.is_conflict else []), *moved.conflicts)
        return QuietResult(cpus, why, moved.managed, conflicts, told.reason)

    def restore(self) -> bool:
        """Give interrupts and irqbalance what they had before; return whether nothing is left to restore."""
        is_done = True
        for restore in (self._mover.restore, self._balancer.restore):
            try:
                is_done = restore() and is_done
            except AgentError as error:
                logger.warning("interrupts not restored", extra={"facts": {"reason": str(error)}})
                is_done = False
        return is_done and self.is_idle

    def _tell(self, cpus: CPUSet) -> Told:
        told = self._balancer.keep_off(cpus)
        self._banned = cpus
        return told
