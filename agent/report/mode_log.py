"""Log what concerns the whole node and, where there are no events, which claims of pods are not fulfilled."""

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
    """Logs when the agent begins to observe only, and when it allocates CPUs again; it starts out allocating."""

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
            logger.warning("only observing, another program allocates the CPUs", extra={"facts": facts})
        else:
            logger.info("allocating CPUs", extra={"facts": {"kubelet": str(state.kubelet)}})

    async def reset(self) -> None:
        """Leave the log as it is."""


class RefusalLog:
    """Logs each claim that is not fulfilled once, until its reason changes: for agents without an API server."""

    def __init__(self) -> None:
        self._logged: frozenset[Refusal] = frozenset()

    async def publish(self, state: NodeState) -> None:
        """Compare with the last state."""
        for refusal in state.refusals:
            if refusal not in self._logged:
                facts = {"claim": refusal.name, "reason": str(refusal.reason), "message": refusal.message}
                logger.warning("claim not fulfilled", extra={"facts": facts})
        self._logged = frozenset(state.refusals)

    async def reset(self) -> None:
        """Leave the log as it is."""
