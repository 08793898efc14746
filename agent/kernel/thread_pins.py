"""Restore the affinities that threads set for themselves after their cgroup's CPUs change.

Before Linux 6.2 the kernel resets them at every cpuset change (commit 8f9ea86fdf99, "sched: Always preserve the user
requested cpumask"). DPDK and the JVM pin their threads once, at start.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from agent.kernel.affinity import set_affinity
from agent.kernel.tasks import affinities
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PRESERVED_SINCE: Final = (6, 2)


def kernel_forgets_pins(release: str) -> bool:
    """Return whether a kernel release ("6.1.0-56-amd64") resets affinities; raise ValueError for other text."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if not found:
        raise ValueError(f"kernel release {release!r} does not start with a version such as 6.1")
    return (int(found[1]), int(found[2])) < _PRESERVED_SINCE


def save_pins(tasks: Iterable[int], old: CPUSet) -> dict[int, CPUSet]:
    """Return the affinities of tasks that are limited to a proper subset of the old set."""
    whole = frozenset(old)
    return {task: CPUSet(allowed) for task, allowed in affinities(tasks) if allowed < whole}


def restore_pins(pins: Mapping[int, CPUSet], tasks: Iterable[int], new: CPUSet) -> tuple[int, ...]:
    """Restore affinities that fit into the new set, and return those tasks.

    `tasks` are those of the cgroup after the change, because the pid of an exited task may have been reused.
    """
    fitting = ((task, pins[task]) for task in tasks if task in pins and pins[task] <= new)
    # A task is missing here if it exited, a CPU of its mask is offline, or the kernel binds the thread.
    return tuple(task for task, pin in fitting if pin and set_affinity(task, pin) == pin)
