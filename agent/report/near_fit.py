"""Limit the resources that count CPUs near devices, so that a Node has room for its other resources. Pure.

The admission policy for the agent's writes refuses every write to a node with more than 1,000 resources, which would
also stop updates of conditions and taints.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pinning.contract import NEAR_CPUS

if TYPE_CHECKING:
    from agent.report.desired_node import DesiredNode
    from agent.report.node_types import Node

# Highest number of resources on a node; the other 100 are left for device plugins that register later.
MOST_RESOURCES: Final = 900


def fitting(node: Node, desired: DesiredNode) -> tuple[DesiredNode, int]:
    """Return the desired node with the first counts by name that fit, and the number of counts left out."""
    near = sorted(name for name in desired.resources if name.startswith(NEAR_CPUS))
    present = {*(node.status.capacity or {}), *(node.status.allocatable or {}), *desired.resources}
    others = sum(not name.startswith(NEAR_CPUS) for name in present)
    dropped = set(near[max(0, MOST_RESOURCES - others) :])
    if not dropped:
        return desired, 0
    kept = {name: number for name, number in desired.resources.items() if name not in dropped}
    return replace(desired, resources=kept), len(dropped)
