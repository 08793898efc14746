"""Wheel, source distribution, chart, sums and version of a release."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import scripts.release.__main__ as release
from scripts.release.__main__ import KREW, SUMS, build_chart, build_python, make_room, write_sums
from scripts.release.source import EPOCH, ReleaseFailed, Source, committed, run
from scripts.release.version import named, version_of, write
from tests.image.build import BuildFailed
from tests.layout import PACKAGES

ROOT = Path()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Return a copy of this checkout's tracked files, with uncommitted changes."""
    folder = tmp_path_factory.mktemp("source")
    listed = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True, text=True).stdout
    there = (name for name in listed.split("\0") if name and Path(name).is_file())
    subprocess.run(["cp", "--parents", "-t", folder, *there], check=True)
    return Source(folder, 1_700_000_000)


@pytest.fixture(scope="module")
def dist(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a built release, without image and plugin."""
    folder = tmp_path_factory.mktemp("dist")
    build_python(source, folder)
    build_chart(source, folder)
    write_sums(folder)
    return folder


def test_release_takes_away_nothing_but_another_release(tmp_path: Path) -> None:
    """A release overwrites only an earlier release; a folder with other files is refused, and a file is named."""
    release, home = tmp_path / "dist", tmp_path / "home"
    make_room(release)
    (release / "corepin-1.2.3.tgz").touch()
    (release / "corepin-1.2.3-py3-none-any.whl").touch()
    (release / "kubectl-corepin-1.2.3-linux-amd64.tar.gz").touch()
    (release / "corepin.yaml").touch()
    write_sums(release)
    make_room(release)
    assert list(release.iterdir()) == []
    home.mkdir()
    for name in ("corepin.yaml", "thesis"):
        (home / name).touch()
    with pytest.raises(ReleaseFailed, match=r"corepin\.yaml is not a release file"):
        make_room(home)
    assert len(list(home.iterdir())) == 2


def test_release_is_built_again_after_an_image_that_failed(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failed build of the image a release can be built again without deleting files by hand."""

    def no_image(*_: object) -> Path:
        raise BuildFailed("no network")

    def krew(_: Source, dist: Path, url: str) -> None:
        (dist / KREW).write_text(url)

    monkeypatch.setattr(release, "build_python", lambda *_: None)
    monkeypatch.setattr(release, "build_image", no_image)
    monkeypatch.setattr(release, "build_krew", krew)
    for _ in range(2):
        with pytest.raises(BuildFailed):
            release.build(source, tmp_path, "https://files.test")


@pytest.mark.parametrize(
    "there",
    [
        pytest.param({"corepin.yaml": "webhook: {replicas: 3}"}, id="values of the chart"),
        pytest.param({"corepin-notes.txt": "", SUMS: ""}, id="sums that do not list it"),
        pytest.param({SUMS: "00  thesis.pdf\n"}, id="sums of something else"),
    ],
)
def test_release_keeps_files_that_only_have_such_a_name(tmp_path: Path, there: dict[str, str]) -> None:
    """If a file has the name of a release's file but another content, it is kept and the release is refused."""
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ReleaseFailed, match="is not a release file"):
        make_room(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == there


def test_second_build_gives_the_same_bytes(source: Source, dist: Path, tmp_path: Path) -> None:
    """Wheel, source distribution, chart and checksums are reproducible byte for byte."""
    build_python(source, tmp_path)
    build_chart(source, tmp_path)
    write_sums(tmp_path)

    names = sorted(path.name for path in dist.iterdir())
    assert [path.name for path in sorted(tmp_path.iterdir())] == names
    assert len(names) == 4
    for name in names:
        assert (tmp_path / name).read_bytes() == (dist / name).read_bytes(), name


def test_sums_are_those_of_the_files(dist: Path) -> None:
    """`sha256sum --check` accepts every file of a release."""
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS], cwd=dist, capture_output=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout.count(b": OK") == 3


