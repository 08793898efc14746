"""How real processes ended."""

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
    """Run a shell; yield a descriptor, number and start of it, and collect it."""
    with subprocess.Popen(["/bin/sh", "-c", script]) as running:
        pidfd = os.pidfd_open(running.pid)
        try:
            yield pidfd, running.pid, started(running.pid)
        finally:
            running.kill()
            os.close(pidfd)


def end(pid: int) -> None:
    """Wait for the end of a process, and do not collect it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize(
    ("script", "is_killed"),
    [
        ("kill -KILL $$", True),
        ("kill -TERM $$", False),
        ("kill -SEGV $$", False),
        ("exit 0", None),  # or hidden
        ("exit 137", False),  # as a shell reports the SIGKILL of a child
    ],
)
def test_a_zombie_shows_how_it_ended(script: str, is_killed: bool | None) -> None:
    """Only SIGKILL leaves a process no chance; an exit code of 137 is an ordinary end."""
    with process(script) as (pidfd, pid, began):
        end(pid)
        assert was_killed(pidfd, pid, began) is is_killed


def test_a_process_that_runs_has_not_ended() -> None:
    """Whatever it will end by."""
    with process("exec sleep 1000") as known:
        assert was_killed(*known) is None


@pytest.mark.parametrize(("number", "is_killed"), [(signal.SIGKILL, True), (signal.SIGTERM, False)])
def test_a_collected_process_is_remembered_or_not_known(number: signal.Signals, is_killed: bool) -> None:
    """Linux 6.15 remembers its status for the descriptor; before that it is not known, which is neither end."""
    with process("exec sleep 1000") as (pidfd, pid, began):
        os.kill(pid, number)
        os.waitpid(pid, 0)
        remembers = remembered_status(pidfd) is not None
        assert remembers >= (_kernel() >= (6, 15))
        assert was_killed(pidfd, pid, began) is (is_killed if remembers else None)


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def test_a_number_that_comes_again_is_another_process() -> None:
    """The zombie of a process with the same number and another start says nothing."""
    with process("exit 3") as (_, pid, began):
        end(pid)
        assert zombie_status(pid, began) == 3 << 8
        assert zombie_status(pid, began + 1) is None


def test_a_status_that_the_kernel_hides_is_not_known() -> None:
    """To a reader with fewer capabilities, as the agent in its pod, a killed process reads as if it had ended by itself."""
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
