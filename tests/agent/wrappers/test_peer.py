"""The process at the other end of a connection, as the kernel reports it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import Gone
from agent.kernel.procfs import started
from agent.wrappers.peer import by_number, cgroup_of, connected, held
from agent.wrappers.registry import Process

Find = Callable[[socket.socket, int], int]
CLIENT = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
connection.connect(sys.argv[1])
if sys.argv[2] == "inherit":  # the child has the connection, and asks
    if os.fork():
        sys.stdin.read()
    connection.send(b"child")
    os._exit(0)
if sys.argv[2] == "end":  # the child has the connection, and its maker ends
    if os.fork():
        os._exit(0)
    connection.send(b"child")
sys.stdin.read()
"""


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[socket.socket]:
    """Return a listening socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        yield listening


def client(listening: socket.socket, how: str) -> subprocess.Popen[bytes]:
    """Start a process that connects to the socket."""
    command = [sys.executable, "-I", "-c", CLIENT, listening.getsockname(), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


@pytest.mark.parametrize("find", [None, by_number], ids=["by-pidfd", "by-number"])
def test_the_process_that_connects_is_told(listening: socket.socket, find: Find | None) -> None:
    """The peer is the process that connected, also if its child sends, and its exit is detected."""
    with client(listening, "inherit") as process:
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(5) == b"child"
            peer = connected(connection, find)
        try:
            assert peer.process == Process(process.pid, started(process.pid))
            assert not peer.has_ended()
            process.kill()
            process.wait()
            assert peer.has_ended()
            with pytest.raises(Gone):
                cgroup_of(process.pid, 2)
        finally:
            peer.close()


@pytest.mark.parametrize("find", [None, by_number], ids=["by-pidfd", "by-number"])
def test_a_process_that_ended_is_nobody(listening: socket.socket, find: Find | None) -> None:
    """If the process that connected has exited, its child gets nothing and no file descriptor leaks."""
    with client(listening, "end") as process:
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(5) == b"child"
            process.wait()
            before = os.listdir("/proc/self/fd")  # noqa: PTH208 names alone
            with pytest.raises(Gone):
                connected(connection, find)
            assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 names alone


def test_process_is_identified_by_pid_and_start_time() -> None:
    """The same pid with another start time is another process."""
    itself = Process(os.getpid(), started(os.getpid()))
    peer = held(itself)

    assert peer.process == itself
    peer.close()
    with pytest.raises(Gone, match="was reused"):
        held(Process(itself.pid, itself.started - 1))


def test_cgroup_is_read_from_proc() -> None:
    """The cgroup is that of /proc, in the hierarchy with the cpusets."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()

    assert [cgroup_of(os.getpid(), 2)] == ([line[3:] for line in lines if line.startswith("0::")] or [""])
