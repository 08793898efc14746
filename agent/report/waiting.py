"""Set the Degraded condition on the Node while the agent waits for its configuration; change nothing else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from agent.clock import Clock
from agent.report.desired_node import LONGEST_MESSAGE, DesiredNode
from agent.report.node_patch import differences
from agent.report.node_types import Condition, Node
from apiserver.client import STRATEGIC_PATCH
from apiserver.errors import APIError
from apiserver.pages import decode_any
from pinning.contract import DEGRADED_CONDITION

if TYPE_CHECKING:
    from apiserver.client import Api
    from pinning.planning.cpu_groups import Waiting

logger = logging.getLogger(__name__)
_node = msgspec.json.Decoder(Node)


async def write_waiting(api: Api, node: str, waiting: Waiting) -> None:
    """Write the condition if it differs; a failure is logged, and the next check retries."""
    path = f"/api/v1/nodes/{node}"
    message = f"the agent allocates no CPUs: {waiting.message}"
    condition = Condition(DEGRADED_CONDITION, "True", waiting.reason, message[:LONGEST_MESSAGE])
    try:
        there = await decode_any(_node, await api.get(path))
        needed = differences(there, DesiredNode(conditions=(condition,)), Clock().text())
        if needed.status:
            await api.patch(f"{path}/status", needed.status, STRATEGIC_PATCH)
    except APIError as error:
        logger.warning("node not written", extra={"facts": {"reason": str(error)}})
