"""The folder of a cluster, and cleanup after a cluster whose process was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.environments.node.containerd import CGROUP_ROOT, Containerd, Programs, _clean
from tests.environments.server.host import ip

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX: Final = "corepin-try-"
_NAMED_NETWORKS: Final = Path("/run/netns")


@contextmanager
def own_folder() -> Iterator[Path]:
    """Create the folder of a cluster, marked with its process, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as folder:
        yield Path(folder)


def clear_away() -> None:
    """Remove the files and containers of dead processes; their other children have died with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdigit() and not Path("/proc", pid).exists():
            _clear(folder, pid)


def _clear(folder: Path, pid: str) -> None:
    roots = (CGROUP_ROOT, *(path for path in CGROUP_ROOT.iterdir() if path.is_dir()))
    for cgroup in {path.name for root in roots for path in root.glob(f"corepin-test-{pid}-*")}:
        _clean(Containerd(Programs("", ()), folder / "containerd", cgroup=cgroup))
    for network in _NAMED_NETWORKS.glob(f"corepin-{pid}-*"):
        ip("netns", "delete", network.name)
    shutil.rmtree(folder, ignore_errors=True)
