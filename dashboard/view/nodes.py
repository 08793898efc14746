"""Page of all nodes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from dashboard.view.messages import OBSERVES, OK, PENDING, SILENT, TROUBLE, WAITING, plural
from dashboard.view.recent_events import namespaces
from dashboard.view.shapes import Overview, Part, Row, Totals
from drawing.picture import Use, reading_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dashboard.model.cluster import Cluster
    from dashboard.model.records import Node
    from dashboard.view.filters import Filter

MOST: Final = 1000  # most rows sent to a browser
OBSERVES_WORDS: Final = (
    "only observes: the kubelet's static policy assigns the CPUs, or the agent is configured so"
)
SILENT_WORDS: Final = "no corepin agent reports"
_FIRST: Final = (TROUBLE, WAITING, PENDING, OBSERVES, OK, SILENT)  # order of the rows: problems first


def overview(cluster: Cluster, wanted: Filter) -> Overview:
    """Return the page of nodes: those that match a filter, problems first, and the sums of all nodes."""
    rows = [_row(cluster, node, wanted) for node in cluster.nodes.values() if wanted.takes_node(node.name)]
    if wanted.is_of_owners:
        rows = [row for row in rows if row.matches]
    rows.sort(key=lambda row: (_FIRST.index(row.health), reading_order(row.name)))
    return Overview(
        tuple(rows[:MOST]), _totals(cluster), max(0, len(rows) - MOST), namespaces(cluster), cluster.troubles
    )


def _row(cluster: Cluster, node: Node, wanted: Filter) -> Row:
    health, notes = health_of_node(cluster, node)
    return Row(
        name=node.name,
        health=health,
        notes=notes,
        cpus=sum(node.counts.values()),
        parts=parts(node.counts),
        free=len(node.free),
        owners=len(node.pools.owners) if node.pools else 0,
        waiting=len(cluster.waiting.get(node.name, ())),
        matches=_matches(cluster, node, wanted) if wanted.is_of_owners else 0,
    )


def _matches(cluster: Cluster, node: Node, wanted: Filter) -> int:
    owners = node.pools.owners if node.pools else {}
    held = sum(wanted.takes_owner(name, owner.policy, owner.smt_policy) for name, owner in owners.items())
    if wanted.policy:
        return held
    return held + sum(wanted.takes_pod(pod.key) for pod in cluster.waiting.get(node.name, ()))


def health_of_node(cluster: Cluster, node: Node) -> tuple[str, tuple[str, ...]]:
    """Return the health of a node, and messages about it, the worst first."""
    if node.problem:
        return TROUBLE, (node.problem,)
    if node.pools is None:
        return SILENT, (SILENT_WORDS,)
    found = []
    if troubled := cluster.troubled.get(node.name):
        found.append(
            (
                TROUBLE,
                f"{plural(len(troubled), 'container')} outside of the assigned CPUs, or with other tasks there",
            )
        )
    if uncounted := cluster.uncounted.get(node.name):
        found.append((TROUBLE, f"{plural(uncounted, 'container')} whose cores the scheduler does not count"))
    if waiting := cluster.waiting.get(node.name):
        found.append((WAITING, f"{plural(len(waiting), 'pod')} waiting for CPUs"))
    if node.pools.observes:
        found.append((OBSERVES, OBSERVES_WORDS))
    if unproven := cluster.unproven[node.name]:
        found.append((PENDING, f"{plural(unproven, 'container')} not proven yet"))
    return (found[0][0] if found else OK), tuple(text for _, text in found)


def parts(counts: Mapping[Use, int]) -> tuple[Part, ...]:
    """Return the number of CPUs by use, in drawing order."""
    return tuple(Part(use.value, counts[use]) for use in Use if counts.get(use))


def _totals(cluster: Cluster) -> Totals:
    counts: Counter[Use] = Counter()
    for node in cluster.nodes.values():
        counts.update(node.counts)
    reporting = [node for node in cluster.nodes.values() if node.pools]
    return Totals(
        nodes=len(cluster.nodes),
        reporting=len(reporting),
        cpus=counts.total(),
        parts=parts(counts),
        free=sum(len(node.free) for node in reporting),
        owners=sum(len(node.pools.owners) for node in reporting if node.pools),
        waiting=sum(map(len, cluster.waiting.values())),
        troubled=sum(map(len, cluster.troubled.values())),
    )
