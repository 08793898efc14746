"""Identify the process and container at the other end of a connection, from the kernel only.

The kernel records the connecting process as a pidfd (SO_PEERPIDFD, Linux 6.5). On older kernels only the pid is known:
then the current process of that pid is opened, and its start time is read before and after. The cgroup of a process
names its container; process-supplied data is not trusted.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone
from agent.kernel.cgroupfs import V2, read_text
from agent.kernel.procfs import is_alive, started
from agent.wrappers.protocol import Denied
from agent.wrappers.registry import Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.kernel.cgroupfs import Hierarchy

_SO_PEERPIDFD: Final = 77  # include/uapi/asm-generic/socket.h; Python has no name for it
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CGROUPS_LIMIT: Final = 2**17  # bytes: more than twice a path of the longest kind in each hierarchy
# Errors for lack of file descriptors or memory, after which the process may still run.
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
UP: Final = ".."


class Peer:
    """A process held by a pidfd, so that its pid cannot be reused unnoticed."""

    def __init__(self, process: Process, pidfd: int) -> None:
        self.process = process
        self.pidfd = pidfd

    def has_ended(self) -> bool:
        """Return whether the process exited; True for a zombie."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Close the pidfd."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def pid_of(connection: socket.socket) -> int:
    """Return the pid of the process that connected; raise Denied if it is not visible."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    if pid <= 0:
        raise Denied("the agent does not see your process: it needs the host's PID namespace (hostPID)")
    return pid


def connected(connection: socket.socket) -> Peer:
    """Return the process that connected; raise Gone if it exited, Denied if it is not visible."""
    pid = pid_of(connection)
    return _held(pid, _pidfd(connection, pid))


def held(process: Process) -> Peer:
    """Open a known process; raise Gone if it exited or its pid was reused, OSError if no file can be opened."""
    peer = _held(process.pid, _by_number(process.pid))
    if peer.process != process:
        peer.close()
        raise Gone(f"pid {process.pid} was reused")
    return peer


def _held(pid: int, pidfd: int) -> Peer:
    peer = Peer(Process(pid, started(pid)), pidfd)
    # the start time is read before the check for the end, because it could be that of a later process
    if peer.process.started and not peer.has_ended():
        return peer
    peer.close()
    raise Gone(f"process {pid} ended")


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        # Linux 6.5 to 6.14 answer EINVAL for a process that has ended, whose pid may be that of another by now.
        if error.errno != errno.ENOPROTOOPT:
            raise Gone(f"process {pid} ended") from error
    return _by_number(pid)


def _by_number(pid: int) -> int:
    """Return a pidfd of the current process with a pid, as needed before Linux 6.5; raise Gone."""
    before = started(pid)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        raise Gone(f"process {pid} ended") from error
    if before and is_alive(pid) and started(pid) == before:
        return pidfd
    with suppress(OSError):
        os.close(pidfd)
    raise Gone(f"process {pid} ended")


def cgroup_of(pid: int, version: int) -> str:
    """Return the cgroup of a process in the cpuset hierarchy, as seen from this cgroup namespace.

    Raises Gone. The caller must open the process before and check afterwards that it has not exited, because the pid
    may be reused.
    """
    try:
        # a third of the time of Path.read_text
        file = os.open(f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC)
        try:
            content = os.read(file, _CGROUPS_LIMIT)
        finally:
            os.close(file)
    except OSError as error:
        raise Gone(f"process {pid} ended") from error
    return cgroup_in(content.decode("utf-8", "surrogateescape"), version)


def cgroup_in(text: str, version: int) -> str:
    """Parse /proc/PID/cgroup; return an empty path if the process is in no cgroup. Names contain no newline."""
    for line in text.split("\n"):  # names have other characters at which splitlines() splits
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" if version == V2 else "cpuset" in controllers.split(","):
            return path
    return ""


class CgroupIndex:
    """Index of the containers' cgroups: by full path and by last component."""

    def __init__(self, cgroups: Mapping[str, str]) -> None:
        self._by_path = cgroups
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for cgroup in cgroups:
            self._by_name[cgroup.rpartition("/")[2]].append(cgroup)

    def container_of(self, pid: int, path: str, hierarchy: Hierarchy) -> str | None:
        """Return the id of the container of process `pid`, whose cgroup is `path`; None if it is not known.

        The kernel is asked only if several containers match, because a container with 10,000 threads takes it 20 ms.
        """
        found = list(self.candidates(path))
        if found and (len(found) == 1 or not path.startswith(f"/{UP}")):
            return found[0][0]
        return next((each for each, whole in found if _has(hierarchy, whole, pid)), None)

    def candidates(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the ids of containers that a cgroup may belong to, nearest first, each with the cgroup's full path.

        `path` is relative to the reader's cgroup namespace. If the agent has a namespace of its own, the path begins
        with `..` and omits the prefix that it shares with the agent's cgroup. What is left begins above the pod, or in
        the agent's own pod with the container, and contains all that a container can name itself. So another
        container's cgroup ends with it only if both have the same name.
        """
        parts = path.split("/")[1:]
        if parts[:1] != [UP]:
            for depth in range(len(parts), 0, -1):
                if found := self._by_path.get(_joined(parts[:depth])):
                    yield found, path
            return
        below = [part for part in parts if part != UP]
        for depth in range(len(below), 0, -1):
            for cgroup in self._by_name.get(below[depth - 1], ()):
                if cgroup.endswith(_joined(below[:depth])):
                    yield self._by_path[cgroup], cgroup + _joined(below[depth:])


def _joined(parts: list[str]) -> str:
    return "".join(f"/{part}" for part in parts)


def _has(hierarchy: Hierarchy, cgroup: str, pid: int) -> bool:
    """Return whether the kernel lists a process in a cgroup."""
    try:
        return str(pid) in read_text(hierarchy.folder(cgroup) / hierarchy.tasks).split()
    except AgentError:
        return False
