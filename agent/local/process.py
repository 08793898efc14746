"""Plain processes of containers: held before their first instruction, watched until they exit, signalled by pidfd.

A process starts as a shell that waits for a line on its standard input and then executes the command. So its
cgroup and CPUs are set before the command runs. If the agent dies before that, the shell reads end of
file and exits.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agent.errors import Refused
from agent.kernel.procfs import started
from agent.local.environ import environments, variable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_SHELL: Final = "/bin/sh"
_HOLD: Final = 'read -r go && exec "$@" </dev/null'
# Signals that Python ignores; they are reset, because the command would inherit that.
_DEFAULTS: Final = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(slots=True)
class Process:
    """One process of a container, with a pidfd, so that a reused pid cannot be mistaken for it."""

    pid: int
    handle: int
    gate: int | None = None  # descriptor of the pipe on which the process waits before it runs its command
    is_child: bool = True  # False: an earlier agent started the process, so its exit status is unknown
    code: int | None = None
    is_over: bool = False

    def let_go(self) -> None:
        """Let the held process execute its command."""
        if self.gate is not None:
            with suppress(BrokenPipeError):
                os.write(self.gate, b"go\n")
            self._shut()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal unless the process has exited."""
        if not self.is_over:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, number)

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended` once when the process exits."""
        asyncio.get_running_loop().add_reader(self.handle, self._reap, ended)

    def variable(self, name: str) -> str:
        """Return a variable of its initial environment; empty if it has none."""
        return next((variable(environment, name) for _, environment in environments([self.pid])), "")

    def close(self) -> None:
        """Close the pidfd, whether the process runs or not."""
        if not self.is_over:
            asyncio.get_running_loop().remove_reader(self.handle)
            self._release()

    def _reap(self, ended: Callable[[], None]) -> None:
        asyncio.get_running_loop().remove_reader(self.handle)
        if self.is_child:
            with suppress(ChildProcessError):
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._release()
        ended()

    def _release(self) -> None:
        self.is_over = True
        os.close(self.handle)
        self._shut()

    def _shut(self) -> None:
        if self.gate is not None:
            os.close(self.gate)
            self.gate = None


def spawn(command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> Process:
    """Return a process that is held until `let_go`; its output is appended to `log`. Raises Refused."""
    inner, outer = os.pipe()
    try:
        actions = [(os.POSIX_SPAWN_DUP2, inner, 0), *_output(log)]
        pid = os.posix_spawn(
            _SHELL,
            ["sh", "-c", _HOLD, "sh", *command],
            dict(environment),
            file_actions=actions,
            setsid=True,
            setsigdef=_DEFAULTS,
        )
        return Process(pid, os.pidfd_open(pid), outer)
    except (OSError, ValueError) as error:
        os.close(outer)
        raise Refused(f"{command[0]} cannot be started: {error}") from error
    finally:
        os.close(inner)


def _output(log: Path | None) -> list[tuple[int, ...] | tuple[int, int, str, int, int]]:
    if log is None:
        opened = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    else:
        opened = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
    return [opened, (os.POSIX_SPAWN_DUP2, 1, 2)]


def adopt(pids: Sequence[int]) -> Process | None:
    """Return the oldest running process of these pids, which an earlier agent started; None if none runs."""
    for pid in sorted(pids, key=lambda pid: (started(pid), pid)):
        with suppress(ProcessLookupError):
            return Process(pid, os.pidfd_open(pid), is_child=False)
    return None


def kill_all(pids: Callable[[], Sequence[int]]) -> None:
    """Kill processes of a container; each pid is looked up again while a pidfd keeps it from being reused."""
    for pid in pids():
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if pid in pids():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
