"""A node with interrupts, whose agent can be killed and started again."""

from __future__ import annotations

from pathlib import Path

from agent.quiet.interfaces import RecordFile
from agent.quiet.interrupts import DEFAULT
from agent.quiet.mover import InterruptMover, Moved
from agent.quiet.taken import TakenStore
from agent.reconcile.restorable import Restorable
from pinning.machine.interrupts import Quiet, Stay
from tests.agent.quiet.fakes import FakeInterrupts, cpus

NIC = {"25": "eth0-rx-0", "26": "eth0-rx-1"}


class Node:
    """A node whose agent can be killed and started again."""

    def __init__(self, folder: Path, **affinities: str) -> None:
        self.folder = folder
        self.kernel = FakeInterrupts(
            {DEFAULT: cpus("0-7"), **{it.removeprefix("irq"): cpus(affinities[it]) for it in affinities}}
        )
        self.kernel.names = {number: NIC.get(number, f"dev{number}") for number in self.kernel.affinities}
        self.now = 0.0
        self.stays: dict[str, Stay] = {}
        self.start()

    def start(self) -> None:
        """Start a new agent."""
        self.kernel.kill_after = None
        self.mover = InterruptMover(
            self.kernel,
            TakenStore(Restorable(self.folder / RecordFile.INTERRUPTS, "boot")),
            lambda: self.now,
        )

    def round(self, quiet: str = "", **facts: bool) -> Moved:
        """Run one round, ten seconds after the last."""
        self.now += 10.0
        return self.mover.round(Quiet(cpus(quiet), self.kernel.up), **facts, stays=self.stays)

    def shown(self) -> dict[str, str]:
        """Return all affinities as text."""
        return {number: str(it) for number, it in self.kernel.affinities.items()}
