"""Build the node's state from the result of one pass. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from agent.interfaces import PassedContainer
from agent.node_state import ClaimState, ContainerState, NodeState, PodState, PoolState
from agent.own_pods import memory_kills, unready_guards
from agent.reconcile.memory import memory_state
from pinning.dra.claims import ClaimTimes
from pinning.machine.cpuset import EMPTY
from pinning.machine.near import device_kinds
from pinning.planning.noise import keeps_of
from pinning.planning.observed import Owner, State
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from agent.node_state import Conflict, MemoryKill, Proof, StartWay, VMState
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.foreign_writes import ForeignWriteLog
    from agent.reconcile.observe import Observer
    from pinning.contract import KubeletPolicy
    from pinning.dra.claims import ClaimGrant
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.ledger import Assignment
    from pinning.planning.observed import Observed, SeenPod
    from pinning.planning.plan import Plan
    from pinning.planning.refusal import Refusal
    from pinning.planning.run_sets import RunSets, SandboxSet
    from pinning.planning.start_table import StartTable


NO_TIMES: Final = ClaimTimes()


@dataclass(frozen=True)
class PassResult:
    """What one pass observed and planned, and the cpusets that it read back."""

    observed: Observed
    plan: Plan
    proofs: Mapping[str, Proof]  # cpuset read back from the kernel, by container id
    names: Mapping[Owner, str]  # readable names of the containers
    conflicts: tuple[Conflict, ...] = ()
    failures: tuple[str, ...] = ()
    # NUMA nodes that running containers allocate memory from, if they were read.
    memory: Mapping[Owner, CPUSet] = field(default_factory=dict)
    vms: Mapping[str, VMState] = field(default_factory=dict)  # virtual machines by uid of the pod
    runtime_reason: str = ""  # why the runtime did not list its containers
    kills: tuple[MemoryKill, ...] = ()  # OOM kills of corepin's own containers
    unready_guards: tuple[Owner, ...] = ()
    # Pid of each container's first process, by namespace/pod/container.
    first_pids: Mapping[str, int] = field(default_factory=dict)
    cgroups: Mapping[Owner, str] = field(default_factory=dict)  # cgroup of each of these containers, if known
    table: StartTable | None = None  # by which containers start after the pass; None: no start is rejected

    def holds_back(self, pod: SeenPod) -> bool:
        """Return whether the creation of a container of a pod would be rejected after the pass."""
        owners = (Owner(pod.uid, name) for name in pod.start_order)
        return self.table is not None and any(
            isinstance(self.table.start(owner, claims=False), str) for owner in owners
        )

    @cached_property
    def shared(self) -> CPUSet:
        """CPUs of all containers without CPUs of their own."""
        return self.plan.shared

    @cached_property
    def run_sets(self) -> RunSets:
        """The planned CPUs of containers."""
        return self.plan.run_sets

    @cached_property
    def refused(self) -> Mapping[Owner, Refusal]:
        """The refusals by owner."""
        return {refusal.owner: refusal for refusal in self.plan.refusals}

    @cached_property
    def claims_of(self) -> Mapping[str, list[ClaimGrant]]:
        """The ResourceClaims with CPUs that each pod may use, by its uid."""
        found: dict[str, list[ClaimGrant]] = {}
        for grant in sorted(self.plan.ledger.claims.values(), key=lambda grant: grant.claim.full_name):
            for uid in grant.claim.pods:
                found.setdefault(uid, []).append(grant)
        return found

    @cached_property
    def proven(self) -> Mapping[Owner, Proof]:
        """The proof of each container; of several instances with the same name that of the running one."""
        last = sorted(self.observed.live, key=lambda seen: (seen.state is State.RUNNING, seen.id))
        return {seen.owner: self.proofs[seen.id] for seen in last if seen.id in self.proofs}

    @cached_property
    def _machines(self) -> Mapping[Owner, str]:
        """The virtual machine of each container that is in one."""
        return {
            seen.owner: seen.sandbox for seen in self.observed.live if seen.sandbox in self.plan.sandboxes
        }

    def sandbox(self, owner: Owner) -> SandboxSet | None:
        """Return the CPUs planned for a container's virtual machine; None for a container outside of VMs."""
        machine = self._machines.get(owner)
        return self.plan.sandboxes[machine] if machine else None

    @cached_property
    def _masks(self) -> tuple[tuple[int, Owner], ...]:
        live = (seen for seen in self.observed.live if seen.id in self.proofs)
        return tuple((self.proofs[seen.id].cpus.mask, seen.owner) for seen in live)

    def intruders(self, assignment: Assignment) -> tuple[str, ...]:
        """Return the names of other containers that the kernel lets run on an assignment's CPUs."""
        if not assignment.is_exclusive:
            return ()
        owned = assignment.footprint.mask
        found = {owner for mask, owner in self._masks if mask & owned} - {assignment.owner}
        if assignment.owner in self._machines or assignment.is_pool:
            found -= self._beside(assignment)
        return tuple(
            sorted(self.names.get(other, other.container) for other in found if self._meet(assignment, other))
        )

    @cached_property
    def pool_intruders(self) -> Mapping[str, tuple[str, ...]]:
        """The names of other containers on the CPUs of each pool, by uid of its pod."""
        return {uid: self.intruders(pool) for uid, pool in self.plan.ledger.pools.items()}

    def _beside(self, assignment: Assignment) -> set[Owner]:
        """Return the containers of the same virtual machine, which share each other's CPUs."""
        owner = assignment.owner
        machines = {
            machine
            for other, machine in self._machines.items()
            if other == owner or (assignment.is_pool and other.pod_uid == owner.pod_uid)
        }
        return {other for other, its in self._machines.items() if its in machines}

    def _meet(self, assignment: Assignment, other: Owner) -> bool:
        held = self.plan.ledger.of(other)
        return assignment.meets(held) if held else not self._may_be_on(assignment, other)

    def _may_be_on(self, assignment: Assignment, other: Owner) -> bool:
        """Return whether a container of the pod's pool may run on the CPUs of an assignment of its pod.

        That is so if these are the pool, or if it is an ordinary init container.
        """
        pool = self.plan.ledger.pools.get(other.pod_uid)
        user = pool.claim.pool.user(other.container) if pool and pool.claim.pool else None
        is_mate = other.pod_uid == assignment.owner.pod_uid
        return is_mate and user is not None and (assignment.is_pool or user.role is Role.INIT)


