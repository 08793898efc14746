"""Inside the guest: start the agent again and again without importing its libraries each time.

Importing them takes twenty seconds there, an agent's own work one. So the scenario's process imports them once with its
own, many of which are the same; a fork of it stays, and each agent is a fork of that one which runs the command's `main`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from agent.wrappers import isolate, service
from tests.environments.guest.polling import SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

LIBRARIES = (
    "agent.main",
    "agent.cri.runtime",
    "agent.local.pods_dir",
    "agent.local.folder_events",
    "corepin.run.agent",
    "corepin.cli",
)

CLONE_NEWCGROUP = 0x02000000  # include/uapi/linux/sched.h


class Start(NamedTuple):
    """A request to start an agent."""

    arguments: list[str]
    cgroup: str = (
        ""  # folder of the cgroup that is the root of its own cgroup namespace; empty: it has none of its own
    )


@contextmanager
def started(log: Path) -> Iterator[Connection]:
    """Fork a process that starts agents until the block ends; to be called before this one has threads.

    It is sent a `Start`, and sends the agent's process id, and later how it ended.
    """
    for library in LIBRARIES:
        import_module(library)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, log), daemon=True)
    process.start()
    try:
        yield ours
    finally:
        process.kill()
        process.join()


def _serve(asked: Connection, log: Path) -> None:
    """Start one agent after the other.

    Where a machine gets no CPU for seconds, an agent would deny `cmk isolate` what its next pass shows.
    """
    service.UNKNOWN_SECONDS = isolate.READY_SECONDS = SECONDS  # type: ignore[misc]
    with suppress(EOFError):
        while True:
            start: Start = asked.recv()
            pid = os.fork()
            if pid == 0:
                _become_agent(start, log)
            asked.send(pid)
            asked.send(os.waitpid(pid, 0)[1])


def _become_agent(start: Start, log: Path) -> NoReturn:
    from corepin.cli import main as corepin

    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        if start.cgroup:
            _enter(Path(start.cgroup))
        status = corepin(start.arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 the fork must end here, whatever it met
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _enter(cgroup: Path) -> None:
    """Enter a cgroup and a cgroup namespace, as a container of a runtime does on cgroup v2."""
    cgroup.mkdir(parents=True, exist_ok=True)
    (cgroup / "cgroup.procs").write_text("0")
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWCGROUP):
        raise OSError(ctypes.get_errno(), "unshare")
