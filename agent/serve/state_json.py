"""The state of the node as JSON, for `corepin map` and for anyone who asks the local socket.

CPU sets are lists in the kernel's format. `topology` and `ledger` are read back by `Topology.from_dict` and
`ledger_from_dict`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pinning.planning.ledger_json import ledger_to_dict

if TYPE_CHECKING:
    from agent.node_state import ContainerState, MemoryState, NodeState, PodState, Proof, VMState
    from pinning.cmk.pools import Task
    from pinning.planning.refusal import Refusal

VERSION = 1


def to_json(state: NodeState) -> bytes:
    """Return the state as one line of JSON."""
    return json.dumps(to_dict(state), separators=(",", ":")).encode() + b"\n"


def to_dict(state: NodeState) -> dict[str, Any]:
    """Return the state as JSON-able values."""
    return {
        "version": VERSION,
        "node": state.node,
        "runtime": state.runtime,
        "kubelet": str(state.kubelet),
        "group": state.group,
        "observes": state.observes,
        "podsComplete": state.pods_complete,
        "containersComplete": state.containers_complete,
        "runtimeReason": state.runtime_reason,
        "memoryKills": [kill._asdict() for kill in state.kills],
        "startPath": str(state.start_path),
        "startReason": state.start_reason,
        "listingFault": str(state.listing_fault or ""),
        "otherPlugins": list(state.other_plugins),
        "topology": state.topology.to_dict(),
        "sets": _sets(state),
        "alignUncore": state.sets.align_uncore,
        "strictReserved": state.sets.is_strict,
        "staticPools": state.sets.pools.is_static,
        "ledger": ledger_to_dict(state.ledger),
        "pods": [_pod(pod) for pod in state.pods],
        "refusals": [_refusal(refusal) for refusal in state.refusals],
        "fights": [
            {"container": conflict.container, "rewrites": conflict.rewrites} for conflict in state.conflicts
        ],
        "failures": list(state.failures),
        "firstPids": dict(state.first_pids),
        "tasks": [_task(task) for task in state.tasks],
        "reclaimed": [entry._asdict() for entry in state.reclaimed],
        "reclaimsDropped": state.reclaims_dropped,
    }


def _sets(state: NodeState) -> dict[str, str]:
    sets = state.sets
    named = {
        "universe": sets.universe,
        "reserved": sets.reserved,
        "allocatable": sets.allocatable,
        "shared": state.shared,
        "free": state.free,
        "idle": state.idle,
        "isolated": sets.isolated,
        "exclusivePool": sets.pools.exclusive,
        "nonIsolcpusPool": sets.pools.non_isolcpus,
        "setAside": sets.pools.set_aside,
    }
    return {**{name: str(cpus) for name, cpus in named.items()}, "reservedBy": str(sets.reserve_source)}


def _pod(pod: PodState) -> dict[str, Any]:
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "name": pod.name,
        "known": pod.is_known,
        "refusal": pod.refusal and _refusal(pod.refusal),
        "containers": [_container(container) for container in pod.containers],
        "vm": pod.vm and _vm(pod.vm),
    }


def _container(container: ContainerState) -> dict[str, Any]:
    return {
        "name": container.name,
        "policy": container.policy and str(container.policy),
        "smtPolicy": container.smt and str(container.smt),
        "numaPolicy": container.numa and str(container.numa),
        "coreType": str(container.core_type),
        "cpus": str(container.cpus),
        "others": str(container.others),
        "idle": str(container.idle),
        "numaNodes": list(container.numa_nodes),
        "pinned": container.is_pinned,
        "proof": container.proof and _proof(container.proof),
        "refusal": container.refusal and _refusal(container.refusal),
        "uncounted": container.uncounted,
        "intruders": list(container.intruders),
        "memory": container.memory and _memory(container.memory),
    }


def _vm(vm: VMState) -> dict[str, Any]:
    return {
        "kind": vm.kind,
        "cpus": str(vm.cpus),
        "vcpus": [str(cpus) for cpus in vm.vcpus],
        "emulator": str(vm.emulator),
        "iothreads": [str(cpus) for cpus in vm.iothreads],
        "vhost": str(vm.vhost),
        "oneToOne": vm.is_one_to_one,
        "reason": vm.reason,
        "note": vm.note,
        "refused": list(vm.refused),
        "guest": [place._asdict() for place in vm.guest_ids],
        "when": vm.when,
    }


def _memory(memory: MemoryState) -> dict[str, str | None]:
    return {"is": memory.word and str(memory.word), "note": memory.note}


def _proof(proof: Proof) -> dict[str, Any]:
    return {
        "cpus": str(proof.cpus),
        "when": proof.when,
        "path": str(proof.path),
        "outside": proof.outside,
        "narrowed": proof.narrowed,
        "windowSeconds": proof.window_seconds,
        "affinity": proof.tally and proof.tally._asdict(),
        "splitSeconds": proof.split_seconds,
    }


def _task(task: Task) -> dict[str, Any]:
    return {"pid": task.pid, "container": task.container, "pool": task.pool, "cpus": str(task.cpus)}


def _refusal(refusal: Refusal) -> dict[str, Any]:
    return {
        "container": refusal.owner.container,
        "name": refusal.name,
        "reason": str(refusal.reason),
        "message": refusal.message,
        "blocksStart": refusal.blocks_start,
    }
