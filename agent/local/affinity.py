"""Pinning by affinity alone, for demos where cpuset cgroups cannot be written.

Processes are found by a variable in their environment. This demonstrates the agent but isolates nothing: a thread may
widen its own mask again, and other processes may run on the same CPUs.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import Gone, Unsettled
from agent.kernel.affinity import read_affinity, set_affinity
from agent.kernel.mover import ListedThreads, move_threads
from agent.kernel.procfs import is_alive
from agent.kernel.tasks import compare, start_state_of, widen
from agent.local.cgroups import ROOT
from agent.local.environ import environments, variable
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from agent.interfaces import StartState, StrayTasks

MARK: Final = "COREPIN_LOCAL"  # environment variable with the cgroup of a process


class AffinityCgroups:
    """Cgroups by affinity alone (interfaces `Cpusets`, `Tasks` and `ContainerCgroups`)."""

    version = 0
    writable = True

    def __init__(self, root: str = ROOT) -> None:
        self._root = root
        self._usable = read_affinity(0)
        self._given: dict[str, CPUSet] = {}

    # Methods for the cgroups of containers.

    def make(self, cgroup: str) -> None:
        """Register a cgroup."""
        self._given.setdefault(cgroup, self._usable)

    def enter(self, cgroup: str, pid: int) -> None:
        """Set the affinity of a process to the CPUs of its cgroup."""
        set_affinity(pid, self.read(cgroup))

    def bind_memory(self, cgroup: str, mems: CPUSet) -> None:
        """Do nothing, because memory cannot be bound without cgroups."""

    def pids(self, cgroup: str) -> list[int]:
        """Return the processes whose environment names the cgroup."""
        return [pid for pid, marked in _marked() if marked == cgroup]

    def remove(self, cgroup: str) -> bool:
        """Forget a cgroup without processes; return whether it had none."""
        is_empty = not self.pids(cgroup)
        if is_empty:
            self._given.pop(cgroup, None)
        return is_empty

    def found(self) -> list[str]:
        """Return every cgroup of this agent that the environment of a process names."""
        cgroups = {cgroup for _, cgroup in _marked() if cgroup.startswith(f"{self._root}/")}
        for cgroup in cgroups:
            masks = [read_affinity(task) for task in self.tasks(cgroup)]
            self._given.setdefault(cgroup, union(masks) or self._usable)
        return sorted(cgroups)

    # Methods for the cpusets and tasks of these cgroups.

    def read(self, cgroup: str) -> CPUSet:
        """Return the CPUs of a cgroup; raise Gone if it does not exist.

        For the root these are the CPUs that this process may use.
        """
        if cgroup == "/":
            return self._usable
        if cgroup not in self._given:
            raise Gone(f"{cgroup} does not exist any more")
        return self._given[cgroup]

    def mems(self, cgroup: str) -> CPUSet:
        """Return the empty set, because the NUMA nodes are unknown."""
        return EMPTY

    def write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Set the affinity of every thread of a cgroup; raise Gone, Unsettled, or ValueError for an empty set.

        After Unsettled the cgroup still has its old CPUs, because some of its threads may run there.
        """
        if not cpus:
            raise ValueError(f"{cgroup}: an empty set is not a set of CPUs")
        self.read(cgroup)
        threads = ListedThreads(lambda: self.tasks(cgroup))
        if not move_threads(threads, lambda _, mask: None if mask == cpus else cpus).is_settled:
            raise Unsettled("its processes start threads faster than these are moved")
        self._given[cgroup] = cpus

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Compare every thread of a cgroup with `cpus`; raise Gone."""
        return compare(self.tasks(cgroup), cpus, self.read(cgroup))

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Widen a first process that started with a narrower mask to all CPUs of its cgroup; raise Gone."""
        cpus = self.read(cgroup)
        return widen(lambda: self.tasks(cgroup), first, cpus, cpus)

    def start_state(self, cgroup: str) -> StartState:
        """Return the start state of a container."""
        return start_state_of(self.pids(cgroup))

    def tasks(self, cgroup: str) -> list[int]:
        """Return every thread of a cgroup."""
        tasks = []
        for pid in self.pids(cgroup):
            with suppress(FileNotFoundError, ProcessLookupError):
                tasks += [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        return tasks


def _marked() -> list[tuple[int, str]]:
    """Return every live process of any agent's local containers, with the cgroup that its environment names."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    marked = ((pid, variable(environment, MARK)) for pid, environment in environments(pids))
    return sorted((pid, cgroup) for pid, cgroup in marked if cgroup and is_alive(pid))
