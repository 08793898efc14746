"""Inside the guest, which is booted with `isolcpus=`: who gets the isolated cores, and who never does."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from pinning.contract import EXCLUSIVE_CORES
from tests.environments.guest.inside import CPUS, OWNER, WORK, report

if TYPE_CHECKING:
    from tests.environments.guest.inside import Node


def isolated_cores(node: Node) -> None:
    """Let two claims of whole cores take what is isolated, and a third one what is left."""
    node.settle()
    _tell(node, "alone")
    node.add("isolated-cmk", 0, {}, {EXCLUSIVE_CORES: "2"})
    node.settle()
    node.add("isolated-whole", 2, {OWNER: "require"})
    node.settle()
    _tell(node, "claims")
    node.add("after-isolated", 2, {OWNER: "require"})
    node.settle()
    _tell(node, "late")
    for name in ("isolated-cmk", "isolated-whole", "after-isolated"):
        node.remove(name)
    node.settle()


def _tell(node: Node, step: str) -> None:
    report("isolcpus", step=step, kernel=(CPUS / "isolated").read_text().strip(), **node.snapshot())


def hide_isolated_cores() -> None:
    """Show the next agents a machine that was booted without the option: a cpuset may hold these CPUs as any other."""
    nothing = WORK / "no-cpus"
    nothing.write_text("\n")
    subprocess.run(["mount", "--bind", nothing, CPUS / "isolated"], check=True)
