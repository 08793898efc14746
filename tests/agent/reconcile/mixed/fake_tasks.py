"""Fake task affinities: a task requests an affinity or none, and runs on its part inside the cpuset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.kernel.affinity import Affinities
from agent.kernel.split import KernelSplit
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from tests.agent.fakes import FakeNode


@dataclass
class FakeTasks:
    """Task affinities, changed as by the kernel and by the agent."""

    node: FakeNode
    # Cgroup and requested mask of each task.
    asked: dict[int, tuple[str, CPUSet]] = field(default_factory=dict)
    sets: list[tuple[int, str]] = field(default_factory=list)  # affinities that the agent has set

    def split(self) -> KernelSplit:
        """Return the `Split` that the agent uses, with these fake affinities instead of the kernel's."""
        affinities = Affinities(self.read, self.set, lambda _: True)
        return KernelSplit(self.of, self.node.cgroups, affinities)

    def start(self, container_id: str, *masks: str) -> list[int]:
        """Start one task in a container for each given affinity; "" is a task that requested no affinity."""
        first, cgroup = len(self.asked) + 1, self.node.cgroup(container_id)
        self.asked |= {first + at: (cgroup, CPUSet.parse(mask)) for at, mask in enumerate(masks)}
        return [first + at for at in range(len(masks))]

    def of(self, cgroup: str) -> list[int]:
        """Return the tasks of a cgroup."""
        return [task for task, (where, _) in self.asked.items() if where == cgroup]

    def read(self, task: int) -> CPUSet:
        """Return the effective affinity of a task."""
        cgroup, mask = self.asked[task]
        cpus = self.node.cpusets.get(cgroup, EMPTY)
        return (mask & cpus) or cpus

    def set(self, task: int, cpus: CPUSet) -> CPUSet:
        """Set the affinity of a task as the agent does."""
        self.asked[task] = (self.asked[task][0], cpus)
        self.sets.append((task, str(cpus)))
        return self.read(task)

    def choose(self, task: int, mask: str) -> None:
        """Set the affinity of a task as the application does, with sched_setaffinity."""
        self.asked[task] = (self.asked[task][0], CPUSet.parse(mask))

    def masks(self, tasks: list[int]) -> list[str]:
        """Return the effective affinities of tasks, as text."""
        return [str(self.read(task)) for task in tasks]
