"""The plan of one node: maps observation and ledger to the new ledger, the actions and the refusals.

Pure and level-triggered: the result depends only on the present state, and planning again changes nothing.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.planning.actions import NO_SANDBOXES, Action, plan_actions
from pinning.planning.assign import Assigner
from pinning.planning.ledger_draft import LedgerDraft
from pinning.planning.node_config import is_placed_beside, near_devices
from pinning.planning.node_sets import node_sets
from pinning.planning.observed import Owner
from pinning.planning.pod_pools import NONE_STARTING, starting_cpus
from pinning.planning.refusal import Reason, Refusal
from pinning.planning.run_sets import NO_USES, RunSets, sandbox_sets
from pinning.pods.claims import Origin

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.near import Device
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, SeenPod
    from pinning.planning.run_sets import SandboxSet


NONE_UNCOUNTED: Final[Mapping[Owner, str]] = MappingProxyType({})
NONE_WAITING: Final[Mapping[str, str]] = MappingProxyType({})
NO_DEVICES: Final[Mapping[Owner, tuple[Device, ...]]] = MappingProxyType({})


class Plan(NamedTuple):
    """The planned state of a node. Save the ledger before the first action."""

    ledger: Ledger
    actions: tuple[Action, ...]
    refusals: tuple[Refusal, ...]
    sets: NodeSets
    sandboxes: Mapping[str, SandboxSet] = NO_SANDBOXES  # planned CPUs of each sandbox's threads, by its id
    uses: Mapping[Owner, frozenset[PoolUse]] = NO_USES  # pools that processes of containers may run on now
    undivided: frozenset[Owner] = frozenset()  # containers whose tasks cannot be kept on parts of their CPUs
    # Messages about claims whose cores the scheduler does not count, by owner.
    uncounted: Mapping[Owner, str] = NONE_UNCOUNTED
    system: frozenset[str] = frozenset()  # uids of the pods in system namespaces
    is_strict: bool = False  # `strictThreads`: owners never get pool CPUs, even through `cmk isolate`
    # Known devices of the containers that hold CPUs and are placed near their devices.
    devices: Mapping[Owner, tuple[Device, ...]] = NO_DEVICES
    # CPUs of init containers that have not ended, by uid of the pod.
    starting: Mapping[str, CPUSet] = NONE_STARTING
    # Why a ResourceClaim has no CPUs yet, by uid of the claim.
    waiting_claims: Mapping[str, str] = NONE_WAITING
    held_back: frozenset[Owner] = frozenset()  # containers that must not start before their claims are read

    @property
    def shared(self) -> CPUSet:
        """CPUs of all containers without an assignment."""
        return self.sets.shared(self.ledger)

    @property
    def run_sets(self) -> RunSets:
        """The CPUs on which each container must run."""
        return RunSets(self.ledger, self.sets, self.uses, self.undivided, self.system, self.starting)


def plan(observed: Observed, ledger: Ledger, config: NodeConfig) -> Plan:
    """Return the new ledger, the actions and the refusals."""
    sets = node_sets(observed.topology, observed.universe, config)
    draft = LedgerDraft(observed, ledger, config, sets)
    assigner = Assigner(draft, config)
    if config.observe:
        assigner.drop_gone()
        return Plan(draft.ledger, (), tuple(_observing(observed)), sets)
    assigner.assign_all()
    refusals = tuple(
        refusal
        for pod in observed.by_age
        for refusal in (*_unreadable(pod), *_of_pod(pod, assigner.refusals))
    )
    namespaces = observed.namespaces if sets.system_namespaces else {}
    system = frozenset(uid for uid, namespace in namespaces.items() if sets.is_system(namespace))
    uses = _uses(observed, draft.ledger, config)
    starting = starting_cpus(observed, draft.ledger)
    run_sets = RunSets(draft.ledger, sets, uses, observed.undivided, system, starting)
    sandboxes = sandbox_sets(observed, run_sets, config)
    actions = plan_actions(observed, ledger, run_sets, sandboxes)
    return Plan(
        draft.ledger,
        actions,
        refusals,
        sets,
        sandboxes,
        run_sets.uses,
        run_sets.undivided,
        assigner.uncounted,
        system,
        config.strict_threads,
        _devices(observed, draft.ledger, config),
        starting,
        assigner.claims.refusals,
        assigner.claims.held_back,
    )


def _devices(observed: Observed, ledger: Ledger, config: NodeConfig) -> Mapping[Owner, tuple[Device, ...]]:
    return {
        held.owner: near_devices(observed.devices.get(held.owner, ()), held.claim, config)
        for held in ledger
        if is_placed_beside(held.claim, config)
    }


def _uses(observed: Observed, ledger: Ledger, config: NodeConfig) -> Mapping[Owner, frozenset[PoolUse]]:
    """Return the pools that containers use through `cmk isolate`; with strict threads owners of CPUs are left out."""
    if not config.strict_threads:
        return observed.uses
    owners = {held.owner for held in ledger if held.is_exclusive}
    return {owner: uses for owner, uses in observed.uses.items() if owner not in owners}


def _unreadable(pod: SeenPod) -> Iterator[Refusal]:
    for cause in pod.causes:
        message = f"{cause.field}: {cause.message}"
        yield Refusal(Owner(pod.uid, ""), pod.namespace, pod.name, Reason.INVALID, message)


def _of_pod(pod: SeenPod, refusals: dict[Owner, Refusal]) -> Iterator[Refusal]:
    for container in ((*pod.start_order, "") if pod.budget else pod.start_order) if refusals else ():
        refusal = refusals.get(Owner(pod.uid, container))
        if refusal:
            yield refusal


def _observing(observed: Observed) -> Iterator[Refusal]:
    """Refuse every claim, because corepin only observes; no container is held back.

    A launcher's claim is not refused, because the kubelet serves it in observe mode.
    """
    message = (
        "corepin only observes this node and assigns no CPUs:"
        " set the kubelet's cpuManagerPolicy to none, and observe to false in the node's configuration"
    )
    for pod in observed.by_age:
        pool = [pod.budget.rest] if pod.budget and pod.budget.rest.count else []
        for claim in (*pod.claims, *pool):
            if claim.origin is not Origin.LAUNCHER:
                owner = Owner(pod.uid, claim.container)
                yield Refusal(owner, pod.namespace, pod.name, Reason.OBSERVING, message)
