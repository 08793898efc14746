"""A process that gets the number of one that ended: forced, in a PID namespace of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.runtime


def test_a_number_that_comes_again_is_another_process(tmp_path: Path) -> None:
    """It neither has nor frees what the first one had, in this agent and in the next; no core is lost."""
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        sys.executable,
        "-m",
        "tests.agent.wrappers.pid_reuse",
    ]
    played = subprocess.run(
        [*command, str(tmp_path / "s")], check=False, capture_output=True, text=True, timeout=120
    )

    assert played.stdout.splitlines() == [
        "the connection is nobody's",
        "the core is free, and the second process may have it",
        "the next agent takes the second process for another one",
        "its end frees its own core alone",
    ], played.stderr
