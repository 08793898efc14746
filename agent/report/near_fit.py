"""Limit the counts of CPUs beside devices to those that fit into a Node beside other resources. Pure.

The admission policy of the agent's writes refuses every write to a node with more than 1,000 resources, so that
conditions and taints could not be updated either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pinning.contract import NEAR_CPUS

if TYPE_CHECKING:
    from agent.report.desired_node import DesiredNode
    from agent.report.node_types import Node

# Resources on a node, which leaves a hundred for device plugins that register afterwards.
MOST_RESOURCES: Final = 900


def fitting(node: Node, desired: DesiredNode) -> tuple[DesiredNode, int]:
    """Return the desired node with the counts that fit, the first by name, and the number left out."""
    near = sorted(name for name in desired.resources if name.startswith(NEAR_CPUS))
    present = {*(node.status.capacity or {}), *(node.status.allocatable or {}), *desired.resources}
    others = sum(not name.startswith(NEAR_CPUS) for name in present)
    dropped = set(near[max(0, MOST_RESOURCES - others) :])
    if not dropped:
        return desired, 0
    kept = {name: number for name, number in desired.resources.items() if name not in dropped}
    return replace(desired, resources=kept), len(dropped)
