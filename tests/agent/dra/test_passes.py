"""The driver's hook in a pass: after the ledger is saved and others have left its CPUs, before the flush."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.absent import NoDeviceClaims
from agent.process import Agent
from agent.reconcile.checkpoint import Saved, StateDir
from pinning.planning.ledger import Ledger
from tests.agent.fakes import FakeNode
from tests.pinning.world import EXCLUSIVE


class NotingDisk(StateDir):
    """A state directory that notes what is done, and whose writes can fail."""

    def __init__(self, folder: Path, events: list[str]) -> None:
        super().__init__(folder)
        self.events = events
        self.is_full = False

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint."""
        if self.is_full:
            raise OSError("no space left")
        self.events.append("saved")
        super().save(saved)

    def settle(self) -> None:
        """Flush the checkpoint."""
        self.events.append("flushed")
        super().settle()


class NotingDriver(NoDeviceClaims):
    """A driver that notes the passes."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def passed(self, ledger: Ledger, waiting: Mapping[str, str], *, observes: bool) -> None:
        """Note a pass."""
        self.events.append("answered")


def test_kubelet_is_answered_after_the_save_and_before_the_flush(tmp_path: Path) -> None:
    """The kubelet is answered after the checkpoint is saved and before it is flushed to disk."""
    node, events = FakeNode(tmp_path), list[str]()
    node.claims = NotingDriver(events)
    node.state_dir.close()
    disk = node.state_dir = NotingDisk(tmp_path, events)
    node.agent = Agent(node.parts())
    node.add("a", EXCLUSIVE)
    node.run()
    assert events[:3] == ["saved", "answered", "flushed"]
    events.clear()
    disk.is_full = True
    node.add("b", EXCLUSIVE)
    with pytest.raises(OSError, match="no space left"):
        node.run()
    assert events == []
    node.close()
