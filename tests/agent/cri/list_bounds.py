"""Annotations of maximum size, and limits for the agent's memory and event loop when it lists them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

NOTES = {f"{number:x}": "" for number in range(60_000)}  # 236 kB by the API server's count, of 262 kB allowed
MOST_MIB = 100.0  # half of the agent's limit
ONE_LIST_MIB = 14.0
LONGEST_TURN = 0.05


def cost(socket: Path, rounds: int) -> dict[str, float]:
    """Return the memory and CPU time of listing, measured in a separate process."""
    command = [sys.executable, "-m", "tests.agent.cri.list_cost", str(socket), str(rounds)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    result: dict[str, float] = json.loads(done.stdout)
    return result


def check_bounds(found: dict[str, float]) -> None:
    """Check that memory grows by less than one list and that the event loop is not blocked for long."""
    assert found["peak"] < MOST_MIB
    assert found["peak"] - found["start"] < ONE_LIST_MIB
    assert found["turn"] < LONGEST_TURN
