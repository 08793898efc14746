"""The process at the other end of a connection, as the kernel reports it."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Gone
from agent.kernel.procfs import started
from agent.wrappers.peer import cgroup_of, connected, held
from agent.wrappers.registry import Process

SO_PEERPIDFD = 77
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


class SocketBeforeLinux65(socket.socket):
    """A socket that has no pidfd of its peer."""

    error = errno.ENOPROTOOPT

    def getsockopt(self, level: int, option: int, *length: int) -> Any:
        """Return an option; raise OSError for SO_PEERPIDFD."""
        if (level, option) == (socket.SOL_SOCKET, SO_PEERPIDFD):
            raise OSError(self.error, os.strerror(self.error))
        return super().getsockopt(level, option, *length)


class SocketOfEnded(SocketBeforeLinux65):
    """A socket of a process that has ended, on Linux 6.5 to 6.14."""

    error = errno.EINVAL


def accepted(listening: socket.socket, kind: type[socket.socket]) -> socket.socket:
    """Accept a connection as a socket of a kind."""
    connection, _ = listening.accept()
    return kind(fileno=connection.detach())


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


@pytest.mark.parametrize("kind", [socket.socket, SocketBeforeLinux65])
def test_the_process_that_connects_is_told(listening: socket.socket, kind: type[socket.socket]) -> None:
    """The peer is the process that connected, also if its child sends, and its exit is detected."""
    with client(listening, "inherit") as process:
        with accepted(listening, kind) as connection:
            assert connection.recv(5) == b"child"
            peer = connected(connection)
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


@pytest.mark.parametrize("kind", [socket.socket, SocketBeforeLinux65])
def test_a_process_that_ended_is_nobody(listening: socket.socket, kind: type[socket.socket]) -> None:
    """If the process that connected has exited, its child gets nothing and no file descriptor leaks."""
    with client(listening, "end") as process, accepted(listening, kind) as connection:
        assert connection.recv(5) == b"child"
        process.wait()
        before = os.listdir("/proc/self/fd")  # noqa: PTH208 names alone
        with pytest.raises(Gone):
            connected(connection)
        assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 names alone


def test_ended_process_is_not_mistaken_for_the_one_with_its_pid(listening: socket.socket) -> None:
    """If the kernel says that the process has ended, the process that has its pid now is not taken."""
    with client(listening, "stay") as process, accepted(listening, SocketOfEnded) as connection:
        assert process.poll() is None
        with pytest.raises(Gone):
            connected(connection)


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
