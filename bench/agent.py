"""Benchmark of the agent on this machine: memory, idle CPU, and the cost of a pod's edit until the kernel's read-back.

`python -m bench.agent` (as root) runs real processes in real cgroups, by the local runtime, with all of the
agent's libraries loaded. The kernel's cpusets are real; there is no CRI runtime, so its calls cost nothing.
`bench.edits` has the edits.
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

from agent.local import folder_events
from agent.main import run
from bench.edits import config, edit, measure_edits, table, write_bystanders

LIBRARIES = (
    "agent.cri.runtime",
    "agent.nri.container_watch",
    "apiserver.client",
    "agent.report.event_recorder",
    "agent.report.node",
    "agent.report.pod_status",
)
SETTLE_SECONDS = 60
IDLE_SECONDS = 65  # two sweeps
# Runs the measured process without httpx's command line, which the image does not have (requirements.unused); it would
# load click and Pygments.
AS_IN_IMAGE = "import sys; sys.modules['httpx._main'] = None; from bench.agent import main; main()"


# Memory and idle CPU of an agent in a separate process.


def serve(folder: Path) -> None:
    """Run the measured agent in this process."""
    for name in LIBRARIES:
        importlib.import_module(name)
    folder_events.LOOK_SECONDS = 3600.0  # type: ignore[misc] # a watch of the API server looks at no manifests
    asyncio.run(run(config(folder)))


def measure_idle(pods: int) -> None:
    """Print the idle cost of an agent with this many pods."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_bystanders(folder, pods - 1)
        edit(folder, "exclusive")
        with subprocess.Popen([sys.executable, "-c", AS_IN_IMAGE, "serve", name]) as process:
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
    """Return the processes of the local runtime, found by their log files."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if str(link.readlink()).startswith(str(folder / "state")):
                found.append(int(link.parts[2]))
    return found


def end_processes(folder: Path) -> None:
    """Kill the local runtime's processes and remove its cgroups, because each cgroup slows the kernel's writes."""
    running = pids(folder)
    roots = {root for pid in running for root in roots_of(pid)}
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + SETTLE_SECONDS
    while pids(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    for mount, name in product(Path("/sys/fs/cgroup").iterdir(), sorted(roots)):
        while (left := remove_below(mount / name)) and time.monotonic() < deadline:
            time.sleep(0.1)  # threads leave their cgroup after their process has closed its files
        if left:
            raise TimeoutError(f"{left} cgroups below {mount / name} are not empty")


def remove_below(folder: Path) -> int:
    """Remove a cgroup with its children; return the number of those that could not be removed."""
    left = 0
    for cgroup, _, _ in os.walk(folder, topdown=False):
        try:
            Path(cgroup).rmdir()
        except OSError:
            left += 1
    return left


def roots_of(pid: int) -> set[str]:
    """Return the topmost cgroups of the local runtime that contain a process."""
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


def print_edits(pods: int, edits: int) -> None:
    """Print the cost of edits, and the CPU time of everything else on the machine."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        taken = asyncio.run(measure_edits(folder, pods, edits))
        end_processes(folder)
    print(
        f"{edits} edits with {pods} containers, from what the watch delivered to the kernel's read back of every container:"
    )
    for line in table(taken):
        print(line)
    print(
        f"load of the machine {before:.1f} before and {os.getloadavg()[0]:.1f} after, {os.cpu_count()} CPUs"
    )


def main() -> None:
    """Measure everything, or run as the measured process."""
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
