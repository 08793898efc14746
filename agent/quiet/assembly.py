"""Assembly of `Quieting` from the agent's flags and the mounted files of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.clock import Clock
from agent.quiet import balancer, idle_states, interrupt_ban, taken, workqueue_mover
from agent.quiet.quieting import NO_COMPONENT, SWITCHED_OFF, Quieting
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config import AgentConfig
    from agent.interfaces import Machine
    from agent.quiet.interfaces import Part
    from agent.reconcile.checkpoint import StateDir

FILES = (taken.FILE, balancer.FILE, interrupt_ban.FILE, workqueue_mover.FILE, idle_states.FILE)


def quieting_of(config: AgentConfig, state_dir: StateDir, machine: Machine) -> Quieting:
    """Return the `Quieting` of a node; without the node's /proc/irq it only reports the reason."""
    boot_id, monotonic = machine.boot_id(), Clock().monotonic
    saved = {file: Restorable(state_dir.beside(file), boot_id) for file in FILES}
    if config.irq is None:
        is_left = any(it.originals or it.problem for it in saved.values())
        return Quieting(None, NO_COMPONENT, is_left=is_left)
    # An agent without the component does not load these.
    from agent.quiet.interrupts import KernelInterrupts
    from agent.quiet.irqbalance import Irqbalance
    from agent.quiet.keeper import Kept, QuietKeeper
    from agent.quiet.kept import KeptLookup
    from agent.quiet.mover import InterruptMover

    node, store = config.config, taken.TakenStore(saved[taken.FILE])
    interrupts = KernelInterrupts(config.irq, config.root / "sys")
    irqbalance = Irqbalance(config.irqbalance, config.root / "proc")
    cpu_ban = balancer.Balancer(
        irqbalance, saved[balancer.FILE], monotonic, is_managed=node.manages_irqbalance
    )
    mover = InterruptMover(interrupts, store, monotonic)
    ban = interrupt_ban.InterruptBan(
        irqbalance, saved[interrupt_ban.FILE], monotonic, is_managed=node.manages_irqbalance
    )
    kept = Kept(KeptLookup(interrupts, monotonic), ban)
    why_still = "" if node.quiet_interrupts else SWITCHED_OFF
    keeper = QuietKeeper(interrupts, mover, cpu_ban, kept, _parts(config, saved), why_still)
    return Quieting(keeper, "" if node.keeps_quiet else SWITCHED_OFF)


def _parts(config: AgentConfig, saved: Mapping[str, Restorable]) -> Mapping[QuietWord, Part]:
    """Return the parts besides interrupts: workqueues and idle states."""
    from agent.quiet.workqueues import AbsentWorkqueues, KernelWorkqueues

    node, monotonic = config.config, Clock().monotonic
    workqueues = KernelWorkqueues(config.workqueues) if config.workqueues else AbsentWorkqueues()
    store = taken.TakenStore(saved[workqueue_mover.FILE])
    mover = workqueue_mover.WorkqueueMover(workqueues, store, monotonic, is_wanted=node.quiet_workqueues)
    states = idle_states.KernelIdleStates(config.power)
    bounds = idle_states.IdleStatePart(states, saved[idle_states.FILE], monotonic, node.quiet_latency)
    return {QuietWord.WORKQUEUES: mover, QuietWord.IDLE_STATES: bounds}
