"""Processes that entered a container are moved with their descendants."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.kernel import execs as module
from agent.kernel.execs import place_exec
from agent.kernel.procfs import cgroup_of, started
from pinning.machine.cpuset import CPUSet
from tests.environments.waiting import until

CGROUP = cgroup_of(Path("/proc/self"))
HAS_CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children").exists()


@pytest.fixture
def entered() -> Iterator[subprocess.Popen[bytes]]:
    """Return a shell with a child."""
    with subprocess.Popen(["/bin/sh", "-c", "sleep 1000 & wait"], start_new_session=True) as process:
        yield process
        os.killpg(process.pid, 9)


@pytest.fixture
def last() -> CPUSet:
    """Return the highest CPU that this process may use."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("a process that is put aside takes two CPUs")
    return CPUSet([cpus[-1]])


def child_of(process: subprocess.Popen[bytes]) -> int:
    """Return the shell's child once it runs."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(until("child", children.read_text).split()[0])


@pytest.mark.skipif(not HAS_CHILDREN, reason="this kernel lists no children (CONFIG_PROC_CHILDREN)")
def test_process_is_moved_with_its_children(entered: subprocess.Popen[bytes], last: CPUSet) -> None:
    """A process that entered a container is moved with the child that it has started."""
    child = child_of(entered)
    placed = place_exec(entered.pid, CGROUP, last)
    assert placed
    assert [os.sched_getaffinity(pid) for pid in (entered.pid, child)] == [set(last), set(last)]
    assert placed.started == started(entered.pid)
    assert 0.0 <= placed.seconds <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.skipif(not HAS_CHILDREN, reason="this kernel lists no children (CONFIG_PROC_CHILDREN)")
@pytest.mark.parametrize("most", [0, 1])
def test_processes_with_too_many_threads_are_not_moved(
    entered: subprocess.Popen[bytes], last: CPUSet, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Threads of an exec and its children beyond a limit are not moved, so that they cannot delay the agent."""
    child, before = child_of(entered), os.sched_getaffinity(0)
    monkeypatch.setattr(module, "MOST_THREADS", most)
    assert place_exec(entered.pid, CGROUP, last) is None
    assert os.sched_getaffinity(child) == before
    assert os.sched_getaffinity(entered.pid) == (set(last) if most else before)


def test_process_of_another_cgroup_is_not_moved(entered: subprocess.Popen[bytes], last: CPUSet) -> None:
    """A process that is in another cgroup by now is not moved, because its pid may be reused."""
    before = os.sched_getaffinity(entered.pid)
    assert place_exec(entered.pid, f"{CGROUP.rstrip('/')}/other", last) is None
    assert os.sched_getaffinity(entered.pid) == before


def test_process_of_another_start_time_is_not_moved(entered: subprocess.Popen[bytes], last: CPUSet) -> None:
    """A process with another start time is not moved, because its pid was reused."""
    assert place_exec(entered.pid, CGROUP, last, started(entered.pid) - 1) is None
    assert place_exec(entered.pid, CGROUP, last, started(entered.pid))


def test_exited_process_is_not_moved(last: CPUSet) -> None:
    """A process that has exited is not moved and is no error."""
    with subprocess.Popen(["/bin/true"]) as process:
        process.wait()
    assert place_exec(process.pid, CGROUP, last) is None
