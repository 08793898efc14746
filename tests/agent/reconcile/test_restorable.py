"""Original kernel values that the agent changed, saved beside the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.errors import Refused
from agent.reconcile.restorable import Restorable

BOOT = "4f2c"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of the saved originals."""
    return tmp_path / "quotas.json"


def test_originals_are_saved_until_forgotten(path: Path) -> None:
    """Originals are on disk when `remember` returns; the file is deleted with the last of them."""
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


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[" * 100_000, id="nested"),
        pytest.param(b"[]", id="a list"),
        pytest.param(json.dumps({"version": 1, "bootID": BOOT, "originals": [1]}).encode(), id="no object"),
        pytest.param(
            json.dumps({"version": 2, "bootID": BOOT, "originals": {"/a": "1"}}).encode(), id="later"
        ),
    ],
)
def test_file_that_cannot_be_read_is_dropped(path: Path, text: bytes) -> None:
    """A damaged file or one of a later version is ignored, so no wrong value is restored."""
    path.write_bytes(text)
    assert not Restorable(path, BOOT).originals


def test_file_that_cannot_be_written_is_refused(path: Path) -> None:
    """A failed write raises an error that names the file, and nothing counts as saved."""
    saved = Restorable(path, BOOT)
    path.with_suffix(".new").mkdir()

    with pytest.raises(Refused, match=r"quotas\.json: Is a directory"):
        saved.remember({"/a": "1 2"})
    assert not saved.originals
