"""Cgroup files that stay open between writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent.errors import Gone, Refused
from agent.kernel import open_files
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy
from agent.kernel.open_files import OpenFiles


def open_count() -> int:
    """Return the number of open files of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a CPU list."""
    path = tmp_path / "cpuset.cpus"
    path.write_text("0-7\n")
    return path


def test_shorter_list_replaces_a_longer_one(file: Path) -> None:
    """Each write replaces the whole list, the first and later ones."""
    files = OpenFiles()
    for text in ("0,2,4,6", "1", "0-3", "7"):
        files.write(str(file), text)
        assert file.read_text() == text
    files.keep(())


def test_file_stays_open_while_it_is_kept(file: Path) -> None:
    """A second write opens no file, and files that are not kept are closed."""
    files, before = OpenFiles(), open_count()
    files.write(str(file), "1")
    assert open_count() == before + 1
    files.write(str(file), "2")
    files.keep([str(file)])
    assert open_count() == before + 1
    files.keep(())
    assert open_count() == before


def test_number_of_open_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes share a limit of open files; a file beyond it is opened and closed each time."""
    monkeypatch.setattr(open_files, "MOST", 4)
    files, before = OpenFiles(), open_count()
    paths = [tmp_path / str(number) for number in range(10)]
    for path in paths:
        path.write_text("0\n")
    for _ in range(2):
        for path in paths:
            files.write(str(path), "1")
            assert str(files.read_cpus(str(path))) == "1"
    assert open_count() <= before + 4
    files.keep(())
    assert open_count() == before


def test_files_for_reading_replace_files_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit files for writing are closed in favour of files that every pass reads."""
    monkeypatch.setattr(open_files, "MOST", 4)
    files, before = OpenFiles(), open_count()
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_text("0\n")
        files.write(str(path), "1")
    for path in paths:
        files.read_cpus(str(path))
    assert open_count() == before + 4
    for path in paths:
        path.unlink()
        assert str(files.read_cpus(str(path))) == "1"
    files.keep(())
    assert open_count() == before


def test_missing_file_is_gone(tmp_path: Path) -> None:
    """Writing a missing file raises Gone and does not create it."""
    with pytest.raises(Gone):
        OpenFiles().write(str(tmp_path / "none" / "cpuset.cpus"), "1")


@pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are root's")
def test_kernel_accepts_and_refuses_writes_of_an_open_file() -> None:
    """Later writes through the same file succeed, invalid ones are refused, and a removed cgroup is gone."""
    hierarchy = find_hierarchy(DEFAULT_ROOT)
    folder = hierarchy.cpuset / f"corepin-open-files-{os.getpid()}"
    folder.mkdir()
    files, before = OpenFiles(), open_count()
    path = str(folder / "cpuset.cpus")
    try:
        for text in ("0", "0-1"[: 1 + 2 * (len(os.sched_getaffinity(0)) > 1)], "0"):
            files.write(path, text)
            assert Path(path).read_text().strip() == text
        with pytest.raises(Refused):
            files.write(path, "100000")
        files.write(path, "0")
        assert Path(path).read_text().strip() == "0"
    finally:
        folder.rmdir()
    with pytest.raises(Gone):
        files.write(path, "0")
    assert open_count() == before
