"""The command in a read-only root without other files, as a user without write access."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.shim.agent import FakeAgent
from tests.shim.roots import NOBODY, Root

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.runtime  # chroot and mounts need root


@pytest.fixture
def inside(root: Root) -> Iterator[FakeAgent]:
    """Return an agent whose socket is in the root's install directory."""
    agent = FakeAgent(root.install_dir)
    agent.listen()
    yield agent
    agent.close()


@pytest.mark.parametrize("user", [0, NOBODY])
def test_it_runs_in_an_empty_read_only_root(root: Root, inside: FakeAgent, user: int) -> None:
    """The command runs without libc, shell, /proc or a writable directory: it asks the agent and executes."""
    done = root.run("/opt/bin/cmk", "isolate", "--pool=shared", "/opt/bin/cmk", "--", "--version", user=user)

    assert (done.returncode, done.stdout, done.stderr) == (0, "CMK v1.5.2 (corepin 0.1.0)\n", "")
    assert len(inside.asked) == 1


def test_without_an_agent_it_names_the_usual_socket(root: Root) -> None:
    """Without an agent, and without /proc, the error names CMK's install directory."""
    done = root.run("/opt/bin/cmk", "isolate", "--pool=shared", "true", env={"CMK_LOCK_TIMEOUT": "0"})

    assert done.returncode == 1
    assert "no corepin agent answers at /opt/bin/cmk.sock (No such file or directory)" in done.stderr
