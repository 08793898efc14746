"""The node's state in Intel CMK's terms, for its ConfigMap, its reports and the `cmk` command in containers. Pure."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pinning.cmk.pools import CMKNode, cmk_pools
from pinning.cmk.reports import describe, node_report, reconcile_report, report_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agent.node_state import NodeState


def cmk_node(state: NodeState) -> CMKNode:
    """Return the CPU sets, topology, ledger and tasks of a node's state from which CMK's reports are computed."""
    sets = state.sets
    return CMKNode(
        topology=state.topology,
        universe=sets.universe,
        exclusive=sets.pools.exclusive,
        non_isolcpus=sets.pools.non_isolcpus,
        set_aside=sets.pools.set_aside,
        shared=state.shared,
        ledger=state.ledger,
        tasks=state.tasks,
        pids=state.first_pids,
        is_static=sets.pools.is_static,
    )


def _describe(state: NodeState) -> str:
    return report_text(describe(cmk_pools(cmk_node(state))))


def _node_report(state: NodeState) -> str:
    return report_text(node_report(cmk_pools(cmk_node(state)), state.topology))


def _reconcile(state: NodeState) -> str:
    return report_text(reconcile_report(state.reclaimed, state.reclaims_dropped))


# output of `cmk VERB` in a container, by verb
TEXTS: Final[Mapping[str, Callable[[NodeState], str]]] = MappingProxyType(
    {"describe": _describe, "node-report": _node_report, "reconcile": _reconcile}
)
