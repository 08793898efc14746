"""Run the cluster in a new session, so that only this process gets Ctrl-C and cleans up in order."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from demo.cluster.remains import clear_away
from tests.environments.server.daemon import terminated_with_parent

if TYPE_CHECKING:
    from types import FrameType

HERE: Final = "demo.cluster.here"
EMULATED: Final = "demo.cluster.emulated"


def main() -> int:
    """Run the cluster until it is interrupted; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.cluster", description=__doc__)
    smt = "on an emulated machine whose cores have two threads"
    parser.add_argument("--smt", action="store_true", help=smt)
    module = EMULATED if parser.parse_args().smt else HERE
    command = terminated_with_parent([sys.executable, "-m", module])
    clear_away()
    with subprocess.Popen(command, start_new_session=True) as cluster:

        def end(_number: int, _frame: FrameType | None) -> None:
            sys.stdout.write("\nending everything\n")
            cluster.terminate()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        code = cluster.wait()
    clear_away()  # has an effect only if the process was killed
    return code


if __name__ == "__main__":
    sys.exit(main())
