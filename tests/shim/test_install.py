"""Atomic installation of the command in a directory to which containers may write."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from agent.cmk_command import install, remove


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a program to install."""
    path = tmp_path / "libexec"
    path.write_text("#!/bin/sh\necho this version\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an install directory that does not exist yet."""
    return tmp_path / "opt" / "bin"


def names(folder: Path) -> list[str]:
    """Return the names in a directory."""
    return sorted(path.name for path in folder.iterdir())


def said(folder: Path) -> str:
    """Run the installed command and return its output."""
    return subprocess.run([folder / "cmk"], capture_output=True, text=True, check=True).stdout


def test_the_command_is_installed_once(folder: Path, source: Path) -> None:
    """The directory is created, any user may execute the command, and an equal one is not written again."""
    assert install(folder, source)
    assert said(folder) == "this version\n"
    assert (folder / "cmk").stat().st_mode & 0o7777 == 0o755
    before = (folder / "cmk").stat().st_ino

    assert not install(folder, source)
    assert (folder / "cmk").stat().st_ino == before
    assert names(folder) == ["cmk"]


@pytest.mark.parametrize(
    ("text", "mode"),
    [("CMK's own\n", 0o755), ("#!/bin/sh\necho this version\n", 0o4755), ("", 0o755)],
    ids=["another", "mode", "empty"],
)
def test_another_file_is_replaced(folder: Path, source: Path, text: str, mode: int) -> None:
    """A file with another content or mode is replaced; processes that have the old file open keep it."""
    folder.mkdir(parents=True)
    (folder / "cmk").write_text(text)
    (folder / "cmk").chmod(mode)
    with (folder / "cmk").open() as running:
        assert install(folder, source)
        assert running.read() == text

    assert said(folder) == "this version\n"
    assert (folder / "cmk").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("name", ["cmk", ".cmk.new"])
def test_nothing_there_is_followed(folder: Path, source: Path, tmp_path: Path, name: str) -> None:
    """A symbolic link in the command's place is replaced, and its target is not changed."""
    victim = tmp_path / "victim"
    victim.write_text("the host's\n")
    folder.mkdir(parents=True)
    (folder / name).symlink_to(victim)

    assert install(folder, source)
    assert victim.read_text() == "the host's\n"
    assert not (folder / "cmk").is_symlink()
    assert said(folder) == "this version\n"


def test_fifo_is_replaced(folder: Path, source: Path) -> None:
    """A FIFO, which would block any process that opens it, is replaced too."""
    folder.mkdir(parents=True)
    os.mkfifo(folder / "cmk")

    assert install(folder, source)


def test_directory_in_its_place_is_an_error(folder: Path, source: Path) -> None:
    """A directory in its place is an error, and no other file is left beside it."""
    (folder / "cmk" / "inside").mkdir(parents=True)

    with pytest.raises(IsADirectoryError):
        install(folder, source)
    assert names(folder) == ["cmk"]


def test_only_ours_is_removed(folder: Path, source: Path) -> None:
    """A reset removes the installed command and the socket beside it, but no file of another origin."""
    install(folder, source)
    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(folder / "cmk.sock"))
    remove(folder, source)
    assert names(folder) == []

    (folder / "cmk").write_text("another\n")
    remove(folder, source)
    assert names(folder) == ["cmk"]
    remove(folder / "nowhere", source)
