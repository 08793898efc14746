"""Content of the image, and files that it must not have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from scripts.release.image import compressed
from scripts.release.plugin import unused
from scripts.release.sbom import parts_of
from tests.image.build import NAME
from tests.layout import PACKAGES

if TYPE_CHECKING:
    import pytest

    from tests.image.archive import Archive

UNCHECKED_HASH = bytes((1, 0, 0, 0))  # PEP 552
LARGEST_MB, LARGEST_PULL_MB = 100, 40
BIN_FOLDERS = ("usr/bin", "usr/sbin", "usr/local/bin", "usr/libexec", "opt/corepin/bin")
PYTHON = {"python", "python3", "python3.11"}  # the interpreter and its links
STANDARD = Path("usr/lib/python3.11")
PACKAGES_FOLDER = Path("opt/corepin/lib/python3.11/site-packages")


def libraries(root: Path, file: Path) -> set[Path]:
    """Return the image's libraries that its own dynamic linker loads for a file."""
    linker = min(root.glob("usr/lib*/**/ld-linux-*.so.*"))
    inside = [f"/{path.relative_to(root)}" for path in (linker, file)]
    done = subprocess.run(
        ["chroot", root, inside[0], "--list", inside[1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, (file, done.stdout, done.stderr)
    assert "not found" not in done.stdout, (file, done.stdout)
    return {(root / path.lstrip("/")).resolve() for path in re.findall(r"(/\S+)", done.stdout)}


def test_size(image: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """The unpacked and the compressed size are printed, and are below their limits."""
    unpacked, pulled = sum(image.bytes) / 1e6, sum(compressed(image.file)) / 1e6
    with capsys.disabled():
        sys.stdout.write(f"\nimage: {unpacked:.0f} MB, {pulled:.0f} MB to pull\n")
    assert unpacked < LARGEST_MB
    assert pulled < LARGEST_PULL_MB


def test_it_says_how_it_runs(image: Archive) -> None:
    """The image has the manifests' name, the entry point `corepin`, and a numeric user, as runAsNonRoot needs."""
    assert NAME in image.manifest["RepoTags"]
    assert (image.settings["User"], image.settings["Entrypoint"]) == ("65532:65532", ["corepin"])


def test_python_and_corepin_are_the_only_programs(root: Path) -> None:
    """The only executables are Python, `corepin` and `cmk`; there is no shell, package manager or compiler."""
    there = {
        path.name for folder in BIN_FOLDERS if (root / folder).is_dir() for path in (root / folder).iterdir()
    }
    assert there == PYTHON | {"corepin"}
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    executable = {
        path.relative_to(root).as_posix()
        for path in files
        if path.stat().st_mode & 0o111 and ".so" not in path.name and path.parent.suffix != ".dist-info"
    }
    assert executable == {"usr/bin/python3.11", "opt/corepin/bin/corepin", "opt/corepin/libexec/cmk"}
    assert not {"pip", "ensurepip", "setuptools"} & {path.name for path in root.rglob("*")}


def test_every_library_of_debian_is_linked(root: Path) -> None:
    """Every shared library that Python and the extension modules need is in the image, and no other."""
    linked = {
        library
        for file in (
            root / "usr/bin/python3.11",
            *root.glob(f"{STANDARD}/**/*.so"),
            *root.glob(f"{PACKAGES_FOLDER}/**/*.so"),
        )
        for library in libraries(root, file)
    }
    there = {
        path.resolve()
        for path in root.glob("usr/lib*/**/*.so*")
        if STANDARD not in path.relative_to(root).parents
    }
    assert there == {path for path in linked if path.is_relative_to(root / "usr") and path.name.count(".so")}


def test_what_is_left_out_is_not_there(root: Path) -> None:
    """Folders and distributions in requirements.unused are not in the image."""
    packages = root / PACKAGES_FOLDER
    there = {canonicalize_name(path.name.partition("-")[0]) for path in packages.glob("*.dist-info")}
    assert {it for it in unused() if list(packages.glob(it)) or canonicalize_name(it) in there} == set()


def test_the_command_of_containers_is_in_it(root: Path, tmp_path: Path) -> None:
    """The image has the program `cmk` that the tests ran, where the agent looks for it."""
    subprocess.run(["scripts/shim", str(tmp_path / "cmk")], check=True)
    found = root / "opt/corepin/libexec/cmk"

    assert found.read_bytes() == (tmp_path / "cmk").read_bytes()
    assert found.stat().st_mode & 0o777 == 0o755


def test_nothing_of_the_machine_that_built_it(image: Archive, root: Path) -> None:
    """The image has no settings or certificates of the build machine, and no files of apt."""
    paths = {path.relative_to(root).as_posix() for path in root.rglob("*")}
    assert not [
        path for path in paths if path.startswith(("root", "home", "tmp/", "src", "build", "var/lib/apt"))
    ]
    assert not [
        path for path in paths if PurePath(path).name in {"pip.conf", "ca-certificates.crt", "ca.crt"}
    ]
    assert not any("PIP" in entry for entry in image.settings["Env"])


def test_modules_are_compiled(root: Path) -> None:
    """Corepin's modules are source and byte code, all others only byte code; its validity depends on no file times."""
    packages = root / PACKAGES_FOLDER
    sources = {path for name in PACKAGES for path in (packages / name).rglob("*.py")}
    assert {path.relative_to(packages).parts[0] for path in sources} == PACKAGES
    assert all((path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc").is_file() for path in sources)
    assert {path for path in root.rglob("*.py") if path.is_file()} == sources
    assert (root / STANDARD / "os.pyc").is_file()
    assert {path.read_bytes()[4:8] for path in root.rglob("*.pyc")} == {UNCHECKED_HASH}


def test_bill_of_materials_is_complete(image: Archive, root: Path) -> None:
    """The SBOM lists every locked library with its version, and every Debian package, whose license is in the image."""
    parts = parts_of(image.file)
    python = {f"{part.url.name}=={part.url.version}" for part in parts if part.url.type == "pypi"}
    debian = {part.url.name for part in parts if part.url.type == "deb"}

    locked = re.findall(r"(?m)^(\S+==\S+)", Path("requirements.lock").read_text(encoding="utf-8"))
    assert {name for name in python if not name.startswith("corepin==")} == set(locked)
    installed = re.findall(r"(?m)^Package: (\S+)", (root / "var/lib/dpkg/status").read_text(encoding="utf-8"))
    assert debian == set(installed)
    assert {"base-files", "libc6", "libpython3.11-stdlib", "libssl3", "python3.11-minimal"} <= debian
    assert {path.parent.name for path in root.glob("usr/share/doc/*/copyright")} == debian
