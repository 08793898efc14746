"""In-memory nodes for the agent's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.fakes import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Return a node of 4 cores with 2 threads each: 0,4 1,5 2,6 3,7, with the first reserved."""
    node = FakeNode(tmp_path / "state")
    yield node
    node.close()
