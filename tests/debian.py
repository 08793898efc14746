"""Install Debian packages, one at a time of all processes that test: apt-get refuses while another one works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.environments.server.build import cache_folder, locked

if TYPE_CHECKING:
    from collections.abc import Sequence


class NotInstalled(Exception):
    """The packages cannot be installed; the message says why."""


def install(packages: Sequence[str]) -> None:
    """Install packages with what they need, and nothing beyond."""
    with locked(cache_folder().with_name("debian"), sys.stderr):
        for arguments in (("update", "-qq"), ("install", "-y", "-qq", "--no-install-recommends", *packages)):
            _apt_get(arguments, packages)


def _apt_get(arguments: Sequence[str], packages: Sequence[str], folder: Path | None = None) -> None:
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", *arguments]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=folder)
    except FileNotFoundError as error:
        raise NotInstalled(f"{', '.join(packages)} not installed, and no apt-get") from error
    if done.returncode != 0:
        raise NotInstalled(f"apt-get {arguments[0]} failed: {done.stderr.strip()[-500:]}")


def unpacked(package: str) -> Path:
    """Return the folder in which a package's files are, after `unpack`."""
    return cache_folder().with_name("packages") / package


def unpack(package: str) -> Path:
    """Download a package and unpack it into the cache, once; nothing of it is installed or started."""
    folder = unpacked(package)
    with locked(cache_folder().with_name("debian"), sys.stderr):
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            new = Path(name)
            _apt_get(("update", "-qq"), [package])
            _apt_get(("download", "-qq", package), [package], new)
            (archive,) = new.glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", archive, new / "files"], check=True, capture_output=True)
            (new / "files").rename(folder)
    return folder
