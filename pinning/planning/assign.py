"""From what is seen to who holds what: follows pods and machine, in one total order, until nothing changes.

Containers that have CPUs come before those that have none, older pods before younger ones, and whatever is given
back is there for others in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pinning.allocation import Placement
from pinning.contract import LAUNCHER_CONTAINER, CPUPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.allocator import Allocator, EffectivePolicies, shortage
from pinning.planning.ledger import Assignment, Ledger
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason, Refusal

if TYPE_CHECKING:
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, SeenPod
    from pinning.pods.claims import Claim


@dataclass(frozen=True, slots=True)
class Ask:
    """One claim of one pod, with the policies that hold for it on this node."""

    pod: SeenPod
    claim: Claim
    owner: Owner
    policies: EffectivePolicies


class Assigner:
    """One pass over a node: the ledger so far, and what had to be refused."""

    def __init__(self, observed: Observed, ledger: Ledger, config: NodeConfig, sets: NodeSets) -> None:
        self.observed = observed
        self.ledger = ledger
        self.config = config
        self.sets = sets
        self.refusals: dict[Owner, Refusal] = {}
        self._allocator = Allocator(sets, config)
        self._pods = {pod.uid: pod for pod in observed.by_age}
        self._asks = [
            Ask(pod, claim, Owner(pod.uid, claim.container), EffectivePolicies.of(claim, config))
            for pod in observed.by_age
            for claim in pod.claims
        ]
        self._claiming = {ask.owner for ask in self._asks}

    def assign_all(self) -> None:
        """Bring the ledger to where nothing changes any more."""
        self.drop_gone()
        self._follow_machine()
        before = None
        while before != self.ledger:
            before = self.ledger
            self.refusals.clear()
            open_asks = [ask for ask in self._asks if not self._is_fulfilled(ask)]
            for step in (self._give_back, self._change_policy, self._fill):
                for ask in open_asks:
                    step(ask)
        self._tell_kept_vms()

    def _is_fulfilled(self, ask: Ask) -> bool:
        one = self.ledger.of(ask.owner)
        return (
            one is not None
            and one.claim == ask.claim
            and ask.policies == _policies_of(one)
            and not shortage(self.sets, one)
        )

    def drop_gone(self) -> None:
        """Free what belonged to pods of which nothing is left, and to containers that claim nothing any more."""
        for one in self.ledger:
            if self.observed.is_gone(one.owner.pod_uid) or self._is_given_up(one.owner):
                self.ledger = self.ledger.release(one.owner)

    def _is_given_up(self, owner: Owner) -> bool:
        return self._claims_nothing(owner) and not self._is_running_vm(owner)

    def _claims_nothing(self, owner: Owner) -> bool:
        return owner.pod_uid in self._pods and owner not in self._claiming

    def _is_running_vm(self, owner: Owner) -> bool:
        """Say whether libvirt has pinned vCPUs of a running machine inside this container's CPUs."""
        pod = self._pods[owner.pod_uid]
        return pod.is_vm and owner.container == LAUNCHER_CONTAINER and owner in self.observed.running

    def _tell_kept_vms(self) -> None:
        for one in self.ledger:
            if self._claims_nothing(one.owner):
                pod = self._pods[one.owner.pod_uid]
                self._refuse_vm(Ask(pod, one.claim, one.owner, _policies_of(one)), "is to give its CPUs back")

    # The machine: CPUs that went away or came back.

    def _follow_machine(self) -> None:
        touched = [one for one in self.ledger if self._is_touched(one)]
        for one in touched:
            self._trim(one)
        self._feed_shared()
        for one in sorted(touched, key=self._age):
            self._replace_lost(one)

    def _is_touched(self, one: Assignment) -> bool:
        """Say whether CPUs of a container went away, or siblings of its cores came back."""
        usable, footprint = self.sets.allocatable, one.footprint
        whole = self.sets.topology.siblings_of(footprint) & usable if one.owns_cores else footprint
        return not (footprint <= usable and whole <= footprint)

    def _as_usable(self, one: Assignment) -> Assignment:
        """Return an assignment less the CPUs that went away; siblings that came back to cores owned whole idle."""
        usable = self.sets.allocatable
        cpus, idle = one.cpus & usable, one.idle & usable
        if one.owns_cores:
            others = self.ledger.held_against(one.owner.pod_uid, one.start_index, one.claim.role)
            idle = (self.sets.topology.siblings_of(cpus | idle) & usable) - cpus - others
        if idle and not cpus:
            cpus = CPUSet([idle.lowest()])
            idle -= cpus
        return replace(one, cpus=cpus, idle=idle)

    def _trim(self, one: Assignment) -> None:
        left = self._as_usable(one)
        self.ledger = self.ledger.change(left) if left.cpus else self.ledger.release(one.owner)

    def _feed_shared(self) -> None:
        """Take CPUs back while the machine has lost every CPU of the shared set: plain ones first, youngest first."""
        owners = sorted((one for one in self.ledger if one.is_exclusive), key=self._last_to_lose)
        while owners and not self.sets.shared(self.ledger):
            self.ledger = self.ledger.release(owners.pop().owner)

    def _last_to_lose(self, one: Assignment) -> tuple[bool, bool, tuple[bool, str, str, int]]:
        known = one.owner.pod_uid in self._pods
        return (not (known and self._is_running_vm(one.owner)), not one.claim.must_fit, self._age(one))

    def _age(self, one: Assignment) -> tuple[bool, str, str, int]:
        pod = self._pods.get(one.owner.pod_uid)
        return (pod is None, pod.created if pod else "", one.owner.pod_uid, one.start_index)

    def _replace_lost(self, before: Assignment) -> None:
        """Get replacements near the CPUs that went away, at once; what cannot be replaced is told by `_fill`."""
        left = self.ledger.of(before.owner)
        if left and shortage(self.sets, left) <= 0:
            return
        free = self._free(before)
        lost = before.cpus - self.sets.universe  # it tells where the nearest are
        had = Placement(lost | (left.cpus if left else EMPTY), left.idle if left else EMPTY)
        try:
            chosen = self._allocator.resized(before, _policies_of(before), free, had)
        except NotEnoughCPUs:
            return
        self._adopt(replace(before, cpus=chosen.cpus, idle=chosen.idle))

    # The pods: what they ask for now.

    def _give_back(self, ask: Ask) -> None:
        """Do what needs no CPU of anyone: exclusive to share, and fewer CPUs."""
        one = self.ledger.of(ask.owner)
        if not one:
            return
        asked = replace(one, claim=ask.claim)
        less = shortage(self.sets, asked) < 0
        if self._is_running_vm(one.owner) and (less or ask.policies != _policies_of(one)):
            self._refuse_vm(ask, "asks for other CPUs")
            return
        if ask.policies.cpu is CPUPolicy.SHARE and one.is_exclusive:
            asked = replace(asked, policy=ask.policies.cpu, smt=SMTPolicy.PREFER, idle=EMPTY)
        if less:
            asked = self._shrunk(ask, asked)
        if asked != one:
            self.ledger = self.ledger.change(asked)

    def _shrunk(self, ask: Ask, one: Assignment) -> Assignment:
        try:
            chosen = self._allocator.resized(one, _policies_of(one), self._free(one))
        except NotEnoughCPUs as problem:  # the machine is not what it was when the CPUs were given
            self._refuse_policy(ask, one, str(problem))
            return one
        return replace(one, cpus=chosen.cpus, idle=chosen.idle)

    def _change_policy(self, ask: Ask) -> None:
        """Make share exclusive on the same CPUs, and place anew under another SMT or NUMA policy."""
        one = self.ledger.of(ask.owner)
        policies = ask.policies
        if not one or one.owner in self.refusals or policies == _policies_of(one):
            return
        if policies.cpu is not one.policy:
            one = replace(one, policy=policies.cpu)
            if not self._adopt(one):
                self._refuse(ask, Reason.SHARED_EMPTY, f"{NO_CPU_SHARED}; it stays {CPUPolicy.SHARE}")
                return
        if policies == _policies_of(one):
            return
        try:
            chosen = self._allocator.moved(one, policies, self._free(one))
        except NotEnoughCPUs as problem:
            self._refuse_policy(ask, one, str(problem))
            return
        if not self._adopt(
            replace(one, smt=policies.smt, numa=policies.numa, cpus=chosen.cpus, idle=chosen.idle)
        ):
            self._refuse_policy(ask, one, NO_CPU_SHARED)

    def _fill(self, ask: Ask) -> None:
        """Give CPUs to a container that has none, or fewer than it asks for."""
        one = self.ledger.of(ask.owner)
        if one is None:
            self._start(ask)
        elif shortage(self.sets, one) > 0:
            self._grow(ask, one)

    def _start(self, ask: Ask) -> None:
        pod, claim, policies = ask.pod, ask.claim, ask.policies
        start_index = pod.start_order.index(claim.container)
        free = self.sets.allocatable - self.ledger.held_against(pod.uid, start_index, claim.role)
        instead = "it runs in the shared set until"
        if claim.must_fit:
            instead = f"nothing holds it back yet: {instead}"  # that takes a gate, e.g. NRI
        try:
            chosen = self._allocator.fresh(claim, policies, free, reusable=free & self.ledger.held)
        except NotEnoughCPUs as problem:
            self._refuse(ask, Reason.NOT_ENOUGH, f"{problem}; {instead} they are there")
            return
        new = Assignment(
            owner=ask.owner,
            namespace=pod.namespace,
            pod=pod.name,
            start_index=start_index,
            claim=claim,
            policy=policies.cpu,
            smt=policies.smt,
            numa=policies.numa,
            cpus=chosen.cpus,
            idle=chosen.idle,
        )
        if not self._adopt(new):
            told = f"{NO_CPU_SHARED}; {instead} another container gives CPUs back"
            self._refuse(ask, Reason.SHARED_EMPTY, told)

    def _grow(self, ask: Ask, one: Assignment) -> None:
        try:
            chosen = self._allocator.resized(one, _policies_of(one), self._free(one))
        except NotEnoughCPUs as problem:
            self._refuse(ask, Reason.KEEPS_FEWER, f"{problem}; it keeps CPUs {one.cpus} until then")
            return
        if not self._adopt(replace(one, cpus=chosen.cpus, idle=chosen.idle)):
            self._refuse(ask, Reason.KEEPS_FEWER, f"{NO_CPU_SHARED}; it keeps CPUs {one.cpus}")

    def _free(self, one: Assignment) -> CPUSet:
        """Return what a container may use: what nobody that can run beside it holds, its own CPUs among it."""
        held = self.ledger.held_against(one.owner.pod_uid, one.start_index, one.claim.role)
        return self.sets.allocatable - held

    def _adopt(self, new: Assignment) -> bool:
        """Enter an assignment, unless it takes the last CPU of the shared set."""
        holds = self.ledger.of(new.owner)
        after = self.ledger.change(new) if holds else self.ledger.assign(new)
        if not self.sets.shared(after):
            return False
        self.ledger = after
        return True

    # Refusals.

    def _refuse(self, ask: Ask, reason: Reason, message: str) -> None:
        """Note why a claim is not fulfilled; of several reasons the first one stands."""
        blocks = ask.claim.must_fit and self.ledger.of(ask.owner) is None
        refusal = Refusal(ask.owner, ask.pod.namespace, ask.pod.name, reason, message, blocks)
        self.refusals.setdefault(ask.owner, refusal)

    def _refuse_policy(self, ask: Ask, one: Assignment, why: str) -> None:
        told = f"smt policy {ask.policies.smt} with numa policy {ask.policies.numa} does not fit: {why}"
        kept = f"it keeps CPUs {one.cpus} under {one.smt} with {one.numa}"
        self._refuse(ask, Reason.KEEPS_OLD_POLICY, f"{told}; {kept}")

    def _refuse_vm(self, ask: Ask, wish: str) -> None:
        told = f"the virtual machine {wish} while it runs, and its vCPUs are pinned to the ones it has"
        self._refuse(ask, Reason.RUNNING_VM, f"{told}: stop or migrate it")


NO_CPU_SHARED = "nothing would be left for the containers that share CPUs"


def _policies_of(one: Assignment) -> EffectivePolicies:
    """Return the policies that an assignment was made under."""
    return EffectivePolicies(one.policy, one.smt, one.numa)
