"""Cgroups of the kernel: cpusets, tasks and CPU quotas (interface `Cgroups`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.interfaces import Cgroups
from agent.kernel.cpuset_watch import KernelCpusetWatch
from agent.kernel.cpusets import KernelCpusets
from agent.kernel.quota import KernelQuotas
from agent.kernel.split import KernelSplit
from agent.kernel.tasks import KernelTasks

if TYPE_CHECKING:
    from agent.kernel.cgroupfs import Hierarchy


def open_cgroups(hierarchy: Hierarchy, kernel_release: str | None = None) -> Cgroups:
    """Return access to the cgroups of a hierarchy; raise Refused if they cannot be watched."""
    cpusets = KernelCpusets(hierarchy, kernel_release)
    tasks = KernelTasks(hierarchy, cpusets)
    watch, quotas = KernelCpusetWatch(cpusets), KernelQuotas(hierarchy)
    split = KernelSplit(tasks.below, cpusets, forgets_pins=cpusets.forgets_pins)
    return Cgroups(cpusets, tasks, watch, quotas, split)
