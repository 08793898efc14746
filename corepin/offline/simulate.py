"""Simulation of one node: documents are events, with a plan after each pod that is added, changed or deleted.

ResourceClaims are planned after all documents.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from corepin.offline.claims import ClaimsOnNode, plan_claims
from corepin.offline.devices import NodeDevices
from pinning.planning.ledger import Ledger
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Observed, Owner, SeenPod
from pinning.planning.plan import plan

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from corepin.offline.claims import PlannedClaim
    from corepin.offline.given_devices import Given
    from corepin.offline.guest import Guest, Threads
    from corepin.offline.planned import Planned
    from pinning.contract import SMTPolicy
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.near import Device
    from pinning.machine.topology import Topology
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.refusal import Refusal


NOT_GIVEN: Final = "this plan has no devices for it: name them with --device"


@dataclass(frozen=True)
class Step:
    """The node after one event: a pod was created, updated or deleted, or a claim was planned."""

    pod: str  # namespace/name of the event's pod; empty: the event is the last of `claims`
    documents: Mapping[str, Planned]  # document of each pod on the node, by namespace/name
    warnings: tuple[str, ...]  # warnings about the event's pod
    ledger: Ledger
    refusals: tuple[Refusal, ...]
    # Threads of each virtual machine, by the name of its assignment.
    machines: Mapping[str, Threads] = field(default_factory=dict)
    devices: Mapping[Owner, tuple[Device, ...]] = field(default_factory=dict)
    free_devices: tuple[Device, ...] = ()
    claims: tuple[PlannedClaim, ...] = ()


@dataclass(frozen=True)
class PlannedNode:
    """One machine with its configuration, initially without pods."""

    topology: Topology
    config: NodeConfig
    devices: tuple[Device, ...] = ()
    # Devices that the user chose for pods; other pods get any device.
    chosen: Given = field(default_factory=dict)

    @property
    def sets(self) -> NodeSets:
        """The CPU sets of the node, independent of pods."""
        return node_sets(self.topology, self.topology.online, self.config)

    @property
    def empty(self) -> Step:
        """The state of the node before the first event."""
        return Step("", {}, (), Ledger(), (), free_devices=self.devices)

    def steps(self, documents: Iterable[Planned], claims: Sequence[int] = ()) -> Iterator[Step]:
        """Yield the node after each event: a repeated pod is an update, one being deleted is removed.

        ResourceClaims for these numbers of CPUs are planned after all pods.
        """
        ledger, node, places = Ledger(), _Pods(), _Places(self.topology)
        given = NodeDevices(self.devices, self.chosen)
        step, seen = self.empty, Observed(self.topology, self.topology.online, ())
        for number, document in enumerate(documents):
            for key, event_pod in node.events(document, number):
                pods_here = tuple(pod for pod, _ in node.here.values())
                devices, lacking = given.follow(node.here)
                seen = Observed(
                    self.topology,
                    self.topology.online,
                    pods_here,
                    devices=devices,
                    devices_unknown=_unknown(node.here, lacking, devices),
                    holds_starts=None,
                )
                planned = plan(seen, ledger, self.config)
                ledger = planned.ledger
                warnings = [f"{warning.field}: {warning.message}" for warning in event_pod.warnings]
                warnings += [lacking[key]] if key in lacking else []
                here = {name: owner for name, (_, owner) in node.here.items()}
                machines = places.of(ledger, here)
                step = Step(
                    key, here, tuple(warnings), ledger, planned.refusals, machines, devices, given.free
                )
                yield step
        before = ClaimsOnNode((), step.ledger, step.refusals)
        for now in plan_claims(seen, before, self.config, claims):
            yield replace(step, pod="", warnings=(), **now._asdict())


def _unknown(
    here: Mapping[str, tuple[SeenPod, Planned]], lacking: Mapping[str, str], known: Collection[Owner]
) -> dict[Owner, str]:
    """Return why the devices of containers are not known, for each container to which the plan assigned none."""
    return {
        owner: lacking.get(key, NOT_GIVEN)
        for key, (pod, _) in here.items()
        for container in pod.device_containers
        if (owner := Owner(pod.uid, container)) not in known
    }


@dataclass(frozen=True)
class _Places:
    """Cache of the CPUs of virtual machines' threads, which change only with the CPUs of their launcher."""

    topology: Topology
    known: dict[tuple[Guest, CPUSet, SMTPolicy], Threads] = field(default_factory=dict)

    def of(self, ledger: Ledger, documents: Mapping[str, Planned]) -> dict[str, Threads]:
        """Return the threads of every machine that holds CPUs."""
        found = {}
        for assignment in ledger:
            document = documents.get(f"{assignment.namespace}/{assignment.pod}")
            if document and document.guest:
                key = document.guest, assignment.cpus, assignment.smt
                if key not in self.known:
                    self.known[key] = document.guest.threads(self.topology, assignment.cpus, assignment.smt)
                found[assignment.name] = self.known[key]
        return found


@dataclass
class _Pods:
    """Pods of the node by namespace/name, with their documents."""

    here: dict[str, tuple[SeenPod, Planned]] = field(default_factory=dict)
    brought: dict[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)

    def events(self, document: Planned, number: int) -> Iterator[tuple[str, SeenPod]]:
        """Add, change or remove the pods of a document, yielding after each of them."""
        before = self.brought.get(document.owner, ())
        keys = tuple(self._key(document, name, frozenset(before)) for name in document.names)
        read = SeenPod.of(document.pod)
        for key in (before or keys) if document.is_going else (key for key in before if key not in keys):
            self.here.pop(key, None)
            yield key, read
        self.brought[document.owner] = () if document.is_going else keys
        for index, key in enumerate(() if document.is_going else keys):
            # A creation time that sorts after that of any real pod.
            seen = _seen(read, key, f"~{number:09}.{index:06}", self.here.get(key))
            self.here[key] = (seen, document)
            yield key, seen

    def _key(self, document: Planned, name: str, own: frozenset[str]) -> str:
        """Return a pod's namespace/name, with its kind if another document has a pod of that name."""
        key = f"{document.namespace}/{name}"
        while key in self.here and key not in own:
            key += f"-{document.item.kind.lower()}"
        return key


def _seen(read: SeenPod, key: str, created: str, before: tuple[SeenPod, Planned] | None) -> SeenPod:
    """Return a pod named by its key. A missing uid or creation time is that of `before`, else the key or `created`."""
    uid, age = (before[0].uid, before[0].created) if before else (key, created)
    namespace, _, name = key.partition("/")
    return replace(read, uid=read.uid or uid, namespace=namespace, name=name, created=read.created or age)
