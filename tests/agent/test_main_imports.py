"""What the agent's main module loads before the configuration is known: each module stays in memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

PROGRAM: Final = "import sys, agent.main; print(*sys.modules)"
# Rooms that the configuration chooses, and modules that only errors or the start of a command need.
LATER: Final = (
    *("agent.cri", "agent.dra", "agent.local", "agent.nri", "agent.vm", "agent.wrappers"),
    *("difflib", "kubeyaml", "pinning.pods.types", "yaml"),
)


def test_main_module_loads_no_room_that_the_configuration_chooses() -> None:
    """The agent's main module imports no implementation of an interface, and nothing that only errors need."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "agent.reconcile.reconciler" in loaded
    assert [it for it in loaded if any(f"{it}.".startswith(f"{room}.") for room in LATER)] == []
