"""CPUs of each virtual machine: by the plan, or by the kubelet's allocation while observing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from agent.vm_interfaces import VMPlace
from pinning.contract import LAUNCHER_CONTAINER, VMThreadsPolicy
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner, State
from pinning.pods.claims import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    from agent.interfaces import HeldCPUs, RuntimeContainer, RuntimeSandbox
    from pinning.contract import SMTPolicy
    from pinning.planning.observed import SeenPod
    from pinning.planning.plan import Plan
    from pinning.pods.claims import Claim

UNSAID: Final = "the kubelet does not say which CPUs are exclusive: let corepin reach its podresources socket"


class VMTarget(NamedTuple):
    """What one machine is to run on."""

    pod_uid: str
    cpus: CPUSet  # that its container, or those of its sandbox together, hold; empty: none
    others: CPUSet = EMPTY  # of a sandbox: for all threads that are no vCPUs, and without CPUs for these too
    smt: SMTPolicy | None = None  # None: KubeVirt's own choice
    doubt: str = ""  # why it is not known whether the CPUs are its own


NO_TARGET: Final = VMTarget("", EMPTY)


def place_of(sandbox: RuntimeSandbox) -> VMPlace:
    """Return where the machine of a sandbox is to be looked for."""
    return VMPlace(sandbox.id, sandbox.pid, sandbox.cgroup, is_sandbox=True)


def planned_targets(
    containers: Iterable[RuntimeContainer], pods: Iterable[SeenPod], plan: Plan
) -> dict[VMPlace, VMTarget]:
    """Return where each launcher's machine is to run by the plan; launchers that hold nothing are left alone."""
    kept = {held.owner.pod_uid for held in plan.ledger if held.claim.origin is Origin.LAUNCHER}
    targets = {}
    for place, owner in _launchers(containers, kept.union(pod.uid for pod in pods if pod.is_vm)):
        held = plan.ledger.of(owner)
        if held and held.is_exclusive:
            targets[place] = VMTarget(owner.pod_uid, held.cpus, smt=held.smt)
    return targets


def sandbox_targets(
    plan: Plan,
    sandboxes: Mapping[str, RuntimeSandbox],
    last: Callable[[str], VMTarget | None],
    undone: Container[str],
) -> dict[VMPlace, VMTarget]:
    """Return where each sandbox is to run by the plan; where its move is not done, it stays where it was put last."""
    targets = {}
    for key, threads in plan.sandboxes.items():
        sandbox = sandboxes.get(key)
        planned = VMTarget(sandbox.pod_uid, threads.own, threads.others) if sandbox else None
        target = last(key) if key in undone else planned
        if sandbox and target:
            targets[place_of(sandbox)] = target
    return targets


def run_machines(containers: Iterable[RuntimeContainer], pods: Iterable[SeenPod]) -> frozenset[str]:
    """Return the ids of the containers that run in a virtual machine, or one in them."""
    launchers = {pod.uid for pod in pods if pod.is_vm}
    return frozenset(it.id for it in containers if it.sandbox or it.pod_uid in launchers)


def observed_targets(
    containers: Collection[RuntimeContainer],
    pods: Iterable[SeenPod],
    sandboxes: Iterable[RuntimeSandbox],
    held: Mapping[Owner, HeldCPUs],
    policy: VMThreadsPolicy,
) -> dict[VMPlace, VMTarget]:
    """Return where each machine is to run where another program allocates CPUs."""
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
        if sandbox.id in inside:
            targets[place_of(sandbox)] = _observed_sandbox(sandbox.pod_uid, inside[sandbox.id], policy)
    return targets


def _launchers(
    containers: Iterable[RuntimeContainer], launchers: Container[str]
) -> Iterator[tuple[VMPlace, Owner]]:
    """Yield the containers of KubeVirt's launcher pods in which machines run, and where these are."""
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
    """Return whether a cpuset matches a container's request, where its owner is not known."""
    return found.is_exclusive is None and claim is not None and len(found.cpus) == claim.count


def _observed_sandbox(pod_uid: str, found: list[HeldCPUs], policy: VMThreadsPolicy) -> VMTarget:
    """Return the CPUs of a sandbox's containers together; those that own some count alone."""
    own, shared, unsaid = (
        union(held.cpus for held in found if held.is_exclusive is word) for word in (True, False, None)
    )
    if unsaid:
        return VMTarget(pod_uid, own | unsaid, own | unsaid, doubt=UNSAID)
    is_apart = policy is VMThreadsPolicy.SHARED or not own
    return VMTarget(pod_uid, own, shared if is_apart and shared else own)
