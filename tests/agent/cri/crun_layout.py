"""A wrapper of runc that moves a container's processes into a child cgroup, as crun does.

crun does that under systemd with cgroup v2, where CRI-O uses it by default. Debian's crun refuses the hybrid cgroups
on which these tests run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

RUNC = "/usr/sbin/runc"
CHILD = "container"
_CONTROLLER = "cpuset"


def main() -> None:
    """Run runc; after `create` move the first process into a child cgroup."""
    arguments = sys.argv[1:]
    if "create" not in arguments:
        os.execv(RUNC, [RUNC, *arguments])  # noqa: S606 runc needs no shell
    done = subprocess.run([RUNC, *arguments], check=False)
    if done.returncode == 0:
        pid_file = Path(arguments[arguments.index("--pid-file") + 1])
        move(int(pid_file.read_text()))
    sys.exit(done.returncode)


def move(pid: int) -> None:
    """Move a process into a child of its cpuset cgroup, with the same CPUs and memory nodes."""
    found = re.search(rf"^\d+:{_CONTROLLER}:(.*)$", Path(f"/proc/{pid}/cgroup").read_text(), re.MULTILINE)
    assert found
    parent = Path("/sys/fs/cgroup", _CONTROLLER, found[1].lstrip("/"))
    child = parent / CHILD
    child.mkdir()
    while not _copied(parent, child):  # the agent moves the parent at the same time
        pass
    (child / "cgroup.procs").write_text(str(pid))


def _copied(parent: Path, child: Path) -> bool:
    """Copy CPUs and memory nodes; return whether they equal the parent's afterwards."""
    for name in ("cpuset.mems", "cpuset.cpus"):
        try:
            (child / name).write_text((parent / name).read_text())
        except OSError:
            return False
    return (child / "cpuset.cpus").read_text() == (parent / "cpuset.cpus").read_text()
