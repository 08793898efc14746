"""What pods, taken as events in their order, would do to one node: a plan after each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from corepin.misshapen import misshapen
from pinning.kube import Pod
from pinning.ledger import Ledger
from pinning.observed import Observed, SeenPod
from pinning.plan import plan
from pinning.pools import node_sets
from webhook.wire import malformed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from corepin.documents import Item
    from pinning.node_config import NodeConfig
    from pinning.pools import NodeSets
    from pinning.refusal import Refusal
    from pinning.topology import Topology


@dataclass(frozen=True)
class Step:
    """The node after one event."""

    pod: str  # namespace/name of the event's pod
    pods: Mapping[str, Pod]  # every pod of the node by namespace/name
    warnings: tuple[str, ...]  # of the event's pod
    ledger: Ledger
    refusals: tuple[Refusal, ...]


@dataclass(frozen=True)
class Node:
    """One machine under one configuration; pods come to it, and nothing runs there yet."""

    topology: Topology
    config: NodeConfig

    @property
    def sets(self) -> NodeSets:
        """The sets of the node, which pods do not change."""
        return node_sets(self.topology, self.topology.online, self.config)

    def steps(self, items: Iterable[Item]) -> Iterator[Step]:
        """Yield the node after each event: a pod seen again is an update, one that is being deleted is gone."""
        ledger, seen, pods = Ledger(), dict[str, SeenPod](), dict[str, Pod]()
        for number, item in enumerate(items):
            pod = _pod(item)
            key = f"{item.namespace or 'default'}/{_name(item, number)}"
            one = _seen(pod, key, number, seen.get(key))
            if item.metadata.get("deletionTimestamp"):
                seen.pop(key, None)
                pods.pop(key, None)
            else:
                seen[key], pods[key] = one, pod
            made = plan(
                Observed(self.topology, self.topology.online, tuple(seen.values())), ledger, self.config
            )
            ledger = made.ledger
            warnings = tuple(f"{warning.field}: {warning.message}" for warning in one.warnings)
            yield Step(key, dict(pods), warnings, ledger, made.refusals)


def _pod(item: Item) -> Pod:
    if (item.group, item.kind) != ("", "Pod"):
        raise item.document.failed(
            f"{item.title} is no pod: give the pods themselves, of apiVersion v1 and kind Pod"
        )
    if not item.name:
        raise item.document.failed("the pod has no name: give metadata.name")
    try:
        return msgspec.convert(item.content, Pod)
    except msgspec.ValidationError as problem:
        raise misshapen(item, malformed(problem)) from problem


def _name(item: Item, number: int) -> str:
    """Return the pod's name; one that the API server shall complete is a new pod each time."""
    return str(item.metadata.get("name") or f"{item.metadata['generateName']}{number}")


def _seen(pod: Pod, key: str, number: int, before: SeenPod | None) -> SeenPod:
    """Read a pod; one that states no uid or time of creation is known by its name, and as old as its first event."""
    read = SeenPod.of(pod)
    created = before.created if before else f"~{number:09}"  # after every real time
    uid = read.uid or (before.uid if before else key)
    return replace(read, uid=uid, name=key.partition("/")[2], created=read.created or created)
