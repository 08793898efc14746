"""Settings of this machine that every kubelet changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.environments.node.kubelet import sysctls_kept

if TYPE_CHECKING:
    from pathlib import Path


def test_last_kubelet_restores_what_was_there_before_the_first(tmp_path: Path) -> None:
    """Of two kubelets the first to exit restores nothing, and the last restores the sysctls from before both."""
    panic, absent = tmp_path / "panic", tmp_path / "absent"
    panic.write_text("0\n")
    places = ([panic, absent], tmp_path / "record", tmp_path / "in-use")
    with sysctls_kept(*places):
        panic.write_text("10\n")
        with sysctls_kept(*places):
            panic.write_text("10\n")
        assert panic.read_text() == "10\n"
    assert panic.read_text() == "0\n"
    assert not absent.exists()


def test_next_kubelet_restores_what_a_killed_run_has_left(tmp_path: Path) -> None:
    """The next kubelet restores the sysctls that a killed run recorded."""
    panic, record = tmp_path / "panic", tmp_path / "record"
    panic.write_text("0\n")
    with sysctls_kept([panic], record, tmp_path / "in-use"):
        panic.write_text("10\n")
        left = record.read_text()
    record.write_text(left)
    panic.write_text("10\n")
    with sysctls_kept([panic], record, tmp_path / "in-use"):
        pass
    assert panic.read_text() == "0\n"
