"""Who is at the other end of a connection, and in which container: by the kernel's word alone.

The kernel notes who connects, as a process and not as a number (SO_PEERPIDFD, Linux 6.5). Where only the number can be
had, the process that has it is held by a descriptor, and its start is read before and after that. The cgroup of a process
names its container; what the process says of itself does not count.
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
    from collections.abc import Callable, Iterator, Mapping

    from agent.kernel.cgroupfs import Hierarchy

_SO_PEERPIDFD: Final = 77  # include/uapi/asm-generic/socket.h; Python has no name for it
_CREDENTIALS: Final = struct.Struct("3i")  # struct ucred: pid, uid, gid
_CGROUPS_LIMIT: Final = 2**17  # bytes: more than twice a path of the longest kind in each hierarchy
_UNKNOWN_OPTION: Final = frozenset({errno.ENOPROTOOPT, errno.EINVAL})
UP: Final = ".."


class Peer:
    """A process held by a pidfd, so that its pid cannot be reused unnoticed."""

    def __init__(self, process: Process, pidfd: int) -> None:
        self.process = process
        self.pidfd = pidfd

    def has_ended(self) -> bool:
        """Say whether the process is over; a zombie is."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Let go of it."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def pid_of(connection: socket.socket) -> int:
    """Return the number that the process had which connected; raise Denied when it cannot be seen."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    if pid <= 0:
        raise Denied("the agent does not see your process: it needs the host's PID namespace (hostPID)")
    return pid


def connected(connection: socket.socket, find: Callable[[socket.socket, int], int] | None = None) -> Peer:
    """Return the process that connected; raise Gone when it ended, and Denied when it cannot be seen."""
    pid = pid_of(connection)
    return _held(pid, (find or _pidfd)(connection, pid))


def held(process: Process) -> Peer:
    """Return a process that was known before; raise Gone when it is not there any more, or its number is another's."""
    peer = _held(process.pid, _by_number(process.pid))
    if peer.process != process:
        peer.close()
        raise Gone(f"process {process.pid} is another one")
    return peer


def _held(pid: int, pidfd: int) -> Peer:
    peer = Peer(Process(pid, started(pid)), pidfd)
    if peer.process.started and not peer.has_ended():  # in this order: else the start may be another's
        return peer
    peer.close()
    raise Gone(f"process {pid} ended")


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno not in _UNKNOWN_OPTION:
            raise Gone(f"process {pid} ended") from error
    return _by_number(pid)


def by_number(_: socket.socket, pid: int) -> int:
    """Return a descriptor of the process that has a number now, as on a kernel before 6.5; raise Gone."""
    return _by_number(pid)


def _by_number(pid: int) -> int:
    before = started(pid)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise Gone(f"process {pid} ended") from error
    if before and is_alive(pid) and started(pid) == before:
        return pidfd
    with suppress(OSError):
        os.close(pidfd)
    raise Gone(f"process {pid} ended")


def cgroup_of(pid: int, version: int) -> str:
    """Return the cgroup of a process in the hierarchy with the cpuset controller, as this process's namespace shows it.

    Raises Gone. A process that was held before and has not ended afterwards is the one that this is of.
    """
    try:
        file = os.open(
            f"/proc/{pid}/cgroup", os.O_RDONLY | os.O_CLOEXEC
        )  # a third of the time of Path.read_text
        try:
            content = os.read(file, _CGROUPS_LIMIT)
        finally:
            os.close(file)
    except OSError as error:
        raise Gone(f"process {pid} ended") from error
    return cgroup_in(content.decode("utf-8", "surrogateescape"), version)


def cgroup_in(text: str, version: int) -> str:
    """Return the cgroup that a /proc/PID/cgroup tells; empty where the process is in none. A name holds no newline."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" if version == V2 else "cpuset" in controllers.split(","):
            return path
    return ""


class CgroupIndex:
    """The cgroups of the node's containers, by path from the mount and by their last part."""

    def __init__(self, cgroups: Mapping[str, str]) -> None:
        self._by_path = cgroups
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for cgroup in cgroups:
            self._by_name[cgroup.rpartition("/")[2]].append(cgroup)

    def container_of(self, pid: int, path: str, hierarchy: Hierarchy) -> str | None:
        """Return the id of the container of a process in the cgroup `path`; None if no known container matches."""
        for found, whole in self.candidates(path):
            if not path.startswith(f"/{UP}") or _has(hierarchy, whole, pid):
                return found
        return None

    def candidates(self, path: str) -> Iterator[tuple[str, str]]:
        """Yield the ids of containers that a cgroup may belong to, nearest first, each with the cgroup's full path.

        `path` is relative to the reader's cgroup namespace. If the agent has a namespace of its own, the path begins with
        `..` and omits the prefix that it shares with the agent's cgroup: several containers may match, and the caller asks
        the kernel which.
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
    """Say whether the kernel shows a process in a cgroup."""
    try:
        return str(pid) in read_text(hierarchy.folder(cgroup) / hierarchy.tasks).split()
    except AgentError:
        return False