def test_wheel_runs_from_a_venv_of_its_own(dist: Path, tmp_path: Path) -> None:
    """Installed from the wheel, both commands start, and every verb is imported from the wheel."""
    venv.create(tmp_path / "venv", symlinks=True)
    site = next((tmp_path / "venv/lib").glob("python*/site-packages"))
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n" + "\n".join(sys.path))
    python = tmp_path / "venv/bin/python"
    (wheel,) = dist.glob("*.whl")
    run(str(python), "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    places = "import importlib; print(*{importlib.import_module(name).__file__ for name in %r}, sep='\\n')"
    told = run(str(python), "-I", "-c", places % sorted(PACKAGES))

    assert {Path(line).parents[1] for line in told.split()} == {site}
    env = {"PATH": f"{python.parent}:/usr/bin:/bin"}
    for command in (["corepin", "--help"], ["kubectl-corepin", "--help"]):
        done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert "VERB" in done.stdout
    shown = subprocess.run(
        ["corepin", "--version"], env=env, cwd=tmp_path, capture_output=True, check=True
    ).stdout
    assert shown.decode() == f"corepin {version_of(ROOT)}\n"


def test_wheel_holds_every_file_of_its_packages(dist: Path, source: Source) -> None:
    """The wheel has every file of its packages, and no other."""
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    there = {
        path.relative_to(source.folder).as_posix()
        for package in PACKAGES
        for path in (source.folder / package).rglob("*")
        if path.is_file()
    }
    assert packed == there


def test_chart_is_packed_whole(dist: Path) -> None:
    """The chart's archive has the files of manifests/helm below the chart's name, sorted, with one timestamp."""
    (package,) = dist.glob("*.tgz")
    with tarfile.open(package) as archive:
        members = archive.getmembers()
        for member in members:
            content = archive.extractfile(member)
            assert content
            assert content.read() == Path("manifests/helm", member.name.partition("/")[2]).read_bytes()
    names = [member.name for member in members]
    assert names == sorted(names)
    assert "corepin/Chart.yaml" in names
    assert {(member.mtime, member.uid, member.uname) for member in members} == {(1_700_000_000, 0, "")}


def test_only_what_is_committed_is_released(tmp_path: Path) -> None:
    """Uncommitted files are not released; timestamps are the commit's, or SOURCE_DATE_EPOCH."""
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main")
    here = tmp_path / "checkout"
    here.mkdir()
    (here / "pyproject.toml").write_text('[project]\nversion = "3.2.1"\n')
    run("git", *identity, "init", "-q", str(here))
    run("git", "-C", str(here), "add", ".")
    run("git", *identity, "-C", str(here), "commit", "-q", "-m", "all", GIT_COMMITTER_DATE="1700000001 +0000")
    (here / "later").touch()
    with committed(here) as source:
        assert [path.name for path in source.folder.iterdir()] == ["pyproject.toml"]
        assert (source.version, source.epoch) == ("3.2.1", int(os.environ.get(EPOCH, "1700000001")))


def test_a_failed_command_is_shown() -> None:
    """The error of a failed command has the end of its output."""
    with pytest.raises(ReleaseFailed, match="no-such"):
        run("ls", "/no-such-folder")


def test_one_place_has_the_version() -> None:
    """Every place that names a version of corepin has that of pyproject.toml."""
    places = list(named(ROOT))
    assert {version for _, version in places} == {version_of(ROOT)}
    files = {str(path) for path, _ in places}
    assert {"pyproject.toml", "manifests/helm/Chart.yaml", "manifests/base/kustomization.yaml"} <= files


def test_another_version_reaches_every_place(source: Source, tmp_path: Path) -> None:
    """`make version` replaces the version in every place, and refuses an invalid one."""
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", source.folder, copy], check=True)
    write(copy, "9.8.7")

    assert {version for _, version in named(copy)} == {"9.8.7"}
    old = re.escape(version_of(ROOT))
    for name in ("manifests", "docs", "README.md", "corepin", "tests", "webhook", "shim"):
        found = subprocess.run(
            ["grep", "-rnE", f"corepin[: -]{old}", copy / name], capture_output=True, check=False
        )
        assert found.stdout == b""
    with pytest.raises(SystemExit):
        write(copy, "v1")
