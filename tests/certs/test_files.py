"""Writing of key files: mode, atomicity, and existing files."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from certs.files import PRIVATE, PUBLIC, write_new, write_over


def mode(path: Path) -> int:
    """Return the permission bits of a file."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o000, 0o077])
@pytest.mark.parametrize("wanted", [PRIVATE, PUBLIC])
def test_mode_does_not_depend_on_the_umask(tmp_path: Path, umask: int, wanted: int) -> None:
    """A private file is private under a loose umask, a public one public under a strict one."""
    before = os.umask(umask)
    try:
        write_new(tmp_path / "f", b"x", wanted)
    finally:
        os.umask(before)

    assert mode(tmp_path / "f") == wanted


def test_new_file_never_replaces_one(tmp_path: Path) -> None:
    """An existing file is kept, and no temporary file is left beside it."""
    (tmp_path / "f").write_bytes(b"old")

    with pytest.raises(FileExistsError):
        write_new(tmp_path / "f", b"new", PRIVATE)

    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]  # noqa: PTH208 the hidden ones count too


def test_new_file_does_not_follow_a_link(tmp_path: Path) -> None:
    """An existing symbolic link in the file's place is not followed."""
    (tmp_path / "f").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(FileExistsError):
        write_new(tmp_path / "f", b"new", PRIVATE)

    assert not (tmp_path / "elsewhere").exists()


def test_replacing_tightens_the_mode(tmp_path: Path) -> None:
    """A key file that others could read is replaced by one that they cannot."""
    (tmp_path / "f").write_bytes(b"old")
    (tmp_path / "f").chmod(0o644)

    write_over(tmp_path / "f", b"new", PRIVATE)

    assert (tmp_path / "f").read_bytes() == b"new"
    assert mode(tmp_path / "f") == PRIVATE


def test_failed_replacement_leaves_nothing_behind(tmp_path: Path) -> None:
    """If the path is a directory, no temporary file with private bytes is left."""
    (tmp_path / "f").mkdir()

    with pytest.raises(OSError, match="directory"):
        write_over(tmp_path / "f", b"new", PRIVATE)

    assert [path.name for path in Path(tmp_path).iterdir()] == ["f"]


def test_leftover_of_a_killed_run_is_no_obstacle(tmp_path: Path) -> None:
    """A leftover temporary file of a killed process is replaced."""
    (tmp_path / f".f.{os.getpid()}").write_bytes(b"half")

    write_new(tmp_path / "f", b"whole", PRIVATE)

    assert (tmp_path / "f").read_bytes() == b"whole"
