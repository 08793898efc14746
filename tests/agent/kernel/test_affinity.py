"""Masks of real threads: set, cut by the kernel, refused, and gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernel.affinity import is_movable, read_affinity, set_affinity
from pinning.machine.cpuset import EMPTY, CPUSet

USABLE = CPUSet(os.sched_getaffinity(0))
NOWHERE = CPUSet([8191])  # no machine has it


@pytest.fixture
def task() -> Iterator[int]:
    """Return a thread that lives as long as the test."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    assert thread.native_id
    yield thread.native_id
    end.set()
    thread.join()


def test_thread_is_put_on_a_cpu(task: int) -> None:
    """What was set is read back."""
    cpu = CPUSet([USABLE.lowest()])

    assert read_affinity(task) == USABLE
    assert set_affinity(task, cpu) == read_affinity(task) == cpu
    assert is_movable(task)


def test_cpus_that_are_not_there_are_cut_off(task: int) -> None:
    """Of a mask that is partly usable that part is left; one that is not usable at all changes nothing."""
    assert set_affinity(task, USABLE | NOWHERE) == USABLE
    assert set_affinity(task, NOWHERE) == USABLE


def test_thread_that_ended_runs_nowhere(task: int) -> None:
    """It is no error."""
    gone = 2**22 + 1  # above what the kernel numbers threads up to

    assert set_affinity(gone, USABLE) == read_affinity(gone) == EMPTY
    assert is_movable(gone)


def test_bound_thread_of_the_kernel_is_told() -> None:
    """One of ksoftirqd belongs to its CPU; where no thread of the kernel is to be seen there is nothing to tell."""
    bound = [
        path.parent.name for path in Path("/proc").glob("[0-9]*/comm") if _name(path).startswith("ksoftirqd/")
    ]

    assert not any(is_movable(int(task)) for task in bound)


def _name(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
