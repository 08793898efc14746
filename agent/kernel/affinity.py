"""Affinity of threads: read, set and read back. If the kernel refuses a mask, the unchanged one is returned.

The kernel refuses a mask outside the thread's cgroup (EINVAL), intersects one that is partly outside, and does not move
some of its own threads (EINVAL too). A thread may exit at any moment (ESRCH).
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.kernel.procfs import FLAGS, stat_fields
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_CPU: Final = range(8192)  # more than any machine has; the kernel limits the mask to the cgroup's CPUs
# a mask of every CPU, so that the task may also run on CPUs that its cgroup gets later
EVERYWHERE: Final = CPUSet(EVERY_CPU)
_BOUND: Final = 0x04000000  # PF_NO_SETAFFINITY: the thread is bound to its CPU


def read_affinity(task: int) -> CPUSet:
    """Return a thread's affinity; empty if it has exited."""
    try:
        return _set_of(frozenset(os.sched_getaffinity(task)))
    except OSError:
        return EMPTY


def set_affinity(task: int, cpus: CPUSet) -> CPUSet:
    """Set a thread's affinity and return it as read back; empty if the thread has exited."""
    with suppress(OSError):  # the read-back shows what the kernel did
        os.sched_setaffinity(task, _numbers(cpus))
    return read_affinity(task)


def is_movable(task: int) -> bool:
    """Return whether a thread's affinity can change; the kernel binds some of its own threads."""
    fields = stat_fields(task)
    return not fields or not int(fields[FLAGS]) & _BOUND


class Affinities(NamedTuple):
    """Reads and sets affinities of threads."""

    read: Callable[[int], CPUSet]
    set: Callable[[int, CPUSet], CPUSet]
    is_movable: Callable[[int], bool]


KERNEL: Final = Affinities(read_affinity, set_affinity, is_movable)


@lru_cache(maxsize=1024)
def _set_of(numbers: frozenset[int]) -> CPUSet:
    """Build the set of CPU numbers; cached, because hundreds of threads share a few sets."""
    return CPUSet(numbers)


@lru_cache(maxsize=1024)
def _numbers(cpus: CPUSet) -> tuple[int, ...]:
    return tuple(cpus)
