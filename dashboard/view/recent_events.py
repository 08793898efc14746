"""Recent events: the agents' events, and changes that the dashboard observed since its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard.view.shapes import Entry, History

if TYPE_CHECKING:
    from collections.abc import Callable

    from dashboard.model.cluster import Cluster
    from dashboard.view.filters import Filter

SHOWN: Final = 100
ON_A_PAGE: Final = 30


def recent_events(
    cluster: Cluster, takes: Callable[[str, str], bool], limit: int = ON_A_PAGE
) -> tuple[Entry, ...]:
    """Return the events of matching nodes and pods, newest first."""
    entries = [
        Entry(
            event.time,
            event.node,
            *_split(event.pod),
            event.reason,
            event.message,
            event.is_warning,
            event.count,
        )
        for event in cluster.events
        if takes(event.node, event.pod)
    ]
    entries += [
        Entry(change.time, change.node, *_split(change.pod), "", change.text, change.is_warning, 1)
        for change in cluster.changes
        if takes(change.node, change.pod)
    ]
    return tuple(
        sorted(entries, key=lambda entry: (entry.time, entry.node, entry.text), reverse=True)[:limit]
    )


def _split(pod: str) -> tuple[str, str]:
    namespace, _, name = pod.partition("/")
    return namespace, name


def history(cluster: Cluster, wanted: Filter) -> History:
    """Return the page of recent events in the whole cluster."""

    def takes(node: str, pod: str) -> bool:
        return wanted.takes_node(node) and (wanted.takes_pod(pod) or not (pod or wanted.is_of_owners))

    return History(recent_events(cluster, takes, SHOWN), cluster.since, namespaces(cluster), cluster.troubles)


def namespaces(cluster: Cluster, most: int = 200) -> tuple[str, ...]:
    """Return the namespaces with pods or events."""
    names = {pod.namespace for pod in cluster.pods.values()}
    names |= {key.partition("/")[0] for key in cluster.node_of}
    return tuple(sorted(names)[:most])
