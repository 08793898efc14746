"""Minimal file systems of containers, and the command run in them."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.environments.node.containerd import install_packages
from tests.environments.server.daemon import plain_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.shim.agent import Finished

NOBODY: Final = 65534
_ENTER: Final = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99
root=$1; user=$2; shift 2; exec /usr/sbin/chroot --userspec="$user" "$root" "$@"
"""


@dataclass(frozen=True)
class Root:
    """The root of a container, which contains only the install directory."""

    folder: Path

    @property
    def install_dir(self) -> Path:
        """The folder with the command and the agent's socket."""
        return self.folder / "opt/bin"

    def write(self, path: str, text: str) -> None:
        """Write a file and create its folders."""
        file = self.folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def add_busybox(self) -> None:
        """Add a shell with its commands, in one static file."""
        install_packages({"busybox-static": "busybox"})
        (self.folder / "bin").mkdir()
        shutil.copy2(str(shutil.which("busybox")), self.folder / "bin/busybox")
        for name in ("sh", "taskset", "printenv"):
            (self.folder / "bin" / name).symlink_to("busybox")

    def run(self, *words: str, env: Mapping[str, str] | None = None, user: int = NOBODY) -> Finished:
        """Run a command in the root, which is mounted read-only, as a user without write access."""
        enter = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(self.folder), f"{user}:{user}", *words]
        return subprocess.run(
            enter,
            env={**plain_environment(), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