def pass_result(
    observed: Observed,
    plan: Plan,
    observer: Observer,
    foreign_writes: ForeignWriteLog,
    vms: Mapping[str, VMState],
) -> PassResult:
    """Collect the result of a pass from its observation, its plan and the records of containers."""
    records = observer.records
    failures = [record.name for record in records.values() if record.retry.reason]
    names = {record.owner: record.name for record in records.values()}
    known, shown = observed.known_uids, [record for record in records.values() if _shows_pid(record)]
    return PassResult(
        observed=observed,
        plan=plan,
        # a created container runs nothing yet, so its cpuset is no proof, and it is no intruder
        proofs={key: record.proof for key, record in records.items() if record.proof and record.is_running},
        names=names,
        conflicts=foreign_writes.conflicts(names),
        failures=tuple(sorted((*failures, *observer.sandboxes.failures))),
        memory={
            record.owner: record.memory for record in records.values() if record.memory and record.is_running
        },
        vms={**observer.sandboxes.lost(plan.sandboxes), **vms},
        runtime_reason=observer.runtime_reason,
        kills=memory_kills(observer.shown_pods()),
        unready_guards=unready_guards(observer.shown_pods()),
        # A pod that was deleted by force may still run beside the next pod of that name: the next one is used.
        first_pids={it.name: it.seen.pid for it in sorted(shown, key=lambda it: it.owner.pod_uid in known)},
        cgroups={it.owner: it.cgroup for it in shown if it.cgroup},
    )


def node_state_of(
    result: PassResult, node: str, runtime: str, kubelet: KubeletPolicy, starts: StartWay, *, observes: bool
) -> NodeState:
    """Return the state of the node after a pass."""
    observed, plan = result.observed, result.plan
    return NodeState(
        node=node,
        runtime=runtime,
        kubelet=kubelet,
        observes=observes,
        sets=plan.sets,
        topology=observed.topology,
        ledger=plan.ledger,
        keeps=keeps_of(plan.ledger.parts, observed),
        shared=result.shared,
        seen_pods=tuple(sorted(observed.pods, key=lambda pod: pod.age)),
        pods=_pods(result, starts.rejected),
        refusals=plan.refusals,
        conflicts=result.conflicts,
        failures=result.failures,
        pods_complete=observed.pods_complete,
        containers_complete=observed.containers_complete,
        runtime_reason=result.runtime_reason,
        kills=result.kills,
        unready_guards=result.unready_guards,
        first_pids=result.first_pids,
        cgroups=result.cgroups,
        start_path=starts.path,
        start_reason=starts.reason,
        other_plugins=starts.other_plugins,
        listing_fault=starts.listing_fault,
    )


def _shows_pid(record: ContainerRecord) -> bool:
    """Return whether a container's first process runs, on the host."""
    return record.is_running and record.seen.pid > 0 and not record.seen.in_vm


