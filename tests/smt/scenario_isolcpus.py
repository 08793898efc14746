"""Inside a guest booted with `isolcpus=`: who gets the isolated cores, and who never does."""

from __future__ import annotations

from pathlib import Path

from pinning.contract import EXCLUSIVE_CORES
from tests.smt.inside import CPUS, OWNER, Node, report, running_node


def main() -> None:
    """Report everything."""
    report("boot", uptime=Path("/proc/uptime").read_text(), isolated=(CPUS / "isolated").read_text().strip())
    with running_node() as node:
        node.agent.start()
        node.add("bystander", 0, {})
        claims(node)


def claims(node: Node) -> None:
    """Let two claims of whole cores take what is isolated, and a third one what is left."""
    node.settle()
    report("alone", **node.snapshot())
    node.add("cmk", 0, {}, {EXCLUSIVE_CORES: "2"})
    node.settle()
    node.add("whole", 2, {OWNER: "require"})
    node.settle()
    report("claims", **node.snapshot())
    node.add("late", 2, {OWNER: "require"})
    node.settle()
    report("late", **node.snapshot())


if __name__ == "__main__":
    main()
