"""Plain folders in the shape of cgroup hierarchies. The files are plain too: what is written is read, unchecked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from pathlib import Path

ALL = "0-7"


def make_root(root: Path, version: int) -> Path:
    """Make an empty hierarchy of a version with CPUs 0-7, and return the folder of its cpuset cgroups."""
    if version == 1:
        (root / "cpu").mkdir(parents=True)
        make_cgroup(root / "cpuset", 1)
        return root / "cpuset"
    make_cgroup(root, 2)
    (root / "cpuset.cpus").unlink()  # the root has none
    (root / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    return root


def make_cgroup(folder: Path, version: int, cpus: str = ALL, tasks: tuple[int, ...] = ()) -> Path:
    """Make one cgroup with its files."""
    folder.mkdir(parents=True, exist_ok=True)
    effective, listing = (
        ("cpuset.effective_cpus", "tasks") if version == 1 else ("cpuset.cpus.effective", "cgroup.threads")
    )
    for name in ("cpuset.cpus", effective):
        (folder / name).write_text(f"{cpus}\n")
    (folder / listing).write_text("".join(f"{task}\n" for task in tasks))
    (folder / "cgroup.procs").write_text("")
    return folder


def written(folder: Path) -> CPUSet:
    """Return what stands in `cpuset.cpus`."""
    return CPUSet.parse((folder / "cpuset.cpus").read_text())
