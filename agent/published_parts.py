"""Conversion of node state into the types of `published/` that annotations and the local socket share. Pure."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import CoreType, CPUPolicy
from pinning.errors import BadCPUList
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.pods.claims import Origin
from pinning.truncate import NAME, truncate
from published.codec import AnotherVersion, decode
from published.node_pools import NearCPUs
from published.pod_status import (
    MOST_CLAIMS,
    MOST_RESOURCES,
    POD,
    Applied,
    Container,
    Device,
    GuestPlace,
    Machine,
    Noise,
    PodClaim,
    PodStatus,
    Pool,
    Refusal,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.node_state import ClaimState, ContainerState, NodeState, PoolState, VMState
    from pinning.machine.near import DeviceKind
    from pinning.planning.observed import SeenPod
    from pinning.planning.refusal import Refusal as Refused

MOST_NEAR_SHOWN: Final = 16  # number of published resources that count CPUs near devices
# Characters of a reason: each container repeats it, and the socket has the node's reason in full.
MOST_REASON: Final = 400


def container(
    state: ContainerState, vm: VMState | None, *, cpus: str, applied: Applied | None, refusal: Refusal | None
) -> Container:
    """Return the published form of a container; `vm` is the virtual machine of its pod."""
    holds = state.has_cpus
    is_limited = not state.others or state.policy is not CPUPolicy.EXCLUSIVE
    return Container(
        policy=POD if state.is_pooled else state.policy or "",
        smt_policy=state.smt or "",
        numa_policy=state.numa or "",
        cpus=cpus,
        idle=str(state.idle) if holds else None,
        numa_nodes=state.numa_nodes if holds else None,
        core_type="" if state.core_type is CoreType.ANY else state.core_type,
        shared_cpus=str(state.others),
        confined_by="affinity" if state.others else "",
        cpu_limit="" if is_limited else "unset",
        memory=(state.memory and state.memory.word) or "",
        memory_note=state.memory.note if state.memory else "",
        pinned=state.is_pinned,
        vcpus=_vcpus(state, vm) if holds else None,
        applied=applied,
        refusal=refusal,
        drift=bool(state.proof and state.proof.outside),
        noise=Noise(kind=state.noise.kind, since=state.noise.since)
        if state.noise and state.noise.kind
        else None,
        not_quiet=truncate(state.quiet or "", MOST_REASON),
        not_kept=truncate(state.kept.note if state.kept else "", MOST_REASON),
        devices=tuple(_device(kind) for kind in state.devices[:MOST_RESOURCES]),
        more_devices=len(state.devices[MOST_RESOURCES:]),
        devices_unknown=state.devices_unknown,
        devices_asked=state.device_times.asked if state.device_times else "",
        devices_named=state.device_times.named if state.device_times else "",
        intruders=state.intruders,
        uncounted=state.uncounted,
        not_proven=state.proof.unread if state.proof else "",
        origin=Origin.DRA if state.claims else "",
        claims=tuple(truncate(name, NAME) for name in state.claims[:MOST_CLAIMS]),
        more_claims=len(state.claims[MOST_CLAIMS:]),
    )


def _device(kind: DeviceKind) -> Device:
    return Device(resource=kind.resource, count=kind.count, nodes=tuple(kind.nodes), near=kind.near)


def _vcpus(state: ContainerState, vm: VMState | None) -> tuple[int, ...] | None:
    """Return the numbers of the vCPUs on a container's CPUs; None unless each vCPU has a CPU of its own."""
    if not (state.sandbox and vm and vm.is_one_to_one):
        return None
    return tuple(rank for rank, cpus in enumerate(vm.vcpus) if cpus <= state.cpus)


def machine(vm: VMState) -> Machine:
    """Return the published form of a virtual machine."""
    return Machine(
        kind=vm.kind,
        vcpus=tuple(map(str, vm.vcpus)),
        one_to_one=vm.is_one_to_one,
        emulator=str(vm.emulator),
        iothreads=tuple(map(str, vm.iothreads)),
        vhost=str(vm.vhost),
        reason=vm.reason,
        note=vm.note,
        refused=vm.refused,
        guest=tuple(GuestPlace(**place._asdict()) for place in vm.guest_ids),
        time=vm.when,
        cpus=str(vm.cpus),
    )


def claims(states: Iterable[ClaimState], before: Iterable[PodClaim] = ()) -> tuple[PodClaim, ...]:
    """Return the published form of a pod's first ResourceClaims; an unknown time of Prepare keeps its old value."""
    old = {it.name: it for it in before}
    return tuple(_claim(state, old) for state in list(states)[:MOST_CLAIMS])


def _claim(state: ClaimState, old: Mapping[str, PodClaim]) -> PodClaim:
    name, times = truncate(state.name, NAME), state.times
    return PodClaim(
        name=name,
        cpus=state.cpus,
        asked=state.asked,
        numa_nodes=state.numa_nodes,
        prepared=times.prepared or ("" if times.since or name not in old else old[name].prepared),
        waits=times.since,
        tries=times.tries,
    )


def pool(state: PoolState) -> Pool:
    """Return the budget of a pod, and the CPUs of its pool."""
    return Pool(budget=state.budget, cpus=str(state.cpus), idle=str(state.idle))


def refusal(refused: Refused) -> Refusal:
    """Return the published form of a refusal."""
    return Refusal(reason=refused.reason, message=refused.message, blocks_start=refused.blocks_start)


def reported_cpus(pods: Iterable[SeenPod]) -> dict[Owner, CPUSet]:
    """Return the CPUs of containers by their pods' status annotations; damaged annotations are skipped.

    The owner of a pod's pool has an empty container name.
    """
    cpus: dict[Owner, CPUSet] = {}
    for pod in pods:
        with suppress(AnotherVersion, BadCPUList):
            status = decode(PodStatus, pod.said or "{}")
            held = {name: it.cpus for name, it in status.containers.items() if it.policy}
            if status.pool and status.pool.cpus:
                held[""] = status.pool.cpus
            cpus |= {Owner(pod.uid, name): CPUSet.parse(text) for name, text in held.items()}
    return cpus


def sets(state: NodeState) -> dict[str, Any]:
    """Return the members of `published.node_pools.Sets` without those about devices, by name."""
    named = {
        "universe": state.sets.universe,
        "reserved": state.sets.reserved,
        "shared": state.shared,
        "set_aside": state.sets.pools.set_aside,
        "isolated": state.sets.isolated,
        "free": state.free,
    }
    texts = {name: str(cpus) for name, cpus in named.items()}
    return {
        **texts,
        "reserved_by": state.sets.reserve_source,
        "align_uncore": state.sets.align_uncore,
        **near_cpus(state, {}),
    }


def near_cpus(state: NodeState, published: Mapping[str, int]) -> dict[str, Any]:
    """Return the members of `Sets` about CPUs near free devices; `published` are the node's published counts.

    Empty while the agent only observes, because claims get no CPUs then, and until all pods and containers are listed,
    because free CPUs are not known before.
    """
    if state.observes or not state.is_synchronised:
        return {}
    free = sorted(state.near_free.items())
    shown = {
        name: NearCPUs(free=count, published=published.get(name)) for name, count in free[:MOST_NEAR_SHOWN]
    }
    return {"near_cpus": shown, "more_near_cpus": max(0, len(free) - MOST_NEAR_SHOWN)}
