"""Targets of virtual machines: the CPUs of each, by the plan, or by the kubelet while observing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.reconcile.machine_record import NO_TARGET, VMTarget
from agent.vm_interfaces import VMPlace
from pinning.contract import LAUNCHER_CONTAINER, VMThreadsPolicy
from pinning.machine.cpuset import union
from pinning.planning.observed import UNTRUSTED_CLASS, Owner, State
from pinning.pods.claims import Origin

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Iterator, Mapping

    from agent.interfaces import HeldCPUs, RuntimeContainer
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.machine_record import MachineRecord
    from pinning.planning.observed import SeenPod
    from pinning.planning.plan import Plan
    from pinning.pods.claims import Claim

UNSAID: Final = (
    "the kubelet does not report which CPUs are exclusive: let corepin reach its podresources socket"
)


def planned_targets(
    containers: Iterable[RuntimeContainer], pods: Iterable[SeenPod], plan: Plan
) -> dict[VMPlace, VMTarget]:
    """Return the planned CPUs of each launcher's machine; launchers without CPUs are left alone."""
    kept = {held.owner.pod_uid for held in plan.ledger if held.claim.origin is Origin.LAUNCHER}
    targets = {}
    for place, owner in _launchers(containers, kept.union(pod.uid for pod in pods if pod.is_vm)):
        held = plan.ledger.of(owner)
        if held and held.is_exclusive:
            targets[place] = VMTarget(owner.pod_uid, held.cpus, smt=held.smt)
    return targets


def sandbox_targets(
    plan: Plan, sandboxes: Mapping[str, MachineRecord], undone: Container[str]
) -> dict[VMPlace, VMTarget]:
    """Return the planned CPUs of each sandbox; one whose move failed stays where it was put last."""
    targets = {}
    for key, threads in plan.sandboxes.items():
        if record := sandboxes.get(key):
            planned = VMTarget(record.pod_uid, threads.own, threads.others)
            target = record.target if key in undone else planned
            if target != NO_TARGET:
                targets[record.place] = target
    return targets


def run_machines(containers: Iterable[RuntimeContainer], pods: Iterable[SeenPod]) -> frozenset[str]:
    """Return the ids of the containers that contain a virtual machine, or are in one."""
    launchers = {pod.uid for pod in pods if pod.is_vm}
    return frozenset(it.id for it in containers if it.sandbox or it.pod_uid in launchers)


def observed_targets(
    containers: Collection[RuntimeContainer],
    pods: Iterable[SeenPod],
    sandboxes: Iterable[MachineRecord],
    held: Mapping[Owner, HeldCPUs],
    policy: VMThreadsPolicy,
) -> dict[VMPlace, VMTarget]:
    """Return the CPUs of each machine on nodes where another program allocates CPUs."""
    launchers = {pod.uid: pod for pod in pods if pod.is_vm}
    targets = {}
    for place, owner in _launchers(containers, launchers):
        found, claim = held.get(owner), _claim_of(launchers[owner.pod_uid], owner)
        if found and (found.is_exclusive or _is_claimed(claim, found)):
            targets[place] = VMTarget(owner.pod_uid, found.cpus, smt=claim.smt if claim else None)
    inside: dict[str, list[HeldCPUs]] = {}
    for it in containers:
        if it.sandbox and _is_running(it) and (found := held.get(_owner(it))):
            inside.setdefault(it.sandbox, []).append(found)
    for sandbox in sandboxes:
        if found_inside := inside.get(sandbox.place.key):
            targets[sandbox.place] = _observed_sandbox(sandbox.pod_uid, found_inside, policy)
    return targets


def _launchers(
    containers: Iterable[RuntimeContainer], launchers: Container[str]
) -> Iterator[tuple[VMPlace, Owner]]:
    """Yield the compute containers of KubeVirt's launcher pods, and the place of their machines."""
    for it in containers:
        if it.name == LAUNCHER_CONTAINER and it.pod_uid in launchers and _is_running(it) and not it.in_vm:
            yield VMPlace(it.id, it.pid, it.cgroup, is_sandbox=False), _owner(it)


def _owner(container: RuntimeContainer) -> Owner:
    return Owner(container.pod_uid, container.name)


def _is_running(container: RuntimeContainer) -> bool:
    return container.state is State.RUNNING


def _claim_of(pod: SeenPod, owner: Owner) -> Claim | None:
    return next((claim for claim in pod.claims if claim.container == owner.container), None)


def _is_claimed(claim: Claim | None, found: HeldCPUs) -> bool:
    """Return whether a cpuset matches a container's request, for CPUs of unknown owner."""
    return found.is_exclusive is None and claim is not None and len(found.cpus) == claim.count


def _observed_sandbox(pod_uid: str, found: list[HeldCPUs], policy: VMThreadsPolicy) -> VMTarget:
    """Return the CPUs of a sandbox's containers together; if some of them own CPUs, only the CPUs of those."""
    own, shared, unsaid = (
        union(held.cpus for held in found if held.is_exclusive is word) for word in (True, False, None)
    )
    if unsaid:
        return VMTarget(pod_uid, own | unsaid, own | unsaid, doubt=UNSAID)
    is_apart = policy is VMThreadsPolicy.SHARED or not own
    return VMTarget(pod_uid, own, shared if is_apart and shared else own)


def host_classes(
    known: frozenset[str], pods: Iterable[SeenPod], records: Iterable[ContainerRecord]
) -> frozenset[str]:
    """Return the runtime classes whose containers run on the host; `known` are those found before.

    A pod names its class, but not whether the handler behind it starts virtual machines; that is known once the runtime
    has listed a container of the class. For a class that was recreated with another handler, its newest containers
    decide. UNTRUSTED_CLASS never counts, because users may add its annotation to a pod that another handler started.
    """
    classes = {it.uid: it.runtime_class for it in pods if it.runtime_class not in ("", UNTRUSTED_CLASS)}
    if not classes:
        return known
    listed = [record.seen for record in records if record.seen.pod_uid in classes]
    in_vm = {classes[seen.pod_uid] for seen in listed if seen.in_vm or seen.sandbox}
    on_host = {classes[seen.pod_uid] for seen in listed if seen.cgroup}
    return (known | on_host) - in_vm
