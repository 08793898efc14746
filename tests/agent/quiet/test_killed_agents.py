"""Two hundred agents that are killed by SIGKILL: the next one continues from their records, or restores them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from random import randrange

from tests.agent.quiet.killed_agents import KILLS


def test_killed_agents_leave_quiet_cpus_and_originals(tmp_path: Path) -> None:
    """After kills the next agent keeps CPUs quiet, and a reset restores every original."""
    seed = randrange(10**6)  # noqa: S311 - other moments in each run
    command = [sys.executable, "-m", "tests.agent.quiet.killed_agents", str(tmp_path), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"killed in the middle of a round: ([0-9]+)", done.stdout)
    assert found, f"seed {seed}:\n{done.stdout}"
    assert 0 < int(found[1]) <= KILLS
