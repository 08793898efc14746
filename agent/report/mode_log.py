"""Log changes of the agent's mode and, for agents without an API server, unfulfilled claims of pods."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from agent.node_state import Path
from agent.report.desired_node import KUBELET_REMEDY
from pinning.contract import KubeletPolicy

if TYPE_CHECKING:
    from agent.node_state import NodeState
    from pinning.planning.refusal import Refusal

ONE_PLUGIN = "let one program alone set cpusets: switch the others off, or the agent's --nri"
CONFIGURED = "set observe to false in the node configuration"

logger = logging.getLogger(__name__)


class LogReport:
    """Logs changes of mode: observing or not, how new containers get their CPUs, whether caches are aligned."""

    def __init__(self) -> None:
        self._observes = False
        self._start_path: Path | None = None
        self._aligns: bool | None = None
        self._other_plugins: tuple[str, ...] = ()

    async def publish(self, state: NodeState) -> None:
        """Log changes since the last state."""
        if state.sets.align_uncore is not self._aligns:
            self._aligns = state.sets.align_uncore
            logger.info("last-level caches", extra={"facts": {"alignUncore": self._aligns}})
        if state.observes != self._observes:
            self._observes = state.observes
            self._log_mode(state)
        is_asked_for = state.start_path is Path.NRI or state.start_reason
        start_path = state.start_path if is_asked_for and not state.observes else None
        if start_path is not self._start_path:
            self._log_start_path(start_path, state.start_reason)
            self._start_path = start_path
        is_news = not set(state.other_plugins) <= set(self._other_plugins)
        self._other_plugins = state.other_plugins
        if is_news:
            facts = {"plugins": ", ".join(state.other_plugins), "remedy": ONE_PLUGIN}
            logger.warning("other programs set the cpusets of new containers", extra={"facts": facts})

    def _log_start_path(self, path: Path | None, reason: str) -> None:
        facts = {"path": str(path), "reason": reason}
        if path is Path.NRI:
            logger.info("containers start on their CPUs", extra={"facts": facts})
        elif path and self._start_path is Path.NRI:
            logger.warning("containers no longer start on their CPUs", extra={"facts": facts})
        elif path:
            logger.info("containers are moved when they start", extra={"facts": facts})

    def _log_mode(self, state: NodeState) -> None:
        if state.observes:
            is_static = state.kubelet is KubeletPolicy.STATIC
            facts = {"kubelet": str(state.kubelet), "remedy": KUBELET_REMEDY if is_static else CONFIGURED}
            logger.warning("only observing, another program allocates the CPUs", extra={"facts": facts})
        else:
            logger.info("allocating CPUs", extra={"facts": {"kubelet": str(state.kubelet)}})

    async def reset(self) -> None:
        """Do nothing, because log lines stay."""


class RefusalLog:
    """Logs each unfulfilled claim once, until its reason changes: for agents without an API server."""

    def __init__(self) -> None:
        self._logged: frozenset[Refusal] = frozenset()

    async def publish(self, state: NodeState) -> None:
        """Log changes since the last state."""
        for refusal in state.refusals:
            if refusal not in self._logged:
                facts = {"claim": refusal.name, "reason": str(refusal.reason), "message": refusal.message}
                logger.warning("claim not fulfilled", extra={"facts": facts})
        self._logged = frozenset(state.refusals)

    async def reset(self) -> None:
        """Do nothing, because log lines stay."""
