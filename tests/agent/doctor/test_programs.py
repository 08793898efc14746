"""Which programs of a node count as writers of cpusets: by name, by where they run, and only while they live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.doctor.programs import kubelet_runs, programs, writers

UID = "11111111-2222-3333-4444-555555555555"
POD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-a.scope"
BESIDE = f"/../../pod{UID}/a"  # as a pod without QoS folder between sees another one's
SERVICE = "/system.slice/tuned.service"
ABOVE = "/../../../../system.slice/tuned.service"


@pytest.mark.parametrize(
    ("name", "state", "cgroup", "found"),
    [
        ("tuned", "S", SERVICE, ("tuned (pid 7)",)),
        ("tuned", "S", ABOVE, ("tuned (pid 7)",)),
        ("tuned", "Z", SERVICE, ()),
        ("tuned", "S", POD, ()),
        ("tuned", "S", BESIDE, ()),
        ("tuned", "S", f"/../../pod{UID.replace('-', '')}/a", ()),
        ("numad", "R", f"/kubepods/burstable/pod{UID}/a", ()),
        ("koordlet", "R", POD, (f"koordlet (pid 7 in pod {UID})",)),
        ("koordlet", "S", BESIDE, (f"koordlet (pid 7 in pod {UID})",)),
        ("koordlet", "S", "/kubepods/a", ("koordlet (pid 7 in a pod)",)),
        ("cmk", "S", SERVICE, ("Intel CMK (pid 7)",)),
        ("cmk", "Z", POD, ()),
        ("sleep", "S", SERVICE, ()),
        (") S 1 (tuned", "S", SERVICE, ()),
    ],
)
def test_a_name_counts_where_such_a_program_runs(
    tmp_path: Path, name: str, state: str, cgroup: str, found: tuple[str, ...]
) -> None:
    """A service of the node runs in no pod, an agent of another manager also in one; a zombie is neither."""
    process(tmp_path, name, state, cgroup)
    assert writers(programs(tmp_path)) == found


@pytest.mark.parametrize(
    ("state", "cgroup", "runs"), [("S", "/system.slice", True), ("Z", "/", False), ("S", POD, False)]
)
def test_a_kubelet_is_the_nodes_own(tmp_path: Path, state: str, cgroup: str, runs: bool) -> None:
    """A container whose process calls itself kubelet makes no kubelet of the node."""
    process(tmp_path, "kubelet", state, cgroup)
    assert kubelet_runs(programs(tmp_path)) is runs


def test_what_ends_meanwhile_is_passed_over(tmp_path: Path) -> None:
    """A process without files any more, and one whose files are empty, are none."""
    (tmp_path / "8").mkdir()
    (tmp_path / "9").mkdir()
    (tmp_path / "9/stat").write_text("")
    process(tmp_path, "cset", "S", "/")
    assert [program.name for program in programs(tmp_path)] == ["cset"]


def test_a_real_zombie_does_not_count() -> None:
    """The kernel lists a process that ended and was not waited for; here it is not alive, and this one is."""
    zombie = os.fork()
    if not zombie:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    found = {program.pid for program in programs(Path("/proc"))}
    os.waitpid(zombie, 0)
    assert os.getpid() in found
    assert zombie not in found


def process(proc: Path, name: str, state: str, cgroup: str) -> None:
    """Make the files of process 7."""
    (proc / "7").mkdir()
    (proc / "7/stat").write_text(f"7 ({name}) {state} 1 7 7 0 -1 4194304\n")
    (proc / "7/cgroup").write_text(f"12:cpuset:{cgroup}\n0::{cgroup}\n")
