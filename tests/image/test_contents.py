"""What is in the image, and what is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from scripts.release.sbom import parts_of
from tests.image.build import NAME
from tests.layout import PACKAGES

if TYPE_CHECKING:
    import pytest

    from tests.image.archive import Archive

UNCHECKED_HASH = bytes((1, 0, 0, 0))  # PEP 552
LARGEST_MB = 300  # of what is added to the base
BIN_FOLDERS = {"bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "opt/corepin/bin"}
COMPILERS = {"as", "c++", "cc", "clang", "cpp", "g++", "gcc", "go", "ld", "make", "tcc"}
# Debian's python3 brings the interpreter and small scripts for it; nothing that loads or builds software.
PYTHON = {"pdb3", "py3clean", "py3compile", "py3versions", "pydoc3", "pygettext3", "python3"}


def added(image: Archive) -> set[PurePath]:
    """Return what the image has and its base has not."""
    return {PurePath(member.name) for layer in image.layers[1:] for member in layer}


def programs(paths: set[PurePath]) -> set[str]:
    """Return the names of the commands among paths, without a version of Python."""
    found = {path for path in paths if str(path.parent) in BIN_FOLDERS}
    return {
        path.name.removesuffix(".11")
        for path in found
        if not (path.parent.name + path.name).startswith("binbin")
    }


def test_size(image: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """The size is told; what is added to Debian's smallest system stays below a limit."""
    base, *layers = (size / 1e6 for size in image.bytes)
    with capsys.disabled():
        sys.stdout.write(
            f"\nimage: {base + sum(layers):.0f} MB, of these {sum(layers):.0f} added to the base\n"
        )
    assert sum(layers) < LARGEST_MB


def test_it_says_how_it_runs(image: Archive) -> None:
    """It is found under the manifests' name, runs `corepin`, and as a number, so that Kubernetes can tell it from root."""
    assert NAME in image.manifest["RepoTags"]
    assert (image.settings["User"], image.settings["Entrypoint"]) == ("65532:65532", ["corepin"])


def test_no_tools_beyond_the_base(image: Archive, root: Path) -> None:
    """Besides the base there is Python and corepin; no compiler is anywhere, and no package manager for Python."""
    assert programs(added(image)) == PYTHON | {"corepin", "python"}
    there = {
        path.name for folder in BIN_FOLDERS for path in (root / folder).iterdir() if (root / folder).is_dir()
    }
    assert not there & COMPILERS
    assert not {"pip", "ensurepip", "setuptools"} & {part for path in added(image) for part in path.parts}


def test_the_command_of_containers_is_in_it(root: Path, tmp_path: Path) -> None:
    """The agent finds `cmk` there, to put it on its node; it is the one that tests have tried."""
    subprocess.run(["scripts/shim", str(tmp_path / "cmk")], check=True)
    found = root / "opt/corepin/libexec/cmk"

    assert found.read_bytes() == (tmp_path / "cmk").read_bytes()
    assert found.stat().st_mode & 0o777 == 0o755


def test_nothing_of_the_machine_that_built_it(image: Archive, root: Path) -> None:
    """Settings and certificates that the build needed are not in the image, nor what apt fetched."""
    paths = {str(path) for path in added(image)}
    assert not [path for path in paths if path.startswith(("root/", "home/", "tmp/", "src/", "build/"))]
    assert not [
        path for path in paths if PurePath(path).name in {"pip.conf", "ca-certificates.crt", "ca.crt"}
    ]
    assert not any(entry != "TZ" and "PIP" in entry for entry in image.settings["Env"])
    assert not list((root / "var/lib/apt/lists").iterdir())


def test_modules_are_compiled(root: Path) -> None:
    """Modules have their bytecode, because nothing can be written where they run; it holds whatever their file's time."""
    packages = root / "opt/corepin/lib/python3.11/site-packages"
    sources = [path for name in PACKAGES for path in (packages / name).rglob("*.py")]
    assert {path.relative_to(packages).parts[0] for path in sources} == PACKAGES
    assert all((path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").is_file() for path in sources)
    kinds = {path.read_bytes()[4:8] for path in packages.rglob("*.pyc")}
    assert kinds == {UNCHECKED_HASH}


def test_bill_of_materials_is_complete(image: Archive, root: Path) -> None:
    """A release's bill lists every locked library, with its version, and every package of Debian's."""
    parts = parts_of(image.file)
    python = {f"{part.url.name}=={part.url.version}" for part in parts if part.url.type == "pypi"}
    debian = {part.url.name for part in parts if part.url.type == "deb"}

    locked = re.findall(r"(?m)^(\S+==\S+)", Path("requirements.lock").read_text(encoding="utf-8"))
    assert {name for name in python if not name.startswith("corepin==")} == set(locked)
    installed = re.findall(r"(?m)^Package: (\S+)", (root / "var/lib/dpkg/status").read_text(encoding="utf-8"))
    assert debian == set(installed)
