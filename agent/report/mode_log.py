"""Tell the log what concerns the whole node, and, where there are no events, what pods did not get."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agent.kubelet.policy import KubeletPolicy
from agent.report.desired_node import KUBELET_REMEDY

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from pinning.planning.refusal import Refusal

CONFIGURED = "set observe to false in the node configuration"

logger = logging.getLogger(__name__)


class LogReport:
    """Logs the mode of the agent when it changes; giving CPUs out is where it begins."""

    def __init__(self) -> None:
        self._observes = False

    async def publish(self, state: NodeState) -> None:
        """Compare with the last state."""
        if state.observes == self._observes:
            return
        self._observes = state.observes
        if state.observes:
            is_static = state.kubelet is KubeletPolicy.STATIC
            facts = {"kubelet": str(state.kubelet), "remedy": KUBELET_REMEDY if is_static else CONFIGURED}
            logger.warning("only observing, CPUs are given out by another", extra={"facts": facts})
        else:
            logger.info("giving CPUs out", extra={"facts": {"kubelet": str(state.kubelet)}})

    async def reset(self) -> None:
        """Leave the log as it is."""


class RefusalLog:
    """Logs each claim that is not fulfilled once, until its reason changes: for agents without an API server."""

    def __init__(self) -> None:
        self._told: frozenset[Refusal] = frozenset()

    async def publish(self, state: NodeState) -> None:
        """Compare with the last state."""
        for refusal in state.refusals:
            if refusal not in self._told:
                facts = {"claim": refusal.name, "reason": str(refusal.reason), "message": refusal.message}
                logger.warning("claim not fulfilled", extra={"facts": facts})
        self._told = frozenset(state.refusals)

    async def reset(self) -> None:
        """Leave the log as it is."""
