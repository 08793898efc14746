"""Inside the guest: an agent whose containers run `cmk isolate`, and the kernel's masks of their threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agent.kernel.cgroupfs import find_hierarchy
from agent.wrappers.peer import cgroup_of
from demo.webhook import DemoFailed
from pinning.machine.cpuset import CPUSet
from tests.environments.guest.inside import Agent, report
from tests.environments.guest.polling import wait_until
from tests.environments.process.cmk_agent import CMKAgent

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

COMMAND: Final = Path(sys.prefix, "libexec", "cmk")
PROGRAM: Final = Path(__file__).with_name("two_threads.py")
CGROUPS: Final = Path("/sys/fs/cgroup")
LAST_PID: Final = Path("/proc/sys/kernel/ns_last_pid")


class WrappingAgent(CMKAgent):
    """An agent of the runtime `local`, forked from a process that has imported its libraries."""

    def __init__(self, directory: Path, starter: Connection) -> None:
        super().__init__(directory, COMMAND)
        self._folder = directory
        (directory / "pods").mkdir()
        self.process = Agent(list(self.command[1:]), starter)

    def start(self) -> None:
        """Start the agent, and return when it answers."""
        self.process.start()
        self.until("it answers", lambda: bool(self.state()["podsComplete"]))

    def until(self, what: str, is_so: Callable[[], bool]) -> float:
        """Wait until a condition holds."""
        began = time.monotonic()
        if not wait_until(is_so, rest=0.05):
            report("unsettled", wanted=what, written=self._written(), state=self.state())
            raise DemoFailed(f"the agent: {what}: not within {time.monotonic() - began:.0f} s")
        return time.monotonic() - began

    def _written(self) -> dict[str, str]:
        """Return the last line of each container."""
        return {log.name: log.read_text(encoding="utf-8")[-2000:] for log in self.logs.glob("*")}

    def end(self, *pods: str) -> None:
        """Remove pods, and return when the agent does not list them any more."""
        for pod in pods:
            (self._folder / "pods" / f"{pod}.yaml").unlink()
        self.until("pods end", lambda: not {pod["name"] for pod in self.state()["pods"]} & {*pods})

    def wrapped(self, pod: str) -> dict[int, str]:
        """Return the CPUs of each wrapper of a pod."""
        tasks = self.state()["tasks"]
        return {task["pid"]: task["cpus"] for task in tasks if task["container"] == f"default/{pod}/app"}

    def owner(self, name: str, cpus: int, script: str, annotations: dict[str, str]) -> None:
        """Start a pod that owns CPUs and runs a script."""
        amounts = {"cpu": str(cpus), "memory": "1Mi"}
        container: dict[str, Any] = {
            "name": "app",
            "image": "registry.example/app",
            "command": ["sh", "-c", script],
            "resources": {"requests": amounts, "limits": amounts},
        }
        self.put(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"containers": [container], "restartPolicy": "Never"},
            }
        )


def cgroup(pid: int) -> Path:
    """Return the folder of a process' cgroup."""
    hierarchy = find_hierarchy(CGROUPS)
    return hierarchy.folder(cgroup_of(pid, hierarchy.version))


def cpuset_file(pid: int) -> Path:
    """Return the cpuset file of a process's cgroup."""
    return cgroup(pid) / find_hierarchy(CGROUPS).effective[-1]


def masks(pid: int) -> list[str]:
    """Return the mask of each thread of a process."""
    return sorted(
        str(CPUSet(os.sched_getaffinity(int(task.name)))) for task in Path(f"/proc/{pid}/task").iterdir()
    )


def foreign_threads(pid: int, cpus: CPUSet) -> list[int]:
    """Return the threads of containers that may run on some CPUs, except those of one process."""
    roots = list(find_hierarchy(CGROUPS).folder("/").glob("corepin-local*"))
    own = {task.name for task in Path(f"/proc/{pid}/task").iterdir()}
    tasks = [
        task
        for root in roots
        for file in root.rglob(find_hierarchy(CGROUPS).tasks)
        for task in file.read_text().split()
        if task not in own
    ]
    return [int(task) for task in tasks if CPUSet(os.sched_getaffinity(int(task))) & cpus]


def kill(pid: int) -> None:
    """Kill a process that is not a child of this one, and return when it has exited."""
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)


def start_as(pid: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start a process with this pid in a cgroup."""
    for _ in range(100):
        LAST_PID.write_text(str(pid - 1))
        process = subprocess.Popen(["sleep", "1000000"])
        if process.pid == pid:
            (folder / "cgroup.procs").write_text(str(pid))
            return process
        process.kill()  # another process was forked at the same moment
        process.wait()
    raise DemoFailed(f"somebody else has the number {pid}")
