"""KubeVirt's cgroup for a guest's threads other than vCPUs, if the vCPUs are isolated (isolateEmulatorThread)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import Gone
from agent.kernel.cgroupfs import read_cpus, read_text

if TYPE_CHECKING:
    from agent.kernel.cgroupfs import Hierarchy
    from pinning.machine.cpuset import CPUSet

_NAME: Final = "housekeeping"  # child of the compute container's cgroup; threaded on cgroup v2


class Housekeeping(NamedTuple):
    """CPUs and tasks of the cgroup to which KubeVirt moves the threads other than vCPUs."""

    cpus: CPUSet
    tasks: frozenset[int]


def read_housekeeping(hierarchy: Hierarchy, cgroup: str) -> Housekeeping | None:
    """Return the housekeeping cgroup below a compute container's `cgroup`; None if it has none; raise Refused."""
    folder = hierarchy.folder(cgroup) / _NAME
    try:
        cpus = read_cpus(folder / hierarchy.effective[0])
        tasks = frozenset(int(task) for task in read_text(folder / hierarchy.tasks).split())
    except Gone:
        return None
    return Housekeeping(cpus, tasks)
