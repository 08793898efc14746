"""Output of CMK's commands about a process under `cmk isolate`, by a real agent and this machine's kernel."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from corepin.cli import main
from tests.environments.node.kernel_missing import cgroups_missing
from tests.environments.process.cmk_agent import CMKAgent

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to give away"),
]


def tasks(described: Any) -> list[Any]:
    """Return the processes that hold a core of the exclusive pool."""
    lists = described["pools"]["exclusive"]["cpuLists"].values()
    return [task for found in lists for task in found["tasks"]]


def test_all_commands_show_a_wrapped_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All commands show the host pid of a wrapped process while it runs, and its pid and pool after it was killed."""
    if why := cgroups_missing():
        pytest.skip(why)
    agent = CMKAgent(tmp_path)

    def shown(action: str) -> Any:
        assert main(["cmk", action, "--socket", str(tmp_path / "agent.sock")]) == 0
        return json.loads(capsys.readouterr().out)

    with agent.running():
        agent.pod("wrapped", "cmk isolate --pool=exclusive sleep 1000")
        agent.until("the command is wrapped", lambda: bool(agent.tasks))
        (pid,) = agent.tasks
        assert tasks(shown("describe")) == [pid]
        assert tasks(shown("node-report")["description"]) == [pid]
        agent.pod("asking", "cmk describe; echo done", cores=0)
        assert tasks(json.loads("\n".join(agent.until_written("asking", "done")[:-1]))) == [pid]
        os.kill(pid, 9)
        agent.until("its core is free", lambda: not agent.tasks)
        (ended,) = shown("reconcile")["reclaimedCpuLists"]
        assert (ended["pid"], ended["pool"]) == (pid, "exclusive")
