"""The guest's kernel from Debian's backports, unpacked into the cache by a fake apt, without a machine."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.environments.guest import setup

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")

RELEASE = "6.12.9+deb12-amd64"
APT = """#!/bin/sh
echo "${{0##*/}} $*" >>{log}
case $1 in
depends) echo linux-image-amd64; echo "  Depends: linux-base"; echo "  Depends: linux-image-{release}" ;;
download) cp {archive} . ;;
esac
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake apt on PATH that has the package of one kernel; return the file of its commands."""
    package, programs = tmp_path / "package", tmp_path / "bin"
    for file in (f"boot/vmlinuz-{RELEASE}", f"lib/modules/{RELEASE}/modules.dep"):
        (package / file).parent.mkdir(parents=True)
        (package / file).touch()
    (package / "DEBIAN").mkdir()
    control = "Package: linux\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: a\n"
    (package / "DEBIAN/control").write_text(control)
    archive = tmp_path / "linux.deb"
    subprocess.run(["dpkg-deb", "--build", package, archive], check=True, capture_output=True)
    programs.mkdir()
    for name in ("apt-get", "apt-cache"):
        (programs / name).write_text(APT.format(log=tmp_path / "log", release=RELEASE, archive=archive))
        (programs / name).chmod(0o755)
    for name in setup.PROGRAMS.values():
        (programs / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin")
    monkeypatch.setenv("COREPIN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(setup, "MODULES", tmp_path / "modules")
    return tmp_path / "log"


def test_kernel_of_backports_is_unpacked_once(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel of backports is unpacked once with its modules, without the host's apt sources and lists."""
    monkeypatch.setenv(setup.KERNEL, "6.12")
    folder = tmp_path / "cache/packages/kernel-6.12"

    for _ in range(2):
        kernel = setup.install()

        assert kernel == folder / f"boot/vmlinuz-{RELEASE}"
        assert (setup.modules_of(kernel) / RELEASE / "modules.dep").exists()
    commands = log.read_text().splitlines()
    assert [" ".join(it.split()[:2]) for it in commands] == [
        "apt-get update",
        "apt-cache depends",
        "apt-get download",
    ]
    for option in ("Dir::Etc::SourceParts=/dev/null", *(f"{it}={tmp_path}/cache/" for it in PRIVATE)):
        assert all(option in it for it in commands)


PRIVATE = ("Dir::Etc::SourceList", "Dir::State::Lists", "Dir::State::Status", "Dir::Cache")


@pytest.mark.usefixtures("log")
def test_kernel_that_backports_lack_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """If backports lack the requested kernel, the error lists the kernels that they have."""
    monkeypatch.setenv(setup.KERNEL, "6.1")

    with pytest.raises(
        setup.EmulatorMissing, match=r"depends on no linux-image-6\.1\.\*, only on .*-6\.12\.9"
    ):
        setup.install()
