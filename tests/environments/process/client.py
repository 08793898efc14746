"""Client of a simulated machine, and the agent's interfaces on top of it."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.absent import (
    NoBootingMachines,
    NoContainerWatch,
    NoCpusetWatch,
    NoDeviceClaims,
    NoDevices,
    NoObservedCPUs,
    NoQuotas,
    NoVirtualMachines,
    NoWrappers,
)
from agent.errors import Gone, Refused, Unavailable
from agent.interfaces import Cgroups, Interfaces, RuntimeContainer, RuntimeSandbox, StartState, StrayTasks
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import State
from pinning.planning.task_parts import Parts, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from agent.interfaces import Machine, PodSource, Runtime

START_SECONDS = 60
POLL_SECONDS = 0.02  # poll interval for changes; the machine sends no events
REPOSITORY = Path(__file__).parents[3]
ERRORS = {"gone": Gone, "refused": Refused, "unavailable": Unavailable, "invalid": ValueError}


class SimulatedMachine:
    """One connection to a simulated machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.connect(str(root / "machine.sock"))
        except OSError:
            self._socket.close()
            raise
        self._file = self._socket.makefile("rwb")

    def call(self, op: str, **values: Any) -> Any:
        """Execute one operation; raise the agent's errors as the real interfaces do."""
        self._file.write(json.dumps({"op": op, **values}).encode() + b"\n")
        self._file.flush()
        line = self._file.readline()
        if not line:
            raise Unavailable("the machine has ended")
        reply = json.loads(line)
        if "error" in reply:
            kind, _, message = reply["error"].partition(": ")
            raise ERRORS[kind](message)
        return reply["ok"]

    def close(self) -> None:
        """Disconnect; the machine keeps running."""
        self._file.close()
        self._socket.close()


@contextmanager
def running_machine(root: Path, cpus: int = 16, threads: int = 2) -> Iterator[SimulatedMachine]:
    """Run a machine in a process of its own until the block ends."""
    command = [sys.executable, "-m", "tests.environments.process", "--root", str(root), "--cpus", str(cpus)]
    with subprocess.Popen([*command, "--threads", str(threads)], cwd=REPOSITORY) as process:
        try:
            with closing(_connected(root, process)) as machine:
                yield machine
        finally:
            process.terminate()


def _connected(root: Path, process: subprocess.Popen[bytes]) -> SimulatedMachine:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            return SimulatedMachine(root)
        except (FileNotFoundError, ConnectionRefusedError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(POLL_SECONDS)


class SimulatedRuntime:
    """The runtime of a simulated machine, as `agent.interfaces.Runtime`."""

    name = "simulated"

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine

    async def containers(self) -> tuple[RuntimeContainer, ...]:
        """Return every container."""
        return tuple(
            RuntimeContainer(
                id=container["id"],
                pod_uid=container["pod_uid"],
                namespace=container["namespace"],
                pod=container["pod"],
                name=container["name"],
                state=State(container["state"]),
                pid=0,
                cgroup=container["cgroup"],
                in_vm=container["in_vm"],
            )
            for container in self._machine.call("list")
        )

    async def known_containers(self) -> None:
        """Return None, because the simulated runtime sends no events."""
        return

    def changes(self) -> None:
        """Return None, which means that anything may have changed."""
        return

    def sandboxes(self) -> tuple[RuntimeSandbox, ...]:
        """Return no sandboxes, because the machine has no VM runtimes."""
        return ()

    async def update_cpus(self, container_id: str, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Let the runtime write a cpuset."""
        self._machine.call("update", id=container_id, cpus=str(cpus))

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` after changes of containers, until cancelled."""
        await _poll(self._machine, lambda _: changed())


class SimulatedCgroups:
    """The cgroups of a simulated machine: every interface of `agent.interfaces.Cgroups` except the quotas."""

    version = 2
    writable = True

    def __init__(self, machine: SimulatedMachine) -> None:
        self._machine = machine
        self._followed: frozenset[str] = frozenset()
        self._ours: dict[str, CPUSet] = {}

    def read(self, cgroup: str) -> CPUSet:
        """Return the effective CPUs."""
        return CPUSet.parse(self._machine.call("read", cgroup=cgroup))

    def mems(self, cgroup: str) -> CPUSet:
        """Return the empty set: the machine has no memory."""
        self.read(cgroup)
        return EMPTY

    def write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Write cpuset.cpus."""
        self.expect(cgroup, cpus)
        self._machine.call("write", cgroup=cgroup, cpus=str(cpus))

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Return one task outside if the cgroup is, because the machine has no tasks of its own."""
        return StrayTasks() if self.read(cgroup) <= cpus else StrayTasks(outside=(1,))

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Return 0: the machine has no tasks."""
        self.read(cgroup)
        return 0

    def start_state(self, cgroup: str) -> StartState:
        """Return a state without processes, because the machine has none."""
        self.read(cgroup)
        return StartState(None, has_begun=False)

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Count a later write of these CPUs as our own."""
        self._ours[cgroup] = cpus

    def follow(self, cgroups: Iterable[str], *, anew: bool = True) -> None:
        """Watch these cgroups."""
        self._followed = frozenset(cgroups)

    async def watch(self, written: Callable[[str], None]) -> None:
        """Call `written` for each followed cgroup that another client wrote, until cancelled."""

        def report(event: dict[str, Any]) -> None:
            cgroup = f"/kubepods/pod{event['pod_uid']}/{event['id']}"
            if cgroup in self._followed and CPUSet.parse(event["cpus"]) != self._ours.get(cgroup):
                written(cgroup)

        await _poll(self._machine, report)

    def move(self, cgroup: str, _before: Parts, after: Parts) -> None:
        """Write the CPUs of both parts, because the machine has no tasks to separate."""
        self.write(cgroup, after.cpus)

    def pin(self, cgroup: str, _before: Parts, _after: Parts) -> None:
        """Do nothing: the machine has no tasks."""
        self.read(cgroup)

    def look(self, cgroup: str, _: Parts) -> Tally:
        """Return no tasks."""
        self.read(cgroup)
        return Tally()


def simulated_interfaces(
    runtime: Runtime, files: SimulatedCgroups, pods: PodSource, machine: Machine
) -> Interfaces:
    """Return the interfaces of an agent on a simulated machine; its cgroups are not watched."""
    cgroups = Cgroups(files, files, NoCpusetWatch(), NoQuotas(), files)
    return Interfaces(
        runtime,
        cgroups,
        pods,
        machine,
        container_watch=NoContainerWatch(),
        observed_cpus=NoObservedCPUs(),
        vms=NoVirtualMachines(),
        wrappers=NoWrappers(),
        boots=NoBootingMachines(),
        devices=NoDevices(),
        claims=NoDeviceClaims(),
    )


async def _poll(machine: SimulatedMachine, report: Callable[[dict[str, Any]], None]) -> None:
    seen = len(machine.call("events"))
    while True:
        await asyncio.sleep(POLL_SECONDS)
        events = machine.call("events", since=seen)
        seen += len(events)
        for event in events:
            report(event)