def _pods(result: PassResult, rejected: Collection[str]) -> tuple[PodState, ...]:
    known = [_known_pod(pod, result, rejected) for pod in result.observed.by_age]
    unknown = result.plan.ledger.uids - result.observed.known_uids
    others = [_unknown_pod(uid, result) for uid in unknown]
    return tuple(sorted((*known, *others), key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _known_pod(pod: SeenPod, result: PassResult, rejected: Collection[str]) -> PodState:
    containers = tuple(_container(Owner(pod.uid, name), result) for name in pod.start_order)
    of_pod = result.refused.get(Owner(pod.uid, ""))
    return PodState(
        pod.uid,
        pod.namespace,
        pod.name,
        containers,
        of_pod,
        vm=result.vms.get(pod.uid),
        pool=_pool(pod.uid, result),
        claims=_claims(pod.uid, result),
        was_rejected=pod.uid in rejected,
        is_held_back=pod.uid in rejected and result.holds_back(pod),
    )


def _claims(uid: str, result: PassResult) -> tuple[ClaimState, ...]:
    """Return the ResourceClaims of a pod that hold CPUs, by name."""
    seen, nodes = result.observed.claims, result.observed.topology.numa_nodes
    times = seen.times if seen else {}
    return tuple(
        ClaimState(
            name=grant.claim.name,
            cpus=len(grant.footprint),
            asked=grant.claim.asked,
            numa_nodes=tuple(node for node, cpus in nodes.items() if not cpus.isdisjoint(grant.footprint)),
            times=times.get(grant.claim.uid, NO_TIMES),
        )
        for grant in result.claims_of.get(uid, ())
    )


def _unknown_pod(uid: str, result: PassResult) -> PodState:
    held, ledger = result.plan.ledger.of_pod(uid), result.plan.ledger
    owners = [part.owner for part in ledger.pods.get(uid, ())]
    pool = ledger.pools.get(uid)
    users = pool.claim.pool.users if pool and pool.claim.pool else ()
    owners += [Owner(uid, user.container) for user in users]
    containers = tuple(_container(owner, result) for owner in owners)
    named = held[0].namespace, held[0].pod
    vm = result.vms.get(uid)
    return PodState(uid, *named, containers, is_known=False, vm=vm, pool=_pool(uid, result))


def _pool(uid: str, result: PassResult) -> PoolState | None:
    held = result.plan.ledger.pools.get(uid)
    purpose = held and held.claim.pool
    return PoolState(purpose.budget, held.cpus, held.idle) if held and purpose else None


def _container(owner: Owner, result: PassResult) -> ContainerState:
    proof, refusal = result.proven.get(owner), result.refused.get(owner)
    uncounted = result.plan.uncounted.get(owner, "")
    assignment, sandbox = result.plan.ledger.of(owner), result.sandbox(owner)
    if assignment is None and (part := result.run_sets.part(owner)):
        return replace(
            _pooled(owner, part.cpus, result),
            sandbox=sandbox,
            proof=proof,
            refusal=refusal,
            uncounted=uncounted,
        )
    if assignment is None:
        cpus = sandbox.cpus if sandbox else result.run_sets.unowned(owner.pod_uid)
        return ContainerState(
            owner.container,
            cpus=cpus,
            others=_pools(owner, result) - cpus,
            sandbox=sandbox,
            proof=proof,
            refusal=refusal,
            uncounted=uncounted,
        )
    holding, observed = _holding(assignment, result), result.observed
    devices = result.plan.devices.get(owner, ())
    own = proof.cpus - (holding.others - holding.cpus) if proof else None
    return replace(
        holding,
        sandbox=sandbox,
        proof=proof,
        refusal=refusal,
        uncounted=uncounted,
        memory=memory_state(assignment, result.memory.get(owner), observed.topology),
        intruders=result.intruders(assignment),
        devices=device_kinds(observed.topology, devices, own),
        device_times=observed.device_times.get(owner.pod_uid) if devices else None,
        devices_unknown=observed.devices_unknown.get(owner, "") if owner in result.plan.devices else "",
    )


def _pooled(owner: Owner, cpus: CPUSet, result: PassResult) -> ContainerState:
    """Return the state of a container in the pool of its pod."""
    pool, topology = result.plan.ledger.pools[owner.pod_uid], result.observed.topology
    return ContainerState(
        name=owner.container,
        is_pooled=True,
        smt=pool.smt,
        numa=pool.numa,
        core_type=pool.core_type,
        cpus=cpus,
        others=_pools(owner, result),
        numa_nodes=tuple(topology.nodes_of(cpus)),
        memory=memory_state(pool, result.memory.get(owner), topology),
        intruders=result.pool_intruders[owner.pod_uid],
    )


def _pools(owner: Owner, result: PassResult) -> CPUSet:
    """Return the CPUs of pools or the shared set that a container may use besides its own; none in a virtual machine."""
    return EMPTY if result.sandbox(owner) else result.run_sets.of(owner).others


def _holding(assignment: Assignment, result: PassResult) -> ContainerState:
    nodes, owner = result.observed.topology.numa_nodes, assignment.owner
    return ContainerState(
        name=assignment.owner.container,
        policy=assignment.policy,
        smt=assignment.smt,
        numa=assignment.numa,
        core_type=assignment.core_type,
        cpus=assignment.cpus,
        others=_pools(owner, result),
        idle=assignment.idle,
        numa_nodes=tuple(node for node, cpus in nodes.items() if cpus & assignment.cpus),
        claims=result.plan.ledger.claim_names(assignment.device_claims),
    )


def passed_containers(records: Iterable[ContainerRecord]) -> tuple[PassedContainer, ...]:
    """Return the containers that are alive after a pass, and whether each is on its CPUs."""
    return tuple(
        PassedContainer(
            record.seen.id,
            record.owner,
            record.name,
            record.cgroup,
            record.wanted,
            record.seen.pid,
            is_right=bool(record.wanted) and record.is_right,
        )
        for record in records
        if record.seen.state is not State.EXITED
    )
