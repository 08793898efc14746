"""The real agent process on a simulated machine.

Only the interfaces to the outside are replaced: runtime, cgroups and CPUs are those of `tests.environments.process`,
pods come from
`pods.json` in the machine's root. The machine keeps running when the agent ends.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Any

from agent.kernel import sysfs
from agent.main import load
from agent.process import Agent, Listeners, Parts, run_until_signal
from agent.reconcile.checkpoint import StateDir
from agent.reconcile.reconciler import Settings
from logs import formatter
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import DEFAULT
from tests.environments.process.client import (
    SimulatedCgroups,
    SimulatedMachine,
    SimulatedRuntime,
    simulated_interfaces,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pinning.machine.topology import Topology

POLL_SECONDS = 0.01
SOCKET = "agent.sock"
LOG = "agent.log"
MACHINE_ID = "machine-id"


class FilePods:
    """Pods of a file that is replaced atomically (`agent.interfaces.PodSource`)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pods: dict[str, Any] = {}
        self._stamp = (0, 0)
        self.complete = False

    def pods(self) -> Mapping[str, Any]:
        """Return the pods by uid."""
        return self._pods

    async def watch(self, changed: Callable[[], None]) -> None:
        """Read the file whenever it was replaced, until cancelled."""
        while True:
            found = self._path.stat()
            stamp = (found.st_ino, found.st_mtime_ns)
            if stamp != self._stamp:
                self._stamp = stamp
                self._pods = json.loads(self._path.read_text())
                self.complete = True
                changed()
            await asyncio.sleep(POLL_SECONDS)

    async def look_up(self, namespace: str, name: str) -> Any:
        """Return the file's pod with this name, or None."""
        names = {"namespace": namespace, "name": name}
        pods = json.loads(self._path.read_text()).values()
        return next((pod for pod in pods if names.items() <= pod["metadata"].items()), None)


class TreeMachine:
    """The CPUs of the simulated machine's sysfs tree (`agent.interfaces.Machine`)."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: Topology | None = None

    def topology(self) -> Topology:
        """Return the tree's topology, read again after CPU hotplug."""
        online = sysfs.read_cpus(self._root / "sys/devices/system/cpu/online")
        if self._known is None or self._known.online != online:
            self._known = sysfs.read_topology(self._root)
        return self._known

    def universe(self, topology: Topology) -> CPUSet:
        """Return the online CPUs."""
        return topology.online

    def boot_id(self) -> str:
        """Return a constant boot id."""
        return "boot-1"

    def machine_id(self) -> str:
        """Return the machine's id."""
        return (self._root / MACHINE_ID).read_text()


class Runtime(SimulatedRuntime):
    """Reports changes by polling the current list, so that a restart does not read the history."""

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever the list of containers changes."""
        last: object = None
        while True:
            seen = await self.containers()
            if seen != last:
                changed()
            last = seen
            await asyncio.sleep(POLL_SECONDS)


async def serve(root: Path, folder: Path) -> None:
    """Run the agent until SIGTERM."""
    machine, cpus = SimulatedMachine(root), TreeMachine(root)
    state_dir = StateDir(folder)
    files = SimulatedCgroups(machine)
    interfaces = simulated_interfaces(Runtime(machine), files, FilePods(root / "pods.json"), cpus)
    parts = Parts(interfaces, Settings("node-1", DEFAULT), state_dir, load(state_dir, cpus.machine_id()))
    await run_until_signal(Agent(parts).serve(Listeners(socket=root / SOCKET)))


def run(root: Path, folder: Path) -> None:
    """Run the agent in a process of its own, with its log in a file."""
    with (root / LOG).open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    formatter.configure()
    asyncio.run(serve(root, folder))
