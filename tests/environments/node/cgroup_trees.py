"""Kernel cgroups, and plain folders in their shape for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy
from agent.kernel.cpuset_watch import KernelCpusetWatch
from agent.kernel.cpusets import KernelCpusets
from agent.kernel.quota import KernelQuotas
from agent.kernel.tasks import KernelTasks
from pinning.machine.cpuset import CPUSet

ALL = "0-7"
NEW_KERNEL = "6.2.0"
POD = "/kubepods/burstable/pod1"
ONE = f"{POD}/one"  # cgroup of the pod's container


class OpenCgroups(NamedTuple):
    """The kernel's cgroup interfaces."""

    cpusets: KernelCpusets
    tasks: KernelTasks
    watch: KernelCpusetWatch
    quotas: KernelQuotas


def opened(root: Path = DEFAULT_ROOT, kernel_release: str | None = None) -> OpenCgroups:
    """Return the cgroup interfaces below a root."""
    hierarchy = find_hierarchy(root)
    cpusets = KernelCpusets(hierarchy, kernel_release)
    watch, quotas = KernelCpusetWatch(cpusets), KernelQuotas(hierarchy)
    return OpenCgroups(cpusets, KernelTasks(hierarchy, cpusets), watch, quotas)


def make_root(root: Path, version: int) -> Path:
    """Create an empty hierarchy with CPUs 0-7; return the folder of its cpuset cgroups."""
    if version == 1:
        (root / "cpu").mkdir(parents=True)
        make_cgroup(root / "cpuset", 1)
        return root / "cpuset"
    make_cgroup(root, 2)
    (root / "cpuset.cpus").unlink()  # the root cgroup has no such file
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return root


def make_cgroup(folder: Path, version: int, cpus: str = ALL, tasks: tuple[int, ...] = ()) -> Path:
    """Create one cgroup with its files."""
    folder.mkdir(parents=True, exist_ok=True)
    effective, listing = (
        ("cpuset.effective_cpus", "tasks") if version == 1 else ("cpuset.cpus.effective", "cgroup.threads")
    )
    for name in ("cpuset.cpus", effective):
        (folder / name).write_text(f"{cpus}\n")
    (folder / listing).write_text("".join(f"{task}\n" for task in tasks))
    (folder / "cgroup.procs").write_text("")
    return folder


def written(folder: Path) -> CPUSet:
    """Return the content of `cpuset.cpus`."""
    return CPUSet.parse((folder / "cpuset.cpus").read_text())


@contextmanager
def small_stack(calls: int) -> Iterator[None]:
    """Limit the recursion depth to this many further calls, so that tests need no deep trees."""
    before, frame, depth = sys.getrecursionlimit(), sys._getframe(), 0
    while frame := frame.f_back:  # type: ignore[assignment]
        depth += 1
    sys.setrecursionlimit(depth + calls)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)
