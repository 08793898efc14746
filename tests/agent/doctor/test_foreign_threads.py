"""Foreign threads on exclusive CPUs: their cgroups, and whether they ran."""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from agent.doctor.check import Verdict
from agent.doctor.checks import ForeignThreads
from agent.doctor.foreign_threads import _threads, foreign_threads
from agent.doctor.strangers import stranger, stranger_checks
from agent.kernel.procfs import cgroup_of
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.tables import table

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


UID = "0a1b2c3d-0000-4000-8000-000000000001"
OTHERS = CPUSet([0, 1])
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice"


@table(
    "cgroup, name, remedy",
    {
        "a service": (
            "/system.slice/chrony.service",
            "chrony.service in /system.slice/",
            "systemctl set-property system.slice AllowedCPUs=0-1",
        ),
        "a service in a slice of its own": (
            "/system.slice/system-getty.slice/getty@tty1.service",
            "getty@tty1.service in /system.slice/system-getty.slice/",
            "set-property system.slice ",
        ),
        "a session": (
            "/user.slice/user-0.slice/session-3.scope",
            "session-3.scope in /user.slice/user-0.slice/",
            "set-property user.slice ",
        ),
        "systemd itself": ("/init.scope", "init.scope in /", "set-property init.scope "),
        "a slice": ("/user.slice", "/user.slice", "set-property user.slice "),
        "without systemd": ("/", "the root cgroup", "taskset -apc 0-1 PID"),
        "made by hand": ("/batch", "cgroup /batch", "echo 0-1 > /sys/fs/cgroup/batch/cpuset.cpus"),
        "named by a user": (
            "/lxc/1000/a;reboot;$(id)",
            "cgroup /lxc/1000/a;reboot;$(id)",
            "echo 0-1 > '/sys/fs/cgroup/lxc/1000/a;reboot;$(id)/cpuset.cpus'",
        ),
        "a slice named by a user": (
            "/a;reboot;.slice/x.service",
            "x.service in /a;reboot;.slice/",
            "systemctl set-property 'a;reboot;.slice' ",
        ),
        "a pod": (f"{SLICE}/cri-containerd-ab.scope", "pod team/web", "corepin map"),
        "a pod with cgroupfs": (f"/kubepods/pod{UID}/ab", "pod team/web", "corepin map"),
        "a pod that the agent does not know": (
            "/kubepods/pod0a1b2c3d-0000-4000-8000-00000000ffff/ab",
            "pod 0a1b2c3d-0000-4000-8000-00000000ffff",
            "corepin map",
        ),
        "CRI-O's monitor": (
            f"{SLICE}/crio-conmon-ab.scope",
            "conmon, CRI-O's monitor of a container in pod team/web",
            'infra_ctr_cpuset = "0-1"',
        ),
        "CRI-O's monitor outside of pods": (
            "/system.slice/crio-conmon-ab.scope",
            "conmon, CRI-O's monitor of a container",
            'conmon_cgroup = "pod"',
        ),
        "no uid": ("/kubepods/besteffort", "a pod (/kubepods/besteffort)", "corepin map"),
    },
)
def test_cgroup_has_a_name_and_a_remedy(cgroup: str, name: str, remedy: str) -> None:
    """The message names a unit with its slice, because the remedy confines the slice."""
    found = stranger(cgroup, OTHERS, {UID: "team/web"})
    assert found.name == name
    assert remedy in found.remedy


def test_without_exclusive_cpus_the_check_passes() -> None:
    """The check says that no CPU is exclusive."""
    (check,) = stranger_checks({"/system.slice": Counter(x=1)}, EMPTY, OTHERS, {})
    assert (check.verdict, check.message) == (Verdict.OK, "no CPU is exclusive now")
