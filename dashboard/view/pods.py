"""Page of one pod, and page of all containers that hold or wait for CPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard.model.names import container_of, pod_of, refusals
from dashboard.view.filters import OnePod
from dashboard.view.messages import (
    OK,
    PENDING,
    POOL_WORDS,
    TROUBLE,
    WAITING,
    facts,
    health_of,
    health_of_owner,
    machine,
    plural,
    proof,
    sentence,
    why,
)
from dashboard.view.node import node_page
from dashboard.view.recent_events import namespaces, recent_events
from dashboard.view.shapes import ContainerCard, Fact, PodPage, PodRow, Pods
from drawing.picture import reading_order
from published.pod_status import POD

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboard.model.cluster import Cluster
    from dashboard.model.records import Pod
    from dashboard.view.filters import Filter
    from dashboard.view.shapes import NodePage
    from published.node_pools import Owner
    from published.pod_status import Container

MOST: Final = 500  # most rows sent to a browser
_FIRST: Final = (TROUBLE, WAITING, PENDING, OK)
NOTHING_SAID: Final = (
    "No agent has reported on this pod: it has no node yet, its containers have not started, or none of its"
    " requests can be fulfilled. `kubectl describe pod` shows which."
)


def pod_page(cluster: Cluster, namespace: str, name: str) -> PodPage | None:
    """Return the page of a pod, None if the pod is unknown."""
    key = f"{namespace}/{name}"
    pod, node = cluster.pods.get(key), cluster.node_of.get(key, "")
    if pod is None and not node:
        return None
    held = _held(cluster, key)
    return PodPage(
        namespace=namespace,
        name=name,
        node=node,
        created=pod.created if pod else "",
        notes=tuple(_notes(cluster, pod, node)),
        asks=tuple(Fact(term, text) for term, text in sorted(pod.asks.items())) if pod else (),
        containers=tuple(_cards(pod, held)),
        machine=tuple(machine(pod.status.vm)) if pod and pod.status and pod.status.vm else (),
        drawing=_drawing(cluster, node, namespace, name) if held else None,
        history=recent_events(cluster, lambda _, other: other == key),
        since=cluster.since,
        troubles=cluster.troubles,
    )


def _held(cluster: Cluster, key: str) -> dict[str, Owner]:
    """Return the node's entries (`Owner`) of a pod's containers that hold CPUs, by container name."""
    node = cluster.nodes.get(cluster.node_of.get(key, ""))
    owners = node.pools.owners if node and node.pools else {}
    return {container_of(name): owner for name, owner in owners.items() if pod_of(name) == key}


def _notes(cluster: Cluster, pod: Pod | None, node: str) -> Iterator[str]:
    if pod and pod.problem:
        yield sentence(pod.problem)
    elif pod is None or pod.status is None:
        yield NOTHING_SAID if not node else "The pod has no status annotation yet."
    if pod is None:
        return
    if pod.status and pod.status.refusal:
        yield f"Waits ({pod.status.refusal.reason}): {pod.status.refusal.message}"
    known = cluster.nodes.get(node)
    if any(True for _ in refusals(pod)) and known and known.pools:
        named = f": {known.free}" if known.free else ""
        yield f"Node {node} has {plural(len(known.free), 'CPU')} that can still be assigned{named}."


def _cards(pod: Pod | None, held: dict[str, Owner]) -> Iterator[ContainerCard]:
    reported = pod.status.containers if pod and pod.status else {}
    for name in sorted(reported.keys() | held.keys(), key=reading_order):
        container, owner = reported.get(name), held.get(name)
        reason = why(container) if container else _unexplained(owner)
        yield ContainerCard(name, _health(container, owner), reason, tuple(_facts(container, owner)))


def _unexplained(owner: Owner | None) -> str:
    """Return the reason text for an owner of CPUs that the pod's annotation does not have."""
    if owner and owner.policy == POD:
        return f"The pool of the pod: {POOL_WORDS}."
    return "Holds CPUs; the status of its pod does not show yet which policies chose them."


def _health(container: Container | None, owner: Owner | None) -> str:
    if container and container.refusal:
        return WAITING
    if owner:
        return health_of_owner(owner, container)
    return health_of(container) if container and container.policy else OK


def _facts(container: Container | None, owner: Owner | None) -> Iterator[Fact]:
    if owner:
        yield from facts(owner, container)
    elif container and container.policy:
        yield Fact("CPUs", container.cpus)
        if container.uncounted:
            yield Fact("Not counted", container.uncounted)
        yield Fact("Proof", proof(container))


def _drawing(cluster: Cluster, node: str, namespace: str, name: str) -> NodePage | None:
    return node_page(cluster, node, OnePod(namespace=namespace, pod=name))


def pods(cluster: Cluster, wanted: Filter) -> Pods:
    """Return the page of containers that hold or wait for CPUs and match a filter, problems first."""
    rows = [*_waiting_rows(cluster, wanted), *_holding_rows(cluster, wanted)]
    rows.sort(key=lambda row: (_FIRST.index(row.health), reading_order(row.key)))
    return Pods(tuple(rows[:MOST]), max(0, len(rows) - MOST), namespaces(cluster), cluster.troubles)


def _waiting_rows(cluster: Cluster, wanted: Filter) -> Iterator[PodRow]:
    if wanted.policy:
        return  # a refused claim has no effective policy yet
    for node, waiting in cluster.waiting.items():
        for pod in waiting:
            if wanted.takes_pod(pod.key) and wanted.takes_node(node):
                for container, reason, message in refusals(pod):
                    yield PodRow(
                        key=f"{pod.key}/{container} waits",
                        namespace=pod.namespace,
                        pod=pod.name,
                        container=container,
                        node=node,
                        policy="",
                        cpus="",
                        health=WAITING,
                        text=f"{reason}: {message}",
                    )


def _holding_rows(cluster: Cluster, wanted: Filter) -> Iterator[PodRow]:
    for node in cluster.nodes.values():
        if not node.pools or not wanted.takes_node(node.name):
            continue
        for name, owner in node.pools.owners.items():
            if wanted.takes_owner(name, owner.policy, owner.smt_policy):
                container = cluster.container(name)
                namespace, _, pod = pod_of(name).partition("/")
                yield PodRow(
                    key=name,
                    namespace=namespace,
                    pod=pod,
                    container=container_of(name),
                    node=node.name,
                    policy=f"{owner.policy} {owner.smt_policy}".rstrip(),
                    cpus=owner.cpus,
                    health=health_of_owner(owner, container),
                    text=proof(container, owner),
                )
