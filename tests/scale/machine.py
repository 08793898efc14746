"""The simulated machine of one node, in this process, without files and polls, so that hundreds of them fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from tests.environments.process.client import ERRORS, SimulatedMachine, SimulatedRuntime
from tests.environments.process.state import Simulated, Wrong, operations
from tests.environments.process.tree import regular

TOPOLOGY: Final = regular(64)  # of every machine


@dataclass
class WithoutFiles(Simulated):
    """The state of a simulated machine, without files in sysfs."""

    def __post_init__(self) -> None:
        """Write no files."""


class InProcess(SimulatedMachine):
    """A simulated machine whose operations are called in this process."""

    def __init__(self) -> None:
        self._operations = operations(WithoutFiles(Path("/nowhere"), TOPOLOGY))

    def call(self, op: str, **values: Any) -> Any:
        """Do one operation; raise the agent's errors as the real interfaces do."""
        try:
            return self._operations[op](**values)
        except Wrong as no:
            kind, _, message = str(no).partition(": ")
            raise ERRORS[kind](message) from no


class Runtime(SimulatedRuntime):
    """The runtime of such a machine; whatever changes a container must call `changed`, in place of events."""

    def __init__(self, machine: InProcess) -> None:
        super().__init__(machine)
        self.changed: Callable[[], None] = lambda: None

    async def watch(self, changed: Callable[[], None]) -> None:
        """Use `changed` for events until cancelled."""
        self.changed = changed
        await asyncio.get_running_loop().create_future()


@dataclass(frozen=True)
class CPUs:
    """The CPUs of such a machine, as `agent.interfaces.Machine`."""

    name: str

    def topology(self) -> Topology:
        """Return the machine."""
        return TOPOLOGY

    def universe(self, topology: Topology) -> CPUSet:
        """Return all CPUs."""
        return topology.online

    def boot_id(self) -> str:
        """Return a constant boot id."""
        return "boot-1"

    def machine_id(self) -> str:
        """Return the machine's name."""
        return self.name
