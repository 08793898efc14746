"""Install or unpack Debian packages, one at a time of all processes that test: apt-get refuses while another one works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.environments.server.build import cache_folder, locked

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MIRROR = "http://deb.debian.org/debian"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


# A new machine may be installing its updates: wait for dpkg's lock instead of failing.
_WAITS = ("-o", "DPkg::Lock::Timeout=300")


class NotInstalled(Exception):
    """The packages cannot be installed; the message says why."""


def install(packages: Sequence[str]) -> None:
    """Install packages with what they need, and nothing beyond."""
    with locked(cache_folder().with_name("debian"), sys.stderr):
        for arguments in (
            ("update", "-qq"),
            ("install", "-y", "-qq", *_WAITS, "--no-install-recommends", *packages),
        ):
            _apt("apt-get", arguments, packages)


def unpacked(name: str) -> Path:
    """Return the folder in which a package's files are, after `unpack`."""
    return cache_folder().with_name("packages") / name


def unpack(package: str) -> Path:
    """Download a package and unpack it into the cache, once; nothing of it is installed or started."""
    return _unpack_once(package, partial(_download, package))


def unpack_dependency(package: str, prefix: str, suite: str, name: str) -> Path:
    """Do the same with the package, named with a prefix, on which `package` of another suite of Debian depends.

    apt verifies the suite's signature and the package's checksum. The machine's own sources and lists stay as they
    are. The files are cached by `name`.
    """
    return _unpack_once(name, partial(_download_dependency, package, prefix, suite))


def _unpack_once(name: str, download: Callable[[Path], None]) -> Path:
    folder = unpacked(name)
    with locked(cache_folder().with_name("debian"), sys.stderr):
        if folder.is_dir():
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            new = Path(temporary)
            download(new)
            (archive,) = new.glob("*.deb")
            subprocess.run(["dpkg-deb", "--extract", archive, new / "files"], check=True, capture_output=True)
            (new / "files").rename(folder)
    return folder


def _download(package: str, folder: Path) -> None:
    _apt("apt-get", ("update", "-qq"), [package])
    _apt("apt-get", ("download", "-qq", package), [package], folder)


def _download_dependency(package: str, prefix: str, suite: str, folder: Path) -> None:
    own = _own_sources(folder / "apt", suite)
    _apt("apt-get", ("update", "-qq", *own), [package])
    listed = _apt("apt-cache", ("depends", "--important", package, *own), [package])
    names = [line.partition("Depends:")[2].strip() for line in listed.splitlines()]
    found = [name for name in names if name.startswith(prefix)]
    if not found:
        raise NotInstalled(
            f"{package} of {suite} depends on no {prefix}*, only on {', '.join(filter(None, names))}"
        )
    _apt("apt-get", ("download", "-qq", found[0], *own), [found[0]], folder)


def _own_sources(folder: Path, suite: str) -> tuple[str, ...]:
    """Make a folder for apt's lists of one suite, and return the options to use it."""
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    sources, status = folder / "sources.list", folder / "status"
    sources.write_text(f"deb [signed-by={KEYS}] {MIRROR} {suite} main\n")
    status.touch()  # an empty list of installed packages
    places = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": status,
        "Dir::Cache": folder / "cache",
    }
    return tuple(word for name, path in places.items() for word in ("-o", f"{name}={path}"))


def _apt(program: str, arguments: Sequence[str], packages: Sequence[str], folder: Path | None = None) -> str:
    """Run a program of apt and return its output."""
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            [program, *arguments], env=env, capture_output=True, text=True, check=False, cwd=folder
        )
    except FileNotFoundError as error:
        raise NotInstalled(f"{', '.join(packages)} not installed, and no {program}") from error
    if done.returncode != 0:
        raise NotInstalled(f"{program} {arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return done.stdout
