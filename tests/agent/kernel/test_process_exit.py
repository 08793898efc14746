"""Exit status of real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from agent.kernel.process_exit import remembered_status, was_killed, zombie_status
from agent.kernel.procfs import started


@contextmanager
def process(script: str) -> Iterator[tuple[int, int, int]]:
    """Run a shell; yield its pidfd, pid and start time, and reap it."""
    with subprocess.Popen(["/bin/sh", "-c", script]) as running:
        pidfd = os.pidfd_open(running.pid)
        try:
            yield pidfd, running.pid, started(running.pid)
        finally:
            running.kill()
            os.close(pidfd)


def end(pid: int) -> None:
    """Wait for the exit of a process without reaping it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("script", "is_killed"),
    [
        ("kill -KILL $$", True),
        ("kill -TERM $$", False),
        ("kill -SEGV $$", False),
        ("exit 0", None),  # None: exit status 0, or one that the kernel hides
        ("exit 137", False),  # a shell exits with 137 when a child was killed by SIGKILL
    ],
)
def test_exit_status_of_a_zombie(script: str, is_killed: bool | None) -> None:
    """Only SIGKILL counts as killed; an exit code of 137 is an ordinary exit."""
    with process(script) as (pidfd, pid, began):
        end(pid)
        assert was_killed(pidfd, pid, began) is is_killed


def test_running_process_has_no_exit_status() -> None:
    """A running process gives None."""
    with process("exec sleep 1000") as known:
        assert was_killed(*known) is None


@pytest.mark.parametrize(("number", "is_killed"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_exit_status_of_a_reaped_process(number: signal.Signals, is_killed: bool) -> None:
    """Linux 6.15 keeps the status for the pidfd; on older kernels it is unknown."""
    with process("exec sleep 1000") as (pidfd, pid, began):
        os.kill(pid, number)
        os.waitpid(pid, 0)
        remembers = remembered_status(pidfd) is not None
        assert remembers >= (_kernel() >= (6, 15))
        assert was_killed(pidfd, pid, began) is (is_killed if remembers else None)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def test_reused_pid_is_another_process() -> None:
    """A zombie with the same pid and another start time gives None."""
    with process("exit 3") as (_, pid, began):
        end(pid)
        assert zombie_status(pid, began) == 3 << 8
        assert zombie_status(pid, began + 1) is None


def test_hidden_exit_status_is_unknown() -> None:
    """A reader with fewer capabilities sees status 0, which is unknown."""
    look = (
        "import sys; from agent.kernel.process_exit import *; print(zombie_status(*map(int, sys.argv[1:])))"
    )
    few = ["setpriv", "--inh-caps=-all", "--bounding-set=-all,+sys_nice"]
    with process("kill -KILL $$") as (_, pid, began):
        end(pid)
        command = [sys.executable, "-c", look, str(pid), str(began)]
        said = [
            subprocess.run([*by, *command], check=True, capture_output=True, text=True).stdout.strip()
            for by in ([], few)
        ]

    assert said == [str(int(signal.SIGKILL)), "None"]
