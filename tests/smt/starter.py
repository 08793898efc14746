"""Inside the guest: start the agent again and again without importing its libraries each time.

Importing them takes twenty seconds there, an agent's own work one. So the scenario's process imports them once with its
own, many of which are the same; a fork of it stays, and each agent is a fork of that one which runs the command's `main`.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

LIBRARIES = (
    "agent.main",
    "agent.cri.runtime",
    "agent.local.pods_dir",
    "agent.local.folder_events",
    "corepin.run.agent",
    "corepin.cli",
)


@contextmanager
def started(log: Path) -> Iterator[Connection]:
    """Fork a process that starts agents until the block ends; to be called before this one has threads.

    It is sent the arguments of an agent, and sends its process id, and later how it ended.
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
    """Start one agent after the other."""
    with suppress(EOFError):
        while True:
            arguments = asked.recv()
            pid = os.fork()
            if pid == 0:
                _become_agent(arguments, log)
            asked.send(pid)
            asked.send(os.waitpid(pid, 0)[1])


def _become_agent(arguments: list[str], log: Path) -> NoReturn:
    from corepin.cli import main as corepin

    with log.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = 1
    try:
        status = corepin(arguments)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 the fork must end here, whatever it met
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
