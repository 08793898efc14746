"""`kubectl corepin` as krew installs it, without a network."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from scripts.release.__main__ import build_python
from scripts.release.plugin import MACHINES, build_plugin, manifest, needed, unused
from scripts.release.source import Source
from scripts.release.version import version_of
from tests.environments.server.catalog import KREW, KUBECTL
from tests.environments.server.start import require

VERSION = version_of(Path())
MACHINE = {name: word for word, name in MACHINES.items()}[platform.machine()]
LARGEST_MB = 8  # archive for one Python; a release's has compiled libraries for each Python, and is larger
HERE = ".".join(map(str, sys.version_info[:2]))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the plugin's archive with libraries for this Python only."""
    work, dist = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("dist")
    source = Source(Path.cwd(), 1_700_000_000)
    build_python(source, dist)
    (wheel,) = dist.glob("*.whl")
    return build_plugin(source, wheel, work, dist, MACHINE, [HERE])


@pytest.mark.server
def test_krew_installs_it_and_kubectl_runs_it(archive: Path, tmp_path: Path) -> None:
    """Krew installs the plugin from manifest and archive without a network, and kubectl runs its verbs."""
    krew, kubectl = require(KREW, KUBECTL)
    described = tmp_path / "corepin.yaml"
    described.write_text(manifest(VERSION, {MACHINE: archive}, "https://releases.example/corepin"))
    root = tmp_path / "krew"
    env = {"PATH": f"{root / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path), "KREW_ROOT": str(root)}
    install = [str(krew), "install", f"--manifest={described}", f"--archive={archive}"]
    done = subprocess.run(
        install, env=env | {"KREW_NO_UPGRADE_CHECK": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

    helped = subprocess.run(
        [str(kubectl), "corepin", "--help"], env=env, capture_output=True, text=True, check=True
    )
    assert helped.stdout.startswith("usage: kubectl corepin ")
    asked = [str(kubectl), "corepin", "why", "web"]
    failed = subprocess.run(asked, env=env, capture_output=True, text=True, check=False)
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr.startswith("kubectl corepin why: no cluster can be asked")
    pod = "examples/smt/cores-of-cmk.yaml"
    plan = [str(kubectl), "corepin", "plan", "-f", pod, "--topology", "demo/two-sockets.json"]
    drawn = subprocess.run(plan, env=env, capture_output=True, text=True, check=True)
    assert drawn.stdout.startswith("2 sockets")


@pytest.mark.server
def test_archive_has_nothing_that_no_verb_imports(archive: Path) -> None:
    """The archive has no path of requirements.unused, but has the module that reads kubeconfigs."""
    with tarfile.open(archive) as members:
        names = {name.removeprefix("lib/") for name in members.getnames()}
    assert "kubernetes/config/kube_config.py" in names
    assert [
        name for name in sorted(names) for it in unused() if fnmatch(name, it) or fnmatch(name, f"{it}/*")
    ] == []


@pytest.mark.server
def test_size(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The size of the archive, with libraries for one Python, is printed and stays below a limit."""
    size = archive.stat().st_size / 1e6
    with capsys.disabled():
        sys.stdout.write(f"\nplugin: {size:.1f} MB\n")
    assert size < LARGEST_MB


@pytest.mark.server
def test_another_krew_file_is_refused(archive: Path, tmp_path: Path) -> None:
    """Krew refuses an archive that does not have the manifest's checksum."""
    (krew,) = require(KREW)
    document = yaml.safe_load(manifest(VERSION, {MACHINE: archive}, "https://releases.example/corepin"))
    for described in document["spec"]["platforms"]:
        described["sha256"] = "0" * 64
    (tmp_path / "corepin.yaml").write_text(yaml.safe_dump(document))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "KREW_ROOT": str(tmp_path / "krew")}
    install = [str(krew), "install", f"--manifest={tmp_path / 'corepin.yaml'}", f"--archive={archive}"]
    done = subprocess.run(
        install, env=env | {"KREW_NO_UPGRADE_CHECK": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "checksum does not match" in done.stderr


def test_manifest_names_every_machine(tmp_path: Path) -> None:
    """The manifest has an archive with a checksum for each platform."""
    archives = {machine: tmp_path / f"{machine}.tar.gz" for machine in MACHINES}
    for machine, archive in archives.items():
        archive.write_text(machine)
    spec = yaml.safe_load(manifest("1.2.3", archives, "https://releases.example/v1.2.3"))["spec"]
    assert {it["selector"]["matchLabels"]["arch"]: (it["uri"], it["sha256"]) for it in spec["platforms"]} == {
        machine: (
            f"https://releases.example/v1.2.3/{machine}.tar.gz",
            hashlib.sha256(machine.encode()).hexdigest(),
        )
        for machine in MACHINES
    }
    assert (spec["version"], "Python 3.11" in spec["caveats"]) == ("v1.2.3", True)


def test_libraries_are_the_locked_ones() -> None:
    """Every library of the plugin is in requirements.lock."""
    locked = Path("requirements.lock").read_text(encoding="utf-8")
    assert [name for name in needed() if f"{name}==" not in locked] == []
