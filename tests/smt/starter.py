"""Inside the guest: start the agent again and again without importing its libraries each time.

Importing them takes ten seconds and more there, an agent's own work one. So this process imports them once, and each
agent is a fork of it that runs the command's `main`. One line of JSON in (the arguments) starts one; two lines out
tell its process id, and later how it ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import NoReturn

LIBRARIES = (
    "agent.main",
    "agent.cri.runtime",
    "agent.local.pods_dir",
    "agent.local.folder_events",
    "corepin.run.agent",
    "corepin.cli",
)


def main() -> None:
    """Start one agent after the other until there is no more input."""
    log = Path(sys.argv[1])
    for library in LIBRARIES:
        import_module(library)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _become_agent(json.loads(line), log)
        _say(pid)
        _say(os.waitpid(pid, 0)[1])


def _say(number: int) -> None:
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


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


if __name__ == "__main__":
    main()
