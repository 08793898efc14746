"""Who is at the other end, by the kernel's word."""

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
    """Start a process that connects."""
    command = [sys.executable, "-I", "-c", CLIENT, listening.getsockname(), how]
    return subprocess.Popen(command, stdin=subprocess.PIPE)


@pytest.mark.parametrize("find", [None, by_number], ids=["by-pidfd", "by-number"])
def test_the_process_that_connects_is_told(listening: socket.socket, find: Find | None) -> None:
    """Also when a child of it sends; it is held while it lives, and known to have ended afterwards."""
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
    """Whoever has its connection now gets nothing by it, and no descriptor is left of it."""
    with client(listening, "end") as process:
        connection, _ = listening.accept()
        with connection:
            assert connection.recv(5) == b"child"
            process.wait()
            before = os.listdir("/proc/self/fd")  # noqa: PTH208 names alone
            with pytest.raises(Gone):
                connected(connection, find)
            assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 names alone


def test_a_process_is_held_by_its_number_and_start() -> None:
    """With another start it is another process."""
    itself = Process(os.getpid(), started(os.getpid()))
    peer = held(itself)

    assert peer.process == itself
    peer.close()
    with pytest.raises(Gone, match="is another one"):
        held(Process(itself.pid, itself.started - 1))


def test_the_cgroup_is_the_kernels_word() -> None:
    """It is that of /proc, in the hierarchy that has the cpusets."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()

    assert [cgroup_of(os.getpid(), 2)] == ([line[3:] for line in lines if line.startswith("0::")] or [""])
