"""`killed RUNTIME FOLDER`: a process that starts one machine, prints its pid, and waits to be killed."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.environments.node.containerd import VERSIONS, start_containerd
from tests.environments.vm.guests import Guest
from tests.environments.vm.nodes import run_containerd_node, run_local_node


def main() -> None:
    """Start the machine."""
    runtime, folder = sys.argv[1], Path(sys.argv[2])
    with ExitStack() as stack:
        if runtime == "local":
            machine = stack.enter_context(run_local_node(folder)).launch("vm", Guest(1), annotations={})
        else:
            (folder / "containerd").mkdir()
            containerd = stack.enter_context(start_containerd(VERSIONS[-1], folder / "containerd"))
            node = stack.enter_context(run_containerd_node(containerd, folder))
            machine = (
                node.launch("vm", Guest(1)) if runtime == "launcher" else node.sandbox("vm", Guest(1), {})
            )
        sys.stdout.write(f"{machine.pid}\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    main()
