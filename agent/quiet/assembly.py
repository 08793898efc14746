"""Construction of `Quieting` from the agent's flags and the mounted files of the node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.clock import Clock
from agent.quiet.interfaces import RecordFile
from agent.quiet.quieting import NO_COMPONENT, SWITCHED_OFF, Quieting
from agent.reconcile.restorable import Restorable
from pinning.contract import QuietWord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.config import AgentConfig
    from agent.interfaces import Machine
    from agent.quiet.interfaces import Part
    from agent.reconcile.checkpoint import StateDir


def quieting_of(config: AgentConfig, state_dir: StateDir, machine: Machine) -> Quieting:
    """Return the `Quieting` of a node; without the node's /proc/irq it changes nothing and reports the reason."""
    boot_id, monotonic = machine.boot_id(), Clock().monotonic
    saved = {file: Restorable(state_dir.beside(file), boot_id) for file in RecordFile}
    if config.irq is None:
        is_left = any(it.originals or it.problem for it in saved.values())
        return Quieting(None, NO_COMPONENT, is_left=is_left)
    # An agent without the component `quiet` does not load these modules.
    from agent.quiet.balancer import Balancer
    from agent.quiet.interrupt_ban import InterruptBan
    from agent.quiet.interrupts import KernelInterrupts
    from agent.quiet.irqbalance import Irqbalance
    from agent.quiet.keeper import Kept, QuietKeeper
    from agent.quiet.kept import KeptLookup
    from agent.quiet.mover import InterruptMover
    from agent.quiet.taken import TakenStore

    node, store = config.config, TakenStore(saved[RecordFile.INTERRUPTS])
    interrupts = KernelInterrupts(config.irq, config.root / "sys")
    irqbalance = Irqbalance(config.irqbalance, config.root / "proc")
    cpu_ban = Balancer(
        irqbalance, saved[RecordFile.BANNED_CPUS], monotonic, is_managed=node.manages_irqbalance
    )
    mover = InterruptMover(interrupts, store, monotonic)
    ban = InterruptBan(
        irqbalance, saved[RecordFile.BANNED_INTERRUPTS], monotonic, is_managed=node.manages_irqbalance
    )
    kept = Kept(KeptLookup(interrupts, monotonic), ban)
    why_still = "" if node.quiet_interrupts else SWITCHED_OFF
    keeper = QuietKeeper(interrupts, mover, cpu_ban, kept, _parts(config, saved), why_still)
    return Quieting(keeper, "" if node.keeps_quiet else SWITCHED_OFF)


def _parts(config: AgentConfig, saved: Mapping[RecordFile, Restorable]) -> Mapping[QuietWord, Part]:
    """Return the `Part` objects for unbound workqueues and for idle states, by name."""
    from agent.quiet.idle_states import IdleStatePart, KernelIdleStates
    from agent.quiet.taken import TakenStore
    from agent.quiet.workqueue_mover import WorkqueueMover
    from agent.quiet.workqueues import AbsentWorkqueues, KernelWorkqueues

    node, monotonic = config.config, Clock().monotonic
    workqueues = KernelWorkqueues(config.workqueues) if config.workqueues else AbsentWorkqueues()
    store = TakenStore(saved[RecordFile.WORKQUEUES])
    mover = WorkqueueMover(workqueues, store, monotonic, is_wanted=node.quiet_workqueues)
    states = KernelIdleStates(config.power)
    bounds = IdleStatePart(states, saved[RecordFile.IDLE_STATES], monotonic, node.quiet_latency)
    return {QuietWord.WORKQUEUES: mover, QuietWord.IDLE_STATES: bounds}
