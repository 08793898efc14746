"""Affinity of threads: read, set and read back. A refusal by the kernel is a value and never an exception.

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

EVERY_CPU: Final = range(8192)  # more than any machine has: the kernel takes those of the cgroup, always
EVERYWHERE: Final = CPUSet(EVERY_CPU)  # else a task would stay behind when its cgroup grows
_BOUND: Final = 0x04000000  # PF_NO_SETAFFINITY


def read_affinity(task: int) -> CPUSet:
    """Return where a thread may run now; nowhere when it has ended."""
    try:
        return _set_of(frozenset(os.sched_getaffinity(task)))
    except OSError:
        return EMPTY


def set_affinity(task: int, cpus: CPUSet) -> CPUSet:
    """Let a thread run on `cpus`, and return where it may run afterwards; nowhere when it has ended."""
    with suppress(OSError):  # where it runs then is read back
        os.sched_setaffinity(task, _numbers(cpus))
    return read_affinity(task)


def is_movable(task: int) -> bool:
    """Say whether a thread can be put elsewhere at all: the kernel binds some of its own."""
    fields = stat_fields(task)
    return not fields or not int(fields[FLAGS]) & _BOUND


class Affinities(NamedTuple):
    """Who reads and sets where threads may run."""

    read: Callable[[int], CPUSet]
    set: Callable[[int, CPUSet], CPUSet]
    is_movable: Callable[[int], bool]


KERNEL: Final = Affinities(read_affinity, set_affinity, is_movable)


@lru_cache(maxsize=1024)
def _set_of(numbers: frozenset[int]) -> CPUSet:
    """Return what the kernel's call says; hundreds of threads may run on the same few sets."""
    return CPUSet(numbers)


@lru_cache(maxsize=1024)
def _numbers(cpus: CPUSet) -> tuple[int, ...]:
    return tuple(cpus)
