"""The agent process with the local runtime, killed and restarted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from demo.agent import LocalAgent
from tests.environments.node.kernel_missing import cgroups_missing

pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is none to give away"),
]
EXAMPLES = Path("examples/demo")


def test_restarted_agent_keeps_the_containers(tmp_path: Path) -> None:
    """After SIGKILL the next agent finds the same process on the same CPUs, and applies edits."""
    why = cgroups_missing()
    if why and os.environ.get("CI") == "true":
        pytest.fail(why)
    if why:
        pytest.skip(why)
    pod = yaml.safe_load((EXAMPLES / "fast.yaml").read_text())
    (tmp_path / "pods").mkdir()
    agent = LocalAgent(tmp_path)
    agent.put(pod)
    with subprocess.Popen(agent.command, stderr=subprocess.DEVNULL) as process:
        agent.until("it is pinned", lambda: bool(agent.container("demo-fast").get("pinned")))
        agent.until("its process is seen", lambda: agent.seen("demo-fast") is not None)
        before = agent.seen("demo-fast")
        assert before
        process.kill()
    with agent.running():
        agent.until("it is pinned again", lambda: bool(agent.container("demo-fast").get("pinned")))
        assert agent.seen("demo-fast") == before
        pod["metadata"]["annotations"] = {}
        agent.put(pod)
        agent.until("it is free", lambda: not agent.container("demo-fast").get("policy"))
