"""The number of whole cores and CPUs to publish for each extended resource. Pure.

All resources count the same free cores. The scheduler subtracts the requests of bound pods, and the agent refuses
requests that do not fit. A number below the claims of bound pods would make a restarting kubelet evict running pods, so
it is never published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.report.numa_cpus import free_cpus
from pinning.contract import (
    EXCLUSIVE_CORES,
    EXCLUSIVE_NON_ISOLCPUS_CORES,
    ISOLATED_CORES,
    NEAR_CPUS,
    NUMA_CPUS,
    WHOLE_CORES,
)
from pinning.machine.cpuset import union
from pinning.planning.pod_pools import NO_SHARED_CHARGE, shared_charge
from pinning.planning.requests import fulfilled, requested
from pinning.pods.identity import by_runtime_uid
from pinning.pods.phase import is_final
from pinning.pods.resources import Role, members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.node_state import NodeState
    from pinning.machine.cpuset import CPUSet
    from pinning.pods.resources import Member
    from pinning.pods.types import Pod

RESOURCES = (EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES, ISOLATED_CORES, WHOLE_CORES, NUMA_CPUS)


def node_resources(
    state: NodeState, pods: Iterable[Pod], published: Mapping[str, int] | None = None, *, near: bool = False
) -> dict[str, int] | None:
    """Return the quantity to publish for each resource; None while pods or ledger are incomplete.

    `pods` are those bound to the node, `published` the last written quantities: while the agent only observes, none
    rises above them. With `near` the counts of CPUs near free devices are included.
    """
    if not state.is_synchronised:
        return None
    free = {name: _free(state, name) for name in RESOURCES} | (state.near_free if near else {})
    claimed, held = dict.fromkeys(free, 0), dict.fromkeys(free, 0)
    for uid, pod in by_runtime_uid(pods, state.names).items():
        if not is_final(pod):
            _count(state, pod, uid, claimed, held)
    if state.observes:
        return {name: min(number, (published or {}).get(name, number)) for name, number in claimed.items()}
    return {name: max(number, held[name] + free[name]) for name, number in claimed.items()}


def _count(state: NodeState, pod: Pod, uid: str, claimed: dict[str, int], held: dict[str, int]) -> None:
    """Add a pod's requests to `claimed`, and the part of them that its containers hold to `held`, by resource.

    After a resize a container may hold more or fewer cores than it requests; the scheduler still counts the request.
    """
    containers = members(pod)
    asked = {name for container in containers for name in container.requests}
    for resource in asked & claimed.keys():
        claimed[resource] += requested(containers, resource)
        held[resource] += fulfilled(containers, resource, _held(state, uid, resource, containers))


def _held(state: NodeState, uid: str, resource: str, containers: Iterable[Member]) -> dict[str, int]:
    """Return the number of cores, or of CPUs for resources in CPUs, charged to each container of a pod by name.

    CPUs that containers of the pod share (a pool, slices of a budget) are divided among them in the order of the pod:
    each is charged what it requests beyond CPUs of its own, until no CPUs are left.
    """
    is_near = resource.startswith(NEAR_CPUS)
    is_in_cpus = is_near or resource == NUMA_CPUS

    def size(cpus: CPUSet) -> int:
        return len(cpus) if is_in_cpus else len(state.topology.cores_of(cpus))

    held = {it.owner.container: size(it.footprint) for it in state.ledger.pods.get(uid, ())}
    together = NO_SHARED_CHARGE if is_near else shared_charge(state.ledger, uid, is_whole=is_in_cpus)
    left = size(together.cpus)
    for member in containers:
        asked, alone = requested((member,), resource), held.get(member.name, 0)
        if member.name in together.containers:
            alone = 0
        if member.role is not Role.INIT and asked > alone:
            given = min(asked - alone, left)
            held[member.name], left = alone + given, left - given
    return held


def _free(state: NodeState, resource: str) -> int:
    """Return the free quantity of a resource.

    A core is free if all its online CPUs are. One core is subtracted if the shared set has no other CPUs, because
    the agent never assigns the last CPU of the shared set.
    """
    if resource == NUMA_CPUS:
        return free_cpus(state)
    topology, free = state.sets.topology, _pool(state, resource) & state.free
    online = (topology.online_cpus_of(core) for core in topology.cores)
    whole = [cpus for cpus in online if cpus and cpus <= free]
    return len(whole) - (bool(whole) and state.shared <= union(whole))


def _pool(state: NodeState, resource: str) -> CPUSet:
    pools = state.sets.pools
    return pools.non_isolcpus if resource == EXCLUSIVE_NON_ISOLCPUS_CORES else pools.exclusive
