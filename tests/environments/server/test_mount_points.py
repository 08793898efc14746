"""Folders at fixed places that several runs of the tests use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.server.mount_points import mount_points

if TYPE_CHECKING:
    from pathlib import Path


def test_last_run_removes_what_runs_have_made(tmp_path: Path) -> None:
    """A run that ends leaves the folders of another run; folders that existed before stay."""
    there = tmp_path / "there"
    there.mkdir()
    wanted = tmp_path / "made" / "inner"
    files = (tmp_path / "record", tmp_path / "in-use")
    with mount_points([there, there / "new"], *files):
        with mount_points([wanted, there / "new"], *files):
            assert wanted.is_dir()
        assert (wanted.is_dir(), (there / "new").is_dir()) == (True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in-use", "record", "there"]
    assert list(there.iterdir()) == []


def test_folder_with_files_stays(tmp_path: Path) -> None:
    """A folder with files of another program is not removed."""
    folder = tmp_path / "made"
    with mount_points([folder], tmp_path / "record", tmp_path / "in-use"):
        (folder / "file").touch()
    assert (folder / "file").exists()
