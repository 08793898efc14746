"""Run a cluster in a session of its own, where a Ctrl-C reaches nobody but the one who takes everything down in order."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from tests.servers.daemon import terminated_with_parent

if TYPE_CHECKING:
    from types import FrameType

HERE: Final = "demo.cluster.here"


def main() -> int:
    """Run the cluster until somebody ends it; return the exit code."""
    command = terminated_with_parent([sys.executable, "-m", HERE])
    with subprocess.Popen(command, start_new_session=True) as cluster:

        def end(_number: int, _frame: FrameType | None) -> None:
            cluster.terminate()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, end)
        return cluster.wait()


if __name__ == "__main__":
    sys.exit(main())
