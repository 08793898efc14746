"""Inside the guest, which is booted with `isolcpus=`: claims on isolated cores, and pods that must not get them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from pinning.contract import EXCLUSIVE_CORES
from tests.environments.guest.inside import CPUS, OWNER, WORK, report

if TYPE_CHECKING:
    from tests.environments.guest.inside import Node


def isolated_cores(node: Node) -> None:
    """Start two claims of whole cores, which use up the isolated cores, and a third one, which gets another core."""
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
    """Hide `isolcpus=` from later agents, so that the isolated CPUs count as ordinary ones."""
    nothing = WORK / "no-cpus"
    nothing.write_text("\n")
    subprocess.run(["mount", "--bind", nothing, CPUS / "isolated"], check=True)
