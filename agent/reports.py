"""Everything that the agent tells the API server, put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.node_words import NodeOptions
from agent.report_events import EventReport
from agent.report_node import NodeReport
from agent.report_pods import PodReport
from agent.report_pool import PoolReport

if TYPE_CHECKING:
    from agent.kubeapi import Api
    from agent.seams import PodSource
    from agent.state import Reporter


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What an operator may choose about reports."""

    node: NodeOptions = field(default_factory=NodeOptions)
    pools_namespace: str | None = None  # of the ConfigMap in CMK's shape; None: not written


def reporters(
    api: Api,
    node: str,
    pods: PodSource,
    options: ReportOptions = ReportOptions(),
) -> tuple[Reporter, ...]:
    """Return the reporters of one node: pods first, because people wait for them."""
    listed: tuple[Reporter, ...] = (
        PodReport(api, pods),
        EventReport(api, node, pods),
        NodeReport(api, node, pods, options.node),
    )
    if options.pools_namespace is None:
        return listed
    return (*listed, PoolReport(api, node, options.pools_namespace))
