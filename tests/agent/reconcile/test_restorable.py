"""Original kernel values that the agent changed, saved beside the checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.reconcile.restorable import Restorable, RestorableValue

BOOT = "4f2c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the saved originals."""
    return tmp_path / "quotas.json"


def test_originals_are_saved_until_forgotten(path: Path) -> None:
    """`remember` returns after the originals are on disk; the file is deleted with the last original."""
    saved = Restorable(path, BOOT)
    saved.remember({"/a": "100000 100000", "/b": "50000 100000"})
    saved.forget(["/a", "/never"])

    assert dict(Restorable(path, BOOT).originals) == {"/b": "50000 100000"}
    saved.forget(["/b"])
    assert not path.exists()


def test_originals_of_another_boot_are_dropped(path: Path) -> None:
    """Originals of another boot are dropped, because a reboot resets kernel values."""
    Restorable(path, BOOT).remember({"/a": "1 2"})
    assert not Restorable(path, "other").originals


def later(boot: str = BOOT) -> bytes:
    """Return a file of a later version."""
    return json.dumps({"version": 2, "bootID": boot, "originals": {"/a": "1"}}).encode()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(b"", "is damaged", id="empty"),
        pytest.param(b"\xff\xfe", "is damaged", id="no text"),
        pytest.param(b"[" * 100_000, "is damaged", id="nested"),
        pytest.param(b"[]", "is damaged", id="a list"),
        pytest.param(b'{"version": 1, "bootID": "4f2c", "orig', "is damaged", id="cut"),
        pytest.param(b'{"version": 1, "bootID": "4f2c", "originals": [1]}', "is damaged", id="no object"),
        pytest.param(b'{"version": 1, "bootID": "4f2c", "originals": {"/a": 1}}', "is damaged", id="no text"),
        pytest.param(
            b'{"version": 1, "bootID": "4f2c", "originals": {"/a": "bad"}}', "is damaged", id="record"
        ),
        pytest.param(later(), "has version 2, and this corepin reads version 1", id="later"),
    ],
)
def test_file_that_cannot_be_used_is_kept(
    path: Path, text: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unusable file has the only copy of the originals, so it is kept; the error is logged once, with the remedy."""
    path.write_bytes(text)
    saved = checked(path)
    assert reason in saved.problem
    for change in (saved.reread, lambda: saved.remember({"/b": "1 2"})):
        with pytest.raises(Refused, match="restart the node"):
            change()
    saved.forget(["/a"])
    assert (path.read_bytes(), dict(saved.originals)) == (text, {})
    assert [it.message for it in caplog.records] == ["saved kernel values cannot be used"]


def checked(path: Path) -> Restorable:
    """Return originals whose values must be two numbers."""

    def check(_: str, text: str) -> None:
        list(map(int, text.split()))

    saved = Restorable(path, BOOT)
    saved.require(check)
    return saved


def test_unreadable_file_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that could not be read is read again, because a disk error may be temporary."""
    Restorable(path, BOOT).remember({"/a": "1 2"})
    with monkeypatch.context() as broken:

        def fail(_: Path) -> bytes:
            raise OSError(5, "Input/output error")

        broken.setattr(Path, "read_bytes", fail)
        saved = checked(path)
        with pytest.raises(Refused, match=r"quotas\.json: Input/output error: let the agent read it"):
            saved.remember({"/a": "3 4"})
    saved.reread()
    assert (dict(saved.originals), saved.problem) == ({"/a": "1 2"}, "")


@pytest.mark.parametrize("text", [later("other"), later("other")[:40]])
def test_unusable_file_of_another_boot_is_dropped(path: Path, text: bytes) -> None:
    """An unusable file of another boot is dropped, because the kernel has reset its values."""
    path.write_bytes(text)
    saved = checked(path)
    assert saved.problem == ""
    saved.remember({"/a": "1 2"})
    assert dict(Restorable(path, BOOT).originals) == {"/a": "1 2"}


@pytest.mark.parametrize("text", [b"", b"\0" * 512, b'{"version": 1, "boo'])
def test_file_that_a_power_failure_emptied_is_dropped(path: Path, text: bytes) -> None:
    """An empty file, as after a power failure, is dropped, because its values are from before this boot."""
    path.write_bytes(text)
    assert checked(path).problem
    os.utime(path, (0, 0))
    saved = checked(path)
    assert (saved.problem, dict(saved.originals)) == ("", {})
    saved.remember({"/a": "1 2"})
    assert dict(Restorable(path, BOOT).originals) == {"/a": "1 2"}


def test_file_that_cannot_be_written_is_refused(path: Path) -> None:
    """A failed write raises an error that names the file, and nothing counts as saved."""
    saved = Restorable(path, BOOT)
    path.with_suffix(".new").mkdir()

    with pytest.raises(Refused, match=r"quotas\.json: Is a directory"):
        saved.remember({"/a": "1 2"})
    assert not saved.originals


def value(path: Path) -> RestorableValue[int]:
    """Return the record of a number, as an agent loads it at its start."""
    return RestorableValue(Restorable(path, BOOT), "count", int, str)


def test_record_is_taken_over_until_it_is_dropped(path: Path) -> None:
    """The next agent loads a record until it is dropped."""
    first = value(path)
    assert (first.value, first.is_left) == (None, False)
    first.save(0)
    second = value(path)
    assert (second.value, second.is_left) == (0, True)
    second.save(None)
    assert (value(path).value, second.is_left, path.exists()) == (None, False, False)


def test_record_that_cannot_be_read_may_be_left(path: Path) -> None:
    """If a record cannot be read, the agent assumes one to restore and reads it later; if none was saved, it does not."""
    path.write_bytes(b'{"version": 1, "bootID": "4f2c", "originals": {"count": "many"}}')
    record = value(path)
    for attempt in (record.read, lambda: record.save(1)):
        with pytest.raises(Refused, match="is damaged"):
            attempt()
    assert (record.value, record.is_left) == (None, True)

    path.unlink()
    Restorable(path, BOOT).remember({"count": "2"})
    record.read()
    assert (record.value, record.is_left) == (2, True)
