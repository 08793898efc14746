"""Programs that count as writers of cpusets: by name and cgroup, and only while alive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.doctor.programs import kubelet_runs, programs, writers

UID = "11111111-2222-3333-4444-555555555555"
POD = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-a.scope"
BESIDE = f"/../../pod{UID}/a"  # path of a cgroup as a pod of another QoS class sees it
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
def test_program_counts_by_name_and_cgroup(
    tmp_path: Path, name: str, state: str, cgroup: str, found: tuple[str, ...]
) -> None:
    """Services count outside pods only, agents of other managers also in a pod, zombies never."""
    process(tmp_path, name, state, cgroup)
    assert writers(programs(tmp_path)) == found


@pytest.mark.parametrize(
    ("state", "cgroup", "runs"), [("S", "/system.slice", True), ("Z", "/", False), ("S", POD, False)]
)
def test_kubelet_counts_outside_pods_only(tmp_path: Path, state: str, cgroup: str, runs: bool) -> None:
    """A container's process named kubelet is not the node's kubelet."""
    process(tmp_path, "kubelet", state, cgroup)
    assert kubelet_runs(programs(tmp_path)) is runs


def test_ending_processes_are_skipped(tmp_path: Path) -> None:
    """Processes whose files are missing or empty are left out."""
    (tmp_path / "8").mkdir()
    (tmp_path / "9").mkdir()
    (tmp_path / "9/stat").write_text("")
    process(tmp_path, "cset", "S", "/")
    assert [program.name for program in programs(tmp_path)] == ["cset"]


def test_a_real_zombie_does_not_count() -> None:
    """A zombie is left out, and this process is found."""
    zombie = os.fork()
    if not zombie:
        os._exit(0)
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    found = {program.pid for program in programs(Path("/proc"))}
    os.waitpid(zombie, 0)
    assert os.getpid() in found
    assert zombie not in found


def process(proc: Path, name: str, state: str, cgroup: str) -> None:
    """Create the files of process 7."""
    (proc / "7").mkdir()
    (proc / "7/stat").write_text(f"7 ({name}) {state} 1 7 7 0 -1 4194304\n")
    (proc / "7/cgroup").write_text(f"12:cpuset:{cgroup}\n0::{cgroup}\n")
