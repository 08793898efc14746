"""Measure the agent on this machine: memory, idle CPU, and the time from an edited pod to the kernel's read back.

`python -m bench.agent` (as root) runs real processes in real cgroups, by the local runtime, with all of the agent's
libraries loaded. The kernel's cpusets are real; what is not here is a CRI runtime, so its calls cost nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from agent.config import AgentConfig
from agent.process import Listeners
from agent.wiring import build, run

if TYPE_CHECKING:
    from agent.process import Agent
    from agent.state import ContainerState, NodeState

LIBRARIES = ("agent.cri", "agent.kubeapi", "agent.report_events", "agent.report_node", "agent.report_pods")
SETTLE_SECONDS = 60
IDLE_SECONDS = 65  # two sweeps
CRANE = "qos.gocrane.io/cpu-manager"
POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  uid: uid-{name}
  annotations: {{{annotations}}}
spec:
  containers:
  - name: main
    command: [sleep, "100000"]
    resources: {{limits: {{cpu: {cpu}}}}}
"""


def config(folder: Path) -> AgentConfig:
    """Return an agent that runs the pods of a folder."""
    (folder / "pods").mkdir(exist_ok=True)
    return AgentConfig("bench", folder / "state", runtime="local", pods_dir=folder / "pods")


def write_bystanders(folder: Path, count: int) -> None:
    """Write pods that ask for nothing, all in one file."""
    pods = [POD.format(name=f"pod-{number}", annotations="", cpu="100m") for number in range(count)]
    (folder / "pods").mkdir(exist_ok=True)
    (folder / "pods/bystanders.yaml").write_text("---\n".join(pods))


def edit(folder: Path, policy: str) -> None:
    """Replace the manifest of the pod that is edited."""
    new = folder / "edited.new"
    new.write_text(POD.format(name="edited", annotations=f"{CRANE}: {policy}", cpu="1"))
    new.replace(folder / "pods/edited.yaml")


# Memory and idle CPU: an agent in a process of its own.


def serve(folder: Path) -> None:
    """Be that process."""
    for name in LIBRARIES:
        importlib.import_module(name)
    asyncio.run(run(config(folder)))


def measure_idle(pods: int) -> None:
    """Print what an agent with so many pods costs while nothing happens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_bystanders(folder, pods - 1)
        edit(folder, "exclusive")
        with subprocess.Popen([sys.executable, "-m", "bench.agent", "serve", name]) as process:
            wait_for_processes(folder, pods)
            used, began = cpu_seconds(process.pid), time.monotonic()
            time.sleep(IDLE_SECONDS)
            idle = (cpu_seconds(process.pid) - used) / (time.monotonic() - began)
            print(f"{pods} containers: {resident_mb(process.pid):.1f} MB resident, {idle:.2%} of a core idle")
            process.terminate()
        end_processes(folder)


def wait_for_processes(folder: Path, count: int) -> None:
    """Wait until all containers run."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while len(pids(folder)) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(pids(folder))} of {count} containers run")
        time.sleep(0.2)
    time.sleep(5)


def pids(folder: Path) -> list[int]:
    """Return the processes of the local runtime, which are told by their logs."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if str(link.readlink()).startswith(str(folder / "state")):
                found.append(int(link.parts[2]))
    return found


def end_processes(folder: Path) -> None:
    """End what the local runtime started, and remove its cgroups: every one of them slows the kernel's writes."""
    running = pids(folder)
    roots = {root for pid in running for root in roots_of(pid)}
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SETTLE_SECONDS
    while pids(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    for mount, name in product(Path("/sys/fs/cgroup").iterdir(), sorted(roots)):
        for cgroup, _, _ in os.walk(mount / name, topdown=False):
            Path(cgroup).rmdir()


def roots_of(pid: int) -> set[str]:
    """Return the topmost cgroups of the local runtime that a process is in."""
    paths = (line.split(":", 2)[2] for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines())
    return {path.split("/")[1] for path in paths if path.startswith("/corepin-local")}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmRSS"].split()[0]) / 1024


# From the edit to the kernel: agent and stop watch in one process.


class StopWatch:
    """Sees every state that the agent tells, as a reporter in front of all others."""

    def __init__(self, agent: Agent) -> None:
        self._tell = agent.publisher.tell
        self._news = asyncio.Event()
        self._state: NodeState | None = None
        agent.publisher.tell = self._told  # type: ignore[method-assign]

    def _told(self, state: NodeState) -> None:
        self._state = state
        self._tell(state)
        self._news.set()

    async def until(self, policy: str, count: int) -> None:
        """Wait until the edited pod has a policy, and every container of the node is where it shall be."""
        while not (self._state and is_settled(self._state, policy, count)):
            await self._news.wait()
            self._news.clear()


def is_settled(state: NodeState, policy: str, count: int) -> bool:
    """Say whether the kernel was read back right for every container."""
    found: dict[str, ContainerState] = {pod.name: one for pod in state.pods for one in pod.containers}
    edited = found.get("edited")
    is_there = edited is not None and str(edited.policy or "none") == policy
    return is_there and len(found) == count and all(one.applied == one.cpus for one in found.values())


async def measure_edits(folder: Path, pods: int, edits: int) -> dict[str, list[float]]:
    """Edit one pod again and again; return the seconds by kind of change."""
    write_bystanders(folder, pods - 1)
    edit(folder, "none")
    agent = await build(config(folder))
    watch = StopWatch(agent)
    serving = asyncio.create_task(agent.serve(Listeners()))
    await watch.until("none", pods)
    times: dict[str, list[float]] = {}
    before = "none"
    for number in range(edits):
        policy = ("exclusive", "none", "share", "exclusive", "share", "none", "exclusive", "none")[number % 8]
        began = time.perf_counter()
        edit(folder, policy)
        await watch.until(policy, pods)
        times.setdefault(f"{before} -> {policy}", []).append(time.perf_counter() - began)
        before = policy
        await asyncio.sleep(0.01)
    serving.cancel()
    await asyncio.wait([serving])
    return times


def print_edits(pods: int, edits: int) -> None:
    """Print the time of each kind of change."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        times = asyncio.run(measure_edits(folder, pods, edits))
        end_processes(folder)
    times["all"] = [one for kind in times.values() for one in kind]
    print(
        f"{edits} edits with {pods} containers, from the file to the kernel's read back of every container:"
    )
    for kind, taken in times.items():
        taken.sort()
        p99 = taken[min(len(taken) - 1, len(taken) * 99 // 100)]
        print(f"  {kind:22} {len(taken):5} p50 {median(taken) * 1e3:6.1f} ms  p99 {p99 * 1e3:6.1f} ms")


def main() -> None:
    """Measure everything, or be the process that is measured."""
    parser = argparse.ArgumentParser(prog="python -m bench.agent", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "idle", "edits", "serve"), default="all")
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--pods", type=int, nargs="+", default=[110, 250])
    parser.add_argument("--edits", type=int, default=1000)
    args = parser.parse_args()
    if args.what == "serve":
        serve(args.folder)
        return
    if args.what in {"all", "edits"}:
        print_edits(args.pods[0], args.edits)
    if args.what in {"all", "idle"}:
        for pods in args.pods:
            measure_idle(pods)


if __name__ == "__main__":
    main()
