"""Reuse of a pid, forced in a PID namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.runtime


def test_a_number_that_comes_again_is_another_process(tmp_path: Path) -> None:
    """A process with a reused pid neither has nor frees the first one's core, in this agent and the next."""
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
