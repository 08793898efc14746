"""What a container that is made now gets before its first instruction, or why it may not start yet. Pure.

A table is frozen: whoever answers the runtime reads one while a pass makes the next. It is of a ledger that is saved.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import (
    CMK_CPUS_ASSIGNED,
    CMK_CPUS_ASSIGNED_MASK,
    CMK_CPUS_INFRA,
    CMK_CPUS_SHARED,
)
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.run_sets import asked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.planning.actions import Action
    from pinning.planning.ledger import Ledger
    from pinning.planning.observed import Observed, Owner
    from pinning.planning.plan import Plan
    from pinning.planning.refusal import Refusal

NOT_SEEN: Final = (
    "the pod asks for CPUs of its own, and corepin's agent has not seen it yet; the kubelet tries again"
)


class Start(NamedTuple):
    """Where a container runs from its first instruction on."""

    cpus: CPUSet  # never empty; where its first process is put on what it holds, more than that
    own: CPUSet = EMPTY  # what it holds of them; empty: it runs in the shared set
    mems: CPUSet = EMPTY  # the NUMA nodes that its memory is bound to; empty: it is not


@dataclass(frozen=True)
class StartTable:
    """What every container of the node gets when it is made now; each answer costs the same on any node."""

    ledger: Ledger
    shared: CPUSet  # where everything unpinned runs: CMK's `infra`
    cmk_shared: CPUSet  # CMK's `shared`: what is set aside for it, else the shared set
    known: frozenset[str]  # pods that were seen or hold CPUs, by the uid that the runtime knows
    seen: Mapping[str, CPUSet]  # containers that the pass knew, by id, and where it saw them
    refusals: Mapping[Owner, Refusal]  # of those that may not start unpinned
    left_alone: frozenset[Owner] = frozenset()  # another program keeps changing them
    # What containers may run on besides what they hold, of those whose pods ask for it.
    others: Mapping[Owner, CPUSet] = field(default_factory=lambda: MappingProxyType({}))
    busy: CPUSet = EMPTY  # what others still run on and leave now
    is_strict: bool = False  # no wrapper brings an owner CPUs beside its own

    def start(self, owner: Owner, *, claims: bool, busy: CPUSet = EMPTY) -> Start | str:
        """Return where a container starts, or in words why it may not yet.

        `claims` says that its sandbox asks for CPUs, which holds a pod back and gives it nothing; `busy` adds CPUs.
        """
        busy |= self.busy
        held = self.ledger.of(owner)
        if held and held.footprint.isdisjoint(busy):
            return Start(held.cpus | (self.others.get(owner, EMPTY) - busy), held.cpus, held.mems)
        if held and held.claim.must_fit:
            return _still_busy(held.footprint & busy)
        if refusal := self.refusals.get(owner):
            return refusal.text
        if claims and owner.pod_uid not in self.known:
            return NOT_SEEN
        return Start((self.shared - busy) or self.shared)

    def corrected(self, owner: Owner, container_id: str, asked: str, *, busy: CPUSet = EMPTY) -> CPUSet:
        """Return what a running container is put on instead of the CPUs `asked`; empty: nothing is to be corrected.

        It gets no CPUs that others have still to leave, and keeps those that it is on: whoever came there is to go.
        """
        cpus = self.ledger.cpus_of(owner, self.shared) | self.others.get(owner, EMPTY)
        if owner in self.left_alone or asked == str(cpus):
            return EMPTY
        return cpus - ((busy | self.busy) - self.seen.get(container_id, EMPTY))

    def home(self, owner: Owner) -> CPUSet:
        """Return where the first process of a container is put that may run on more; empty: nowhere."""
        return self.ledger.cpus_of(owner, EMPTY) if self.others.get(owner) else EMPTY

    def trespass(self, owner: Owner, cpus: CPUSet) -> CPUSet:
        """Return on which CPUs of others a container is that was started on `cpus`, by an older table."""
        held = self.ledger.of(owner)
        return (cpus & self.ledger.exclusive) - (held.footprint if held else EMPTY)

    def environment(self, start: Start) -> dict[str, str]:
        """Return what the environment of a container that holds CPUs says, in CMK's words and forms.

        With strict threads it names no CPUs of pools that the container cannot run on: then a list may be empty.
        """
        if not start.own:
            return {}
        shared, infra = self.cmk_shared, self.shared
        if self.is_strict:
            shared, infra = shared & start.cpus, infra & start.cpus
        return {
            CMK_CPUS_ASSIGNED: _listed(start.own),
            CMK_CPUS_ASSIGNED_MASK: start.own.to_hex(),
            CMK_CPUS_SHARED: _listed(shared),
            CMK_CPUS_INFRA: _listed(infra),
        }

    def waiting_for(self, undone: Iterable[Action]) -> StartTable:
        """Return the table that holds while these actions of its plan are not done."""
        return replace(self, busy=union(action.vacates for action in undone))


def start_table(plan: Plan, observed: Observed, left_alone: frozenset[Owner] = frozenset()) -> StartTable:
    """Return what new containers get while nothing of a plan is done."""
    shared = plan.shared
    table = StartTable(
        ledger=plan.ledger,
        shared=shared,
        cmk_shared=plan.sets.pools.set_aside or shared,
        known=observed.known_uids.union(plan.ledger.pods),
        seen=MappingProxyType({container.id: container.cpus for container in observed.containers}),
        refusals=MappingProxyType(
            {refusal.owner: refusal for refusal in plan.refusals if refusal.blocks_start}
        ),
        left_alone=left_alone,
        others=MappingProxyType(_others(plan)),
        is_strict=plan.is_strict,
    )
    return table.waiting_for(plan.actions)


def _others(plan: Plan) -> dict[Owner, CPUSet]:
    run_sets = plan.run_sets
    return {held.owner: run_sets.of(held.owner).others for held in plan.ledger if asked(held)}


def _still_busy(cpus: CPUSet) -> str:
    return f"others still run on its CPUs {cpus}, and leave them now; the kubelet tries again"


def _listed(cpus: CPUSet) -> str:
    return ",".join(map(str, cpus))
