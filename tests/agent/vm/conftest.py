"""A host in plain folders for the tests of virtual machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.vm.fake_host import FakeHost


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    """Return a host with cgroup v2 and nothing on it."""
    return FakeHost(tmp_path / "host")
