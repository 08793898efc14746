"""Remove corepin from the cluster as the operator guide says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.docs.blocks import blocks
from tests.manifests.guide import section

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.environments.cluster.cluster import Cluster
    from tests.manifests.guide import Shell


def uninstall(cluster: Cluster, terminal: Shell) -> list[str]:
    """Run every command of the chapter, and return what each block printed."""
    cluster.applied = None
    return [terminal.run(block) for block in blocks(section("Uninstall"), "sh", "console")]


def ours(node: Any, pods: Sequence[Any]) -> list[str]:
    """Return what corepin or CMK left on a node and pods: labels, annotations, resources, conditions."""
    metadata = [
        f"{part}: {key}"
        for document in (node, *pods)
        for part in ("annotations", "labels")
        for key in document["metadata"].get(part) or ()
        if key.startswith(("status.corepin.io/", "cmk.intel.com/")) or key.endswith("cpumanager")
    ]
    status = node["status"]
    amounts = [
        name for part in ("capacity", "allocatable") for name, held in status[part].items() if held != "0"
    ]
    conditions = [condition["type"] for condition in status["conditions"]]
    return metadata + [name for name in (*amounts, *conditions) if "corepin" in name.lower() or "cmk" in name]
