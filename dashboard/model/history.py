"""Differences of two cluster states as text, to show them with the agents' events. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from dashboard.model.names import pod_of, refusals

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dashboard.model.records import Node, Pod
    from published.node_pools import Owner

KEPT: Final = 500  # most changes in memory


class Change(NamedTuple):
    """One change of a node or pod that the dashboard observed."""

    time: str
    node: str
    pod: str  # namespace/name of the pod; empty: the node itself changed
    text: str
    is_warning: bool = False


def node_changes(time: str, old: Mapping[str, Node], new: Mapping[str, Node]) -> Iterator[Change]:
    """Yield the differences between the nodes of two states."""
    for name in old.keys() - new.keys():
        yield Change(time, name, "", "the node was deleted", is_warning=True)
    for name, node in new.items():
        before = old.get(name)
        if before is None:
            yield Change(time, name, "", "the node is new")
        elif before is not node:
            yield from _of_node(time, before, node)


def _of_node(time: str, old: Node, new: Node) -> Iterator[Change]:
    if old.pools is None or new.pools is None:
        if text := _reporting(old, new):
            yield Change(time, new.name, "", text, is_warning=new.pools is None)
        return
    if old.picture and new.picture and old.picture.topology.online != new.picture.topology.online:
        online = new.picture.topology.online
        yield Change(time, new.name, "", f"CPUs {online} are online", is_warning=True)
    if old.pools.observes != new.pools.observes:
        text = "the agent only observes now" if new.pools.observes else "the agent allocates CPUs again"
        yield Change(time, new.name, "", text)
    for owner in sorted(old.pools.owners.keys() | new.pools.owners.keys()):
        before, after = old.pools.owners.get(owner), new.pools.owners.get(owner)
        if before != after:
            yield Change(time, new.name, pod_of(owner), f"{owner} {_moved(before, after)}")


def _reporting(old: Node, new: Node) -> str:
    if new.pools:
        return "an agent reports"
    if old.pools:
        return new.problem or "no agent reports from this node any more"
    return new.problem if new.problem != old.problem else ""


def _moved(before: Owner | None, after: Owner | None) -> str:
    if after is None:
        return f"gave back CPUs {before.cpus}" if before else ""
    idle = f", siblings {after.idle} idle" if after.idle else ""
    if before is None:
        return f"got CPUs {after.cpus}{idle} ({after.policy})"
    if before.cpus != after.cpus:
        return f"moved from CPUs {before.cpus} to {after.cpus}{idle}"
    return f"keeps CPUs {after.cpus}{idle}, now {after.policy} {after.smt_policy}".rstrip()


def pod_changes(
    time: str, old: Mapping[str, Pod], new: Mapping[str, Pod], node_of: Mapping[str, str]
) -> Iterator[Change]:
    """Yield a change for each claim that is refused or no longer refused, and for each start or end of drift."""
    for key, pod in new.items():
        before = old.get(key)
        if before is pod:
            continue
        was = {(container, reason) for container, reason, *_ in refusals(before)} if before else set()
        now = {(container, reason) for container, reason, *_ in refusals(pod)}
        for container, reason in sorted(now - was):
            yield Change(
                time, node_of.get(key, ""), key, f"{_named(key, container)} waits: {reason}", is_warning=True
            )
        for container, reason in sorted(was - now):
            yield Change(
                time, node_of.get(key, ""), key, f"{_named(key, container)} no longer waits: {reason}"
            )
        yield from _drifts(time, before, pod, node_of.get(key, ""))


def _drifts(time: str, old: Pod | None, new: Pod, node: str) -> Iterator[Change]:
    before = old.status.containers if old and old.status else {}
    for name, container in (new.status.containers if new.status else {}).items():
        was = name in before and before[name].drift
        if container.drift != was:
            text = "runs outside of its CPUs" if container.drift else "is back on its CPUs"
            yield Change(time, node, new.key, f"{_named(new.key, name)} {text}", is_warning=container.drift)


def _named(pod: str, container: str) -> str:
    return f"{pod}/{container}" if container else pod
