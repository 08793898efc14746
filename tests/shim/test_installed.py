"""A real agent installs the command beside its socket, and `--reset` removes both."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from demo.agent import LocalAgent
from tests.environments.node.kernel_missing import cgroups_missing
from tests.environments.server.daemon import plain_environment

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.runtime


def test_agent_installs_the_command_and_a_reset_removes_it(command: Path, tmp_path: Path) -> None:
    """A running agent's command answers, and a reset leaves no file of it."""
    why = cgroups_missing()
    if why and os.environ.get("CI") != "true":
        pytest.skip(why)
    folder = tmp_path / "bin"
    agent = LocalAgent(tmp_path, "--cmk-install-dir", str(folder))
    with agent.running():
        agent.until("the socket", (folder / "cmk.sock").is_socket)
        assert (folder / "cmk").read_bytes() == command.read_bytes()
        done = subprocess.run(
            [folder / "cmk", "describe"], env=plain_environment(), capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "infra" in json.loads(done.stdout)["pools"]

    subprocess.run([*agent.command, "--reset"], check=True, capture_output=True)
    assert list(folder.iterdir()) == []
