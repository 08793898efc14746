"""States of a small node for report tests: 4 cores of 2 CPUs (0,4 to 3,7) on 2 sockets, CPU 0 reserved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agent.node_state import Conflict, NodeState, Path, Proof, StartWay
from agent.reconcile.result import PassResult, node_state_of
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.machine.topology import CPUFacts, Topology, assemble
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from pinning.planning.plan import plan
from pinning.pods.identity import by_runtime_uid, runtime_uid
from pinning.pods.types import Pod
from tests.pods import container, pod

WHEN = "2026-11-20T10:00:00Z"
MACHINE = assemble([CPUFacts(cpu, cpu % 4, cpu % 4 // 2, cpu % 4 // 2) for cpu in range(8)], CPUSet(range(8)))
EXCLUSIVE = {"cpu-manager.corepin.io/pod": "exclusive"}
ISOLATE = {"smt-policy.corepin.io/pod": "isolate"}


@dataclass
class Pods:
    """A pod source with fixed pods."""

    shown: Mapping[str, Pod]
    complete: bool = True

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods."""
        return self.shown

    async def watch(self, changed: object) -> None:
        """Report no changes."""

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Return None, because there are no other pods."""
        return None


def source(*pods: Pod) -> Pods:
    """Return a source of pods."""
    return Pods({(shown["metadata"] or {})["uid"] or "": shown for shown in pods})


def bound(name: str, *containers: Any, annotations: Mapping[str, str] | None = None, **metadata: Any) -> Pod:
    """Return a pod as the API shows it on the node."""
    document = pod(*containers or (container("main", 2),), annotations=annotations)
    given = {**(document["metadata"] or {}), "name": name, "uid": name, "creationTimestamp": WHEN, **metadata}
    return {**document, "metadata": given, "status": {"phase": "Running"}}  # type: ignore[typeddict-item]


def state_of(
    *pods: Pod,
    machine: Topology = MACHINE,
    config: NodeConfig = NodeConfig(),
    ledger: Ledger | None = None,
    proven: bool = True,
    path: Path = Path.CGROUP,
    when: str = WHEN,
    conflicts: tuple[Conflict, ...] = (),
    complete: bool = True,
    proofs: Mapping[Owner, Proof] | None = None,
    node: str = "node-1",
    devices: Mapping[Owner, tuple[Device, ...]] | None = None,
    devices_unknown: Mapping[Owner, str] | None = None,
) -> NodeState:
    """Return the state after a pass in which all pods run and every cpuset was applied."""
    shown = tuple(SeenPod.of(pod, uid) for uid, pod in by_runtime_uid(pods).items())
    known = {"devices": devices or {}, "devices_unknown": devices_unknown or {}}
    observed = Observed(machine, machine.online, shown, pods_complete=complete, **known)  # type: ignore[arg-type]
    planned = plan(observed, ledger or Ledger(), config)
    live, read = [], {}
    for seen in observed.by_age:
        for name in seen.start_order:
            owner = Owner(seen.uid, name)
            cpus = planned.run_sets.of(owner).cpus
            live.append(SeenContainer(f"{seen.uid}/{name}", owner, State.RUNNING, cpus))
            read[f"{seen.uid}/{name}"] = (proofs or {}).get(owner) or Proof(cpus, when, path)
    result = PassResult(
        replace(observed, containers=tuple(live)),
        planned,
        read if proven else {},
        {container.owner: f"{container.owner.pod_uid}/{container.owner.container}" for container in live},
        conflicts,
    )
    policy = KubeletPolicy.STATIC if config.observe else KubeletPolicy.NONE
    return node_state_of(result, node, "containerd 2.4.2", policy, StartWay(path), observes=config.observe)


def owner(document: Pod, name: str = "main") -> Owner:
    """Return the owner of a pod's container."""
    return Owner(runtime_uid(document), name)
