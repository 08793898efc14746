"""Tell the log what concerns the whole node: who gives its CPUs out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agent.kubelet import KubeletPolicy
from agent.node_words import KUBELET_REMEDY

if TYPE_CHECKING:
    from agent.state import NodeState

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
