"""Fixtures: the built command and a fake agent."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.environments.process.cmk_agent import built
from tests.shim.agent import fake_agent
from tests.shim.roots import Root

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shim.agent import FakeAgent


@pytest.fixture(scope="session")
def command() -> Path:
    """Return the command, built where `scripts/setup` puts it."""
    return built()


@pytest.fixture
def root(command: Path) -> Iterator[Root]:
    """Return an empty root with the command, whose path is short enough for a socket."""
    folder = Path(tempfile.mkdtemp(prefix="root-", dir="/tmp"))
    folder.chmod(0o755)
    root = Root(folder)
    root.install_dir.mkdir(parents=True)
    shutil.copy2(command, root.install_dir / "cmk")
    yield root
    shutil.rmtree(folder)


@pytest.fixture
def agent(command: Path) -> Iterator[FakeAgent]:
    """Return an agent that accepts every request, with the command beside its socket."""
    with fake_agent(command) as agent:
        yield agent


@pytest.fixture
def no_agent(command: Path) -> Iterator[FakeAgent]:
    """Return an agent that does not listen yet."""
    with fake_agent(command, is_listening=False) as agent:
        yield agent
