"""Results of `corepin doctor` on a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.environments.node.node import COMMAND, places
from tests.environments.waiting import until

if TYPE_CHECKING:
    from tests.environments.node.node import Node


def corepin(node: Node, *arguments: str, manifest: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as an administrator of the cluster does, on this machine; warnings are errors."""
    return subprocess.run(
        [sys.executable, "-W", "error", str(COMMAND), *arguments],
        env={"PATH": os.environ["PATH"], "KUBECONFIG": str(node.plane.server.kubeconfig()), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        input=manifest,
    )


def examined(node: Node, *flags: str) -> dict[str, dict[str, str]]:
    """Return the findings of `corepin doctor` by subject, of several the last.

    The doctor waits three seconds for the runtime. On a busy machine these may pass, and it is run again.
    """
    flags = (*places(node.containerd, node.kubelet), "--socket", str(node.agent.socket), *flags)

    def checks() -> dict[str, dict[str, str]] | None:
        done = corepin(node, "doctor", *flags, "-o", "json")
        assert done.stderr == ""
        found = {check["subject"]: check for check in json.loads(done.stdout)["checks"]}
        return found if found["runtime"]["verdict"] != "unknown" else None

    return until("the runtime answers the doctor", checks)
