"""Affinities of real threads: set, truncated and refused by the kernel."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernel.affinity import is_movable, read_affinity, set_affinity
from pinning.machine.cpuset import EMPTY, CPUSet

USABLE = CPUSet(os.sched_getaffinity(0))
NOWHERE = CPUSet([8191])  # a CPU that no machine has


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


def test_affinity_is_set_and_read_back(task: int) -> None:
    """The affinity that was set is read back."""
    cpu = CPUSet([USABLE.lowest()])

    assert read_affinity(task) == USABLE
    assert set_affinity(task, cpu) == read_affinity(task) == cpu
    assert is_movable(task)


def test_nonexistent_cpus_are_cut_off(task: int) -> None:
    """The usable part of an affinity is set; one without usable CPUs changes nothing."""
    assert set_affinity(task, USABLE | NOWHERE) == USABLE
    assert set_affinity(task, NOWHERE) == USABLE


def test_ended_thread_has_an_empty_affinity(task: int) -> None:
    """An ended thread is no error."""
    gone = 2**22 + 1  # above the kernel's largest thread id

    assert set_affinity(gone, USABLE) == read_affinity(gone) == EMPTY
    assert is_movable(gone)


def test_bound_kernel_thread_is_not_movable() -> None:
    """Threads of ksoftirqd, if visible, are bound to their CPUs."""
    bound = [
        path.parent.name for path in Path("/proc").glob("[0-9]*/comm") if _name(path).startswith("ksoftirqd/")
    ]

    assert not any(is_movable(int(task)) for task in bound)


def _name(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
