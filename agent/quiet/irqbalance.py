"""Client of irqbalance's socket; the agent neither restarts irqbalance's service nor writes its configuration.

irqbalance would move interrupts back to every CPU. It has a list of banned CPUs, which a request replaces: the list is
read first and the union is sent. The socket is `irqbalancePID.sock` in a folder of root; it accepts uid 0 alone.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from agent.errors import Unavailable
from agent.kernel.cgroup_names import pod_of
from agent.kernel.procfs import DEAD, STARTED, STATE, cgroup_of, login_uid, read_stat, runs_as_root
from pinning.errors import BadCPUList
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

NAME: Final = "irqbalance"
ANSWER_SECONDS: Final = 12.0  # releases before 1.9.4 may answer only after their interval of 10 seconds
# Time for which an answer stays valid without a newer one, the same as for a noise level.
SILENT_SECONDS: Final = 600.0
MOST_BYTES: Final = 2**20  # longest answer, with 60 bytes for each interrupt
# Longest request: releases before 1.9.5 read at most 499 bytes, and act on a truncated request.
MOST_LETTERS: Final = 499
_SOCKET: Final = re.compile(r"irqbalance([0-9]{1,9})\.sock")
_SLEEP: Final = re.compile(rb"^\s*SLEEP ([0-9]{1,6})\b")
_BANNED: Final = re.compile(rb"\bBANNED ([0-9a-fA-F,]+)\s*\x00*$")
_INTERRUPT: Final = re.compile(rb"\bIRQ ([0-9]{1,9}) ")
_ENDED: Final = (OSError, IndexError, ValueError)  # errors if a process exits while it is read


Answer = TypeVar("Answer")


class Daemon(NamedTuple):
    """A running irqbalance, identified by pid and start time, because pids are reused."""

    pid: int
    started: int
    socket: Path | None = None  # None: irqbalance has no socket that can be reached


class Setup(NamedTuple):
    """The answer of irqbalance to `setup`: its interval and its lists."""

    banned: CPUSet
    interval_seconds: int
    interrupts: frozenset[int] = (
        frozenset()
    )  # interrupts banned over the socket, without those of its policy scripts


class Irqbalance:
    """The irqbalance of a node; `folder` is its /run/irqbalance, `proc` shows the node's processes."""

    def __init__(
        self,
        folder: Path,
        proc: Path,
        timeout_seconds: float = ANSWER_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._proc = proc
        self._timeout = timeout_seconds
        self._monotonic = monotonic

    def with_socket(self) -> Daemon | None:
        """Return the running irqbalance that has a socket; a killed one leaves its socket behind."""
        with suppress(OSError):
            for path in sorted(self.folder.iterdir()):
                found = _SOCKET.fullmatch(path.name)
                daemon = self._daemon(int(found[1])) if found else None
                if daemon:
                    return daemon._replace(socket=path)
        return None

    def without_socket(self) -> Daemon | None:
        """Return a running irqbalance by its name, from all processes of the node.

        A user can start a setuid program by this name, so a process from another user's login session is not
        trusted. A process with a socket is trusted, because only root creates files in that folder.
        """
        with suppress(OSError):
            for entry in self._proc.iterdir():
                daemon = self._daemon(int(entry.name)) if entry.name.isdecimal() else None
                if daemon and not login_uid(entry):
                    return daemon
        return None

    def runs(self, daemon: Daemon) -> bool:
        """Return whether a process that was found earlier still runs."""
        found = self._daemon(daemon.pid)
        return found is not None and found.started == daemon.started

    def _daemon(self, pid: int) -> Daemon | None:
        """Return a process if it is root's irqbalance; None for one in a pod, where any user may choose the name."""
        folder = self._proc / str(pid)
        with suppress(*_ENDED):
            name, fields = read_stat(folder)
            if (
                name == NAME
                and fields[STATE] not in DEAD
                and runs_as_root(folder)
                and pod_of(cgroup_of(folder)) is None
            ):
                return Daemon(pid, int(fields[STARTED]))
        return None

    def setup(self, daemon: Daemon) -> Setup:
        """Return irqbalance's interval and lists; raise Unavailable if the answer is late or malformed."""
        answer = self._ask(daemon, "setup")
        interval, banned = _SLEEP.search(answer), _BANNED.search(answer)
        if not interval or not banned:
            raise Unavailable(f"{daemon.socket}: {answer[:60]!r} is not an answer of irqbalance to setup")
        try:
            cpus = CPUSet.parse_mask(banned[1].decode())
            return Setup(cpus, int(interval[1]), frozenset(map(int, _INTERRUPT.findall(answer))))
        except BadCPUList as error:
            raise Unavailable(f"{daemon.socket}: the CPUs that irqbalance bans: {error}") from error

    def ban(self, daemon: Daemon, cpus: CPUSet) -> None:
        """Replace the list of banned CPUs; with an empty list irqbalance uses the list in its environment."""
        self._ask(daemon, cpus_text(cpus))

    def ban_interrupts(self, daemon: Daemon, numbers: Collection[int]) -> None:
        """Replace the list of interrupts that irqbalance must not move."""
        self._ask(daemon, ban_text(numbers))

    def _ask(self, daemon: Daemon, text: str) -> bytes:
        """Send one request and return the answer until the connection ends; bounded in time and size."""
        end = self._monotonic() + self._timeout
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout)
                connection.connect(str(daemon.socket))
                connection.sendall(text.encode())
                return b"".join(self._parts(connection, end))
        except OSError as error:
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise Unavailable(f"{daemon.socket}: {reason}") from error

    def _parts(self, connection: socket.socket, end: float) -> Iterator[bytes]:
        size = 0
        while part := connection.recv(2**16):
            size += len(part)
            left = end - self._monotonic()
            if size > MOST_BYTES:
                raise OSError(f"the answer has more than {MOST_BYTES >> 20} MiB")
            if left <= 0:
                raise TimeoutError
            yield part
            connection.settimeout(left)


class _Heard(NamedTuple, Generic[Answer]):
    daemon: Daemon
    asked: AbstractSet[int]
    answer: Answer
    until: float


class LastAnswer(Generic[Answer]):
    """The last answer of irqbalance, with the CPUs or interrupts of its request.

    A list in irqbalance stays in force while its process runs, so a request without an answer changes nothing. If each
    failed request changed the report, the status of every quiet pod would be written each time.
    """

    def __init__(self) -> None:
        self._heard: _Heard[Answer] | None = None

    def keep(self, daemon: Daemon, asked: AbstractSet[int], answer: Answer, now: float) -> None:
        """Store an answer of irqbalance in place of the last one."""
        self._heard = _Heard(daemon, asked, answer, now + SILENT_SECONDS)

    def drop(self) -> None:
        """Drop the last answer."""
        self._heard = None

    def holds(self, daemon: Daemon, asked: AbstractSet[int], now: float) -> Answer | None:
        """Return this irqbalance's last answer if it covers the requested CPUs or interrupts; None: not known."""
        heard = self._heard
        if heard is None or heard.daemon != daemon or not asked <= heard.asked or now >= heard.until:
            return None
        return heard.answer


def cpus_text(cpus: CPUSet) -> str:
    """Return the request for a list of CPUs."""
    return f"settings cpus {cpus or 'NULL'}"


def ban_text(numbers: Collection[int]) -> str:
    """Return the request for a list of interrupts; its last letter stops old releases from reading past the end."""
    listed = " ".join(map(str, sorted(numbers)))
    return f"settings ban irqs {listed} x" if listed else "settings ban irqs NONE"
