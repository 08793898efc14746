"""Log of an idle agent beside each runtime: empty.

`COREPIN_IDLE_SECONDS` sets for how long (11 by default). That is longer than the interval of each poll: of CRI-O without
events once a second, of the machine and of interrupts every ten. The sweep every 30 s may be outside of that time.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.environments.node.containerd_fixture import EVERY_RUNTIME
from tests.environments.node.containerd_node import start_node
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.node.containerd import Containerd
    from tests.environments.node.containerd_node import ContainerdNode

SECONDS = float(os.environ.get("COREPIN_IDLE_SECONDS", "11"))
PODS = 6
pytestmark = pytest.mark.parametrize("containerd_session", EVERY_RUNTIME, indirect=True)


@pytest.mark.parametrize("nri", ["off", "nri"])
def test_an_idle_agent_logs_nothing(containerd: Containerd, tmp_path: Path, nri: str) -> None:
    """Once the pods run and their state is published, the log does not grow."""
    socket = "off" if nri == "off" else str(containerd.nri_socket)
    with start_node(containerd, tmp_path, nri=socket) as node:
        for number in range(PODS):
            node.add(f"pod-{number}", "exclusive" if number == 0 else None)
        until_equal("pods that have their CPUs", lambda: _applied(node), PODS)
        # A busy machine may delay the last lines of the start, so that the first of these times can have some.
        until("time without news", lambda: _is_idle(node))


def _applied(node: ContainerdNode) -> int:
    """Return the number of pods whose CPUs were read back."""
    return sum("applied" in it for it in node.reported().values())


def _is_idle(node: ContainerdNode) -> bool:
    """Return whether the log does not grow for the whole time."""
    before = node.agent.log
    time.sleep(SECONDS)
    return node.agent.log == before
