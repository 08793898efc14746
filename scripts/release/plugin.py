"""`kubectl corepin` for krew: an archive per platform, for every Python from 3.11 on, and a manifest.

The libraries are the locked wheels for each version of Python, in one folder, because the names of compiled files
contain the version. Only distributions that the plugin's verbs need are included.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.release.archives import files_below, pack
from scripts.release.source import run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scripts.release.source import Source

NEEDS: Final = ("argcomplete", "httpx", "kubernetes", "msgspec", "pyyaml")  # the verbs' direct dependencies
UNUSED: Final = Path("requirements.unused")
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}  # name in Go and krew: name in wheels
LIBRARY: Final = "lib"
LAUNCHER: Final = """\
#!/bin/sh
# Run corepin with python3 if that is new enough, else with the newest Python that its libraries support.
here=$(dirname "$(readlink -f "$0")")
for python in python3 {pythons}; do
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" -I -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); \
from corepin.cli import kubectl; sys.exit(kubectl())' "$here/{library}" "$@"
    fi
done
echo "kubectl corepin needs Python 3.11 or newer" >&2
exit 2
"""
DESCRIPTION: Final = """\
Shows who owns which CPU of a node on which corepin pins containers and virtual machines (map), why a pod has its
CPUs or waits for them (why), which CPUs pods would get (plan), and what prevents pinning on a node (doctor).
"""


def build_plugin(
    source: Source, wheel: Path, work: Path, dist: Path, machine: str, pythons: Sequence[str] = PYTHONS
) -> Path:
    """Write the plugin's archive for a kind of machine, and return it."""
    library = work / LIBRARY
    lock = work / "plugin.lock"
    lock.write_text("".join(_locked(source.folder / "requirements.lock", needed())), encoding="utf-8")
    for python in pythons:
        _add(_installed(work / python, lock, python, MACHINES[machine]), library)
    own = work / "own"
    _pip("--no-deps", "--target", str(own), str(wheel))
    _add(own, library)
    _remove_unused(library)
    launcher = work / "kubectl-corepin"
    names = " ".join(f"python{python}" for python in reversed(pythons))
    launcher.write_text(LAUNCHER.format(pythons=names, library=LIBRARY), encoding="utf-8")
    launcher.chmod(0o755)
    license_file = source.folder / "LICENSE"
    members = {launcher.name: launcher, "LICENSE": license_file, **files_below(library, LIBRARY)}
    archive = dist / f"kubectl-corepin-{source.version}-linux-{machine}.tar.gz"
    pack(archive, members, source.epoch)
    return archive


def manifest(version: str, archives: Mapping[str, Path], place: str) -> str:
    """Return krew's manifest of the archives by kind of machine, with their URLs below `place`."""
    platforms = [
        {
            "selector": {"matchLabels": {"os": "linux", "arch": machine}},
            "uri": f"{place}/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "bin": "kubectl-corepin",
        }
        for machine, archive in archives.items()
    ]
    document = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "corepin"},
        "spec": {
            "version": f"v{version}",
            "homepage": place,
            "shortDescription": "Show and explain CPU pinning by corepin",
            "description": DESCRIPTION,
            "caveats": f"It needs Python {PYTHONS[0]} to {PYTHONS[-1]} on the PATH.\n",
            "platforms": platforms,
        },
    }
    return yaml.safe_dump(document, sort_keys=False)


def unused() -> tuple[str, ...]:
    """Return the unused dependencies: names of distributions, and path patterns below site-packages."""
    lines = UNUSED.read_text(encoding="utf-8").splitlines()
    return tuple(line.split()[0] for line in lines if not line.startswith("#"))


def needed() -> frozenset[str]:
    """Return the distributions that the plugin needs, with their dependencies."""
    found: set[str] = set()
    wanted, left_out = list(NEEDS), unused()
    while wanted:
        name = canonicalize_name(wanted.pop())
        if name not in found and name not in left_out:
            found.add(name)
            wanted += _requirements(name)
    return frozenset(found)


def _requirements(name: str) -> Iterator[str]:
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement.name


def _remove_unused(library: Path) -> None:
    for pattern in unused():
        for path in list(library.glob(pattern)) if "/" in pattern else ():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def _locked(lock: Path, names: frozenset[str]) -> Iterator[str]:
    """Yield the entries of a lock for some distributions."""
    for entry in re.split(r"(?m)^(?=[a-zA-Z0-9])", lock.read_text(encoding="utf-8")):
        if canonicalize_name(entry.partition("==")[0]) in names:
            yield entry


def _installed(folder: Path, lock: Path, python: str, machine: str) -> Path:
    platforms = [
        word for tag in ("manylinux2014", "manylinux_2_28") for word in ("--platform", f"{tag}_{machine}")
    ]
    for_python = ("--python-version", python, "--implementation", "cp", "--only-binary", ":all:")
    _pip("--no-deps", "--require-hashes", *platforms, *for_python, "--target", str(folder), "-r", str(lock))
    return folder


def _pip(*words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile", "--no-warn-script-location")
    run(sys.executable, "-m", "pip", "install", *quiet, *words)


def _add(installed: Path, library: Path) -> None:
    """Move files into the library unless they exist there; existing ones are equal, except pip's records."""
    for name, path in files_below(installed, ".").items():
        target = library / name
        if not name.startswith("./bin/") and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, target)
