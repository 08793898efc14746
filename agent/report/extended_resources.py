"""How many whole cores the scheduler may count on, for each of the three resources. Pure.

All are counted from the same free cores: the scheduler adds what it bound, the agent refuses what then does not fit.
A number below what bound pods claim would make a restarting kubelet kill running pods, so it is never published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.contract import EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES, ISOLATED_CORES
from pinning.machine.cpuset import union
from pinning.planning.requests import fulfilled, requested
from pinning.pods.identity import by_runtime_uid
from pinning.pods.phase import is_final
from pinning.pods.resources import members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.node_state import NodeState
    from pinning.machine.cpuset import CPUSet
    from pinning.pods.types import Pod

RESOURCES = (EXCLUSIVE_CORES, EXCLUSIVE_NON_ISOLCPUS_CORES, ISOLATED_CORES)


def node_resources(
    state: NodeState, pods: Iterable[Pod], published: Mapping[str, int] | None = None
) -> dict[str, int] | None:
    """Return what to publish; None while pods or ledger are not complete.

    `pods` are those bound to the node, `published` the numbers written last: while the agent only observes,
    none rises above them.
    """
    if not state.is_synchronised:
        return None
    claimed, held = dict.fromkeys(RESOURCES, 0), dict.fromkeys(RESOURCES, 0)
    for uid, pod in by_runtime_uid(pods, state.names).items():
        if not is_final(pod):
            _count(state, pod, uid, claimed, held)
    if state.observes:
        return {name: min(number, (published or {}).get(name, number)) for name, number in claimed.items()}
    return {name: max(number, held[name] + _free_cores(state, name)) for name, number in claimed.items()}


def _count(state: NodeState, pod: Pod, uid: str, claimed: dict[str, int], held: dict[str, int]) -> None:
    """Add what a pod claims of each resource, and how much of that its containers hold.

    A resize lets a container hold more cores than it requests, or fewer: the scheduler goes on counting the request.
    """
    containers = members(pod)
    asked = [name for name in RESOURCES if any(name in container.requests for container in containers)]
    cores = _held_cores(state, uid) if asked else {}
    for resource in asked:
        claimed[resource] += requested(containers, resource)
        held[resource] += fulfilled(containers, resource, cores)


def _held_cores(state: NodeState, uid: str) -> dict[str, int]:
    """Return on how many cores each container of a pod is charged."""
    assignments = state.ledger.pods.get(uid, ())
    return {
        assignment.owner.container: len(state.topology.cores_of(assignment.footprint))
        for assignment in assignments
    }


def _free_cores(state: NodeState, resource: str) -> int:
    """Return how many cores claims of the resource could take whole: all their online CPUs are free.

    One fewer where they are all that is shared: the agent gives nobody the last CPU of the others.
    """
    topology, free = state.sets.topology, _pool(state, resource) & state.free
    online = (topology.online_cpus_of(core) for core in topology.cores)
    whole = [cpus for cpus in online if cpus and cpus <= free]
    return len(whole) - (bool(whole) and state.shared <= union(whole))


def _pool(state: NodeState, resource: str) -> CPUSet:
    pools = state.sets.pools
    return pools.non_isolcpus if resource == EXCLUSIVE_NON_ISOLCPUS_CORES else pools.exclusive
