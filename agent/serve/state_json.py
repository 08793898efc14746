"""The node's state as JSON on the local socket, for `corepin map` and other clients, in the types of `published/`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent import published_parts as parts
from pinning.contract import KUBE_SYSTEM
from pinning.planning.ledger_json import ledger_to_dict
from pinning.planning.observed import Owner
from pinning.planning.requests import system_load
from published.agent_state import (
    AgentSets,
    AgentState,
    Conflict,
    KeptInterrupts,
    MemoryKill,
    NamedRefusal,
    Pod,
    Quiet,
    QuietPart,
    Reclaimed,
    Task,
)
from published.codec import encode
from published.pod_status import Affinity, Applied, Container, Execs, Noise

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.node_state import (
        ContainerExecs,
        ContainerState,
        NodeState,
        PodState,
        Proof,
        QuietResult,
        VMState,
    )
    from agent.node_state import MemoryKill as Kill
    from pinning.planning.refusal import Refusal


def to_json(state: NodeState) -> bytes:
    """Return the state as one line of JSON."""
    return encode(agent_state(state)) + b"\n"


def agent_state(state: NodeState) -> AgentState:
    """Convert the state to its published type."""
    sets = state.sets
    named = sets if sets.system_namespaces else dataclasses.replace(sets, system_namespaces=(KUBE_SYSTEM,))
    return AgentState(
        node=state.node,
        runtime=state.runtime,
        kubelet=state.kubelet,
        group=state.group,
        topology_manager=state.topology_manager,
        observes=state.observes,
        pods_complete=state.pods_complete,
        containers_complete=state.containers_complete,
        runtime_reason=state.runtime_reason,
        memory_kills=tuple(map(_kill, state.kills)),
        start_path=state.start_path,
        start_reason=state.start_reason,
        listing_fault=str(state.listing_fault or ""),
        other_plugins=state.other_plugins,
        topology=state.topology.to_dict(),
        sets=_sets(state),
        strict_reserved=state.sets.is_strict,
        static_pools=state.sets.pools.is_static,
        system_namespaces=state.sets.system_namespaces,
        system_millicores=system_load(state.seen_pods, named).requested,
        ledger=ledger_to_dict(state.ledger),
        pods=tuple(_pod(pod, state) for pod in state.pods),
        refusals=tuple(map(_refusal, state.refusals)),
        conflicts=tuple(Conflict(container=it.container, rewrites=it.rewrites) for it in state.conflicts),
        failures=state.failures,
        first_pids=dict(state.first_pids),
        tasks=tuple(
            Task(pid=task.pid, container=task.container, pool=task.pool, cpus=str(task.cpus))
            for task in state.tasks
        ),
        reclaimed=tuple(Reclaimed(**entry._asdict()) for entry in state.reclaimed),
        reclaims_dropped=state.reclaims_dropped,
        quiet=_quiet(state.quiet, state.names) if state.quiet else None,
        execs_reason=state.execs_reason,
    )


def _kill(kill: Kill) -> MemoryKill:
    return MemoryKill(pod_uid=kill.pod_uid, pod=kill.pod, container=kill.container, time=kill.when)


def _quiet(result: QuietResult, names: Mapping[str, tuple[str, str]]) -> Quiet:
    return Quiet(
        cpus=str(result.cpus),
        reason=result.reason,
        managed=result.managed,
        conflicts=result.conflicts,
        irqbalance=result.irqbalance,
        is_off=result.is_off,
        fully=None if result.fully is None else str(result.fully),
        parts=tuple(QuietPart(name=it.name, reason=it.reason, conflicts=it.conflicts) for it in result.parts),
        kept=tuple(
            KeptInterrupts(
                container="/".join(filter(None, (*names.get(owner.pod_uid, ()), owner.container))),
                cpus=str(it.cpus),
                numbers=tuple(sorted(it.numbers, key=int)),
                names=it.names,
                note=it.note,
            )
            for owner, it in sorted(result.kept.items())
        ),
    )


def _sets(state: NodeState) -> AgentSets:
    return AgentSets(
        **parts.sets(state),
        allocatable=str(state.sets.allocatable),
        idle=str(state.idle),
        exclusive_pool=str(state.sets.pools.exclusive),
        non_isolcpus_pool=str(state.sets.pools.non_isolcpus),
    )


def _pod(pod: PodState, state: NodeState) -> Pod:
    return Pod(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        known=pod.is_known,
        refusal=parts.refusal(pod.refusal) if pod.refusal else None,
        containers={
            it.name: _counted(_container(it, pod.vm), Owner(pod.uid, it.name), state) for it in pod.containers
        },
        vm=parts.machine(pod.vm) if pod.vm else None,
        pool=parts.pool(pod.pool) if pod.pool else None,
        claims=parts.claims(pod.claims),
    )


def _container(state: ContainerState, vm: VMState | None) -> Container:
    container = parts.container(
        state,
        vm,
        cpus=str(state.cpus),
        applied=_applied(state.proof) if state.proof else None,
        refusal=parts.refusal(state.refusal) if state.refusal else None,
    )
    kept = state.kept.names if state.kept else ()
    return replace(container, quiet=True, kept=kept) if state.quiet == "" else replace(container, kept=kept)


def _counted(container: Container, owner: Owner, state: NodeState) -> Container:
    """Return the container with its noise and exec counts."""
    if noise := state.noise.get(owner):
        container = replace(container, noise=replace(container.noise or Noise(), **noise._asdict()))
    if execs := state.execs.get(owner):
        container = replace(container, execs=_execs(execs))
    return container


def _execs(execs: ContainerExecs) -> Execs:
    return Execs(
        count=execs.entered,
        placed=execs.placed,
        cpus=str(execs.cpus),
        seconds=execs.seconds,
        time=execs.when,
    )


def _applied(proof: Proof) -> Applied:
    """Convert the kernel's read-back to its published type."""
    return Applied(
        cpus=str(proof.cpus),
        time=proof.when,
        path=proof.path,
        window_seconds=proof.window_seconds,
        split_seconds=proof.split_seconds,
        outside=proof.outside,
        narrowed=proof.narrowed,
        affinity=Affinity(**proof.tally._asdict()) if proof.tally else None,
    )


def _refusal(refusal: Refusal) -> NamedRefusal:
    return NamedRefusal(
        container=refusal.owner.container,
        name=refusal.name,
        reason=refusal.reason,
        message=refusal.message,
        blocks_start=refusal.blocks_start,
    )
