"""Foreign threads on exclusive CPUs: their cgroups, and whether they ran."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from agent.doctor.checks import ForeignThreads
from agent.doctor.foreign_threads import _threads, foreign_threads
from agent.kernel.procfs import cgroup_of
from pinning.machine.cpuset import CPUSet

PROC = Path("/proc")


@pytest.mark.parametrize(
    ("text", "cgroup"),
    [
        pytest.param("0::/system.slice/ssh.service\n", "/system.slice/ssh.service", id="v2"),
        pytest.param("0::/../../../system.slice/ssh.service\n", "/system.slice/ssh.service", id="from a pod"),
        pytest.param("0::/../..\n", "/", id="the root, from a pod"),
        pytest.param("5:cpuset,cpu:/a:b\n2:memory:/m\n0::/u\n", "/a:b", id="v1"),
        pytest.param("2:memory:/m\n", "/", id="v1 without cpuset"),
        pytest.param("0::/a/x\x0by/b\n", "/a/x\x0by/b", id="a name with a vertical tab"),
        pytest.param("0::/a/x\u20280::/b\n", "/a/x\u20280::/b", id="a name with a line separator"),
    ],
)
def test_cgroup_of_a_thread_is_read(tmp_path: Path, text: str, cgroup: str) -> None:
    """Return the path below the root, as far as the reader's namespace shows it."""
    (tmp_path / "cgroup").write_text(text)
    assert cgroup_of(tmp_path) == cgroup


@pytest.mark.parametrize(
    ("name", "flags", "movable"),
    [
        pytest.param("kworker/u8:2-events_unbound", 0x04208060, True, id="of unbound workqueues"),
        pytest.param("kworker/1:1H-kblockd", 0x04208060, False, id="of one CPU"),
        pytest.param("ksoftirqd/1", 0x04208040, False, id="softirqs"),
        pytest.param("kswapd0", 0x00A40840, True, id="reclaim"),
    ],
)
def test_movable_kernel_threads_are_recognized(
    tmp_path: Path, name: str, flags: int, *, movable: bool
) -> None:
    """Workers of unbound workqueues are movable by the workqueue cpumask, those of one CPU are not."""
    task = tmp_path / "7/task/7"
    task.mkdir(parents=True)
    (task / "stat").write_text(f"7 ({name}) I 2 0 0 0 -1 {flags} " + " ".join(["0"] * 29) + " 1 0 0")
    (task / "cgroup").write_text("0::/\n")
    (task / "schedstat").write_text("1 0 0\n")
    (thread,) = _threads(tmp_path, CPUSet([1]))

    assert (thread.name, thread.is_kernel, thread.is_fixed) == (name, True, not movable)


def test_running_foreign_thread_is_found() -> None:
    """A busy process is found on its CPUs, the test's own is not, and without owned CPUs nothing is found."""
    owned = {"of nobody that runs": CPUSet(range(1024))}
    with subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) as process:
        try:
            seen = foreign_threads(PROC, owned, 0.2)
            threads = {thread.id: thread for thread in _threads(PROC, CPUSet(range(1024)))}
        finally:
            process.kill()

    assert any("sh" in names for names in seen.by_cgroup.values())
    assert threads[process.pid].name == "sh"
    assert os.getpid() not in threads
    assert foreign_threads(PROC, {}, 10) == ForeignThreads({})


def daemon(proc: Path, cpu: int, ran: int) -> None:
    """Write a daemon's thread, the CPU on which it ran last, and its run time."""
    task = proc / "7/task/7"
    task.mkdir(parents=True, exist_ok=True)
    (task / "stat").write_text("7 (daemon) S 1 0 0 0 -1 0 " + " ".join(["0"] * 29) + f" {cpu} 0 0")
    (task / "cgroup").write_text("0::/system.slice/daemon.service\n")
    (task / "schedstat").write_text(f"{ran} 0 0\n")


@pytest.mark.parametrize(
    ("turns", "found"),
    [
        pytest.param([(0, 1), (1, 2), (0, 3)], True, id="ran on the CPU in between"),
        pytest.param([(1, 0), (1, 1), (0, 2)], True, id="ran on the CPU and left"),
        pytest.param([(0, 1), (0, 2), (0, 3)], False, id="ran elsewhere alone"),
        pytest.param([(1, 0), (1, 0), (1, 0)], False, id="slept since it ran on the CPU"),
    ],
)
def test_daemon_that_may_run_anywhere_is_looked_at_more_than_once(
    tmp_path: Path, turns: list[tuple[int, int]], *, found: bool
) -> None:
    """A daemon that ran on an exclusive CPU is found, though it runs elsewhere at the last sample."""
    daemon(tmp_path, 1, 0)
    following = iter(turns)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        daemon(tmp_path, *next(following))

    seen = foreign_threads(tmp_path, {"pod": CPUSet([1])}, 3.0, sleep)

    assert slept == [1.0] * 3
    assert seen.by_cgroup == ({"/system.slice/daemon.service": {"daemon": 1}} if found else {})


@pytest.mark.parametrize(("seconds", "looks"), [(0.0, 1), (0.5, 1), (10.0, 5), (3600.0, 5)])
def test_number_of_looks_is_limited(tmp_path: Path, seconds: float, looks: int) -> None:
    """The number of samples is limited, because each one reads every thread of the node."""
    slept: list[float] = []
    foreign_threads(tmp_path, {"pod": CPUSet([1])}, seconds, slept.append)

    assert (len(slept), sum(slept)) == (looks, seconds)
