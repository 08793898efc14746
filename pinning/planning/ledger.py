"""Who holds which CPUs of one node: immutable, and illegal changes raise.

EXCLUSIVE is what one container owns, IDLE what is charged to an owner and run by nobody; SHARE is what a container
is pinned to while containers without CPUs of their own may run there too. Everything else is arithmetic on these.
Containers of one pod that never run at the same time (an ordinary init container, and whatever starts after it)
may hold the same CPUs; all others never do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pinning.contract import CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.errors import BadContract, IllegalTransition, PinningError
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.planning.node_sets import NodeSets

VERSION: Final = 1  # of the checkpoint


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one container holds, and under which policies; they differ from the claim's when those do not fit."""

    owner: Owner
    namespace: str
    pod: str
    place: int  # when it starts, among the containers of its pod
    claim: Claim
    policy: CPUPolicy
    smt: SMTPolicy
    numa: NUMAPolicy
    cpus: CPUSet
    idle: CPUSet = EMPTY

    @property
    def name(self) -> str:
        """What people call the container: namespace/pod/container."""
        return f"{self.namespace}/{self.pod}/{self.owner.container}"

    @property
    def footprint(self) -> CPUSet:
        """Every CPU that is charged to the container."""
        return self.cpus | self.idle

    @property
    def is_exclusive(self) -> bool:
        """Say whether nobody else may run on its CPUs."""
        return self.policy is CPUPolicy.EXCLUSIVE

    @property
    def owns_cores(self) -> bool:
        """Say whether it shares no physical core with anyone."""
        return self.is_exclusive and self.smt is not SMTPolicy.PREFER

    @property
    def _ends_first(self) -> bool:
        return self.claim.role is Role.INIT

    def meets(self, other: Assignment) -> bool:
        """Say whether the two containers can run at the same time."""
        if self.owner.pod_uid != other.owner.pod_uid:
            return True
        earlier = min(self, other, key=lambda one: one.place)
        return not earlier._ends_first  # noqa: SLF001  of the same class


@dataclass(frozen=True)
class Ledger:
    """Every assignment of the node. Equal ledgers hold the same, whatever their history."""

    pods: Mapping[str, tuple[Assignment, ...]] = field(default_factory=lambda: MappingProxyType({}))
    exclusive: CPUSet = EMPTY  # owned or idle
    share: CPUSet = EMPTY

    def __iter__(self) -> Iterator[Assignment]:
        """Yield the assignments by pod uid and start order."""
        for uid in sorted(self.pods):
            yield from self.pods[uid]

    def __len__(self) -> int:
        return sum(map(len, self.pods.values()))

    def of(self, owner: Owner) -> Assignment | None:
        """Return what a container holds."""
        for one in self.pods.get(owner.pod_uid, ()):
            if one.owner == owner:
                return one
        return None

    @property
    def held(self) -> CPUSet:
        """Every CPU that is charged to somebody."""
        return self.exclusive | self.share

    def held_against(self, uid: str, place: int, role: Role) -> CPUSet:
        """Return the CPUs that a container may not have: those of every container that can run beside it."""
        mates = self.pods.get(uid)
        if not mates:
            return self.held
        beside = [one for one in mates if one.place != place and _overlap_in_time(one, place, role)]
        return (self.held - _footprints(mates)) | _footprints(beside)

    def assign(self, new: Assignment) -> Ledger:
        """Give CPUs to a container that has none."""
        if self.of(new.owner):
            raise IllegalTransition(f"{new.name} holds CPUs already: change them")
        return self._with(new)

    def change(self, new: Assignment) -> Ledger:
        """Put another assignment in the place of a container's own."""
        if not self.of(new.owner):
            raise IllegalTransition(f"{new.name} holds no CPUs: assign them")
        return self._with(new)

    def release(self, owner: Owner) -> Ledger:
        """Take all CPUs of a container back."""
        if not self.of(owner):
            raise IllegalTransition(f"container {owner.container} of pod {owner.pod_uid} holds no CPUs")
        return self._with_pod(
            owner.pod_uid, tuple(one for one in self.pods[owner.pod_uid] if one.owner != owner)
        )

    def _with(self, new: Assignment) -> Ledger:
        wrong = _flaw(new)
        taken = new.footprint & self.held_against(new.owner.pod_uid, new.place, new.claim.role)
        if wrong or taken:
            raise IllegalTransition(f"{new.name}: {wrong or f'CPUs {taken} are held by others'}")
        mates = (one for one in self.pods.get(new.owner.pod_uid, ()) if one.owner != new.owner)
        return self._with_pod(new.owner.pod_uid, tuple(sorted((*mates, new), key=lambda one: one.place)))

    def _with_pod(self, uid: str, mates: tuple[Assignment, ...]) -> Ledger:
        before = self.pods.get(uid, ())
        pods = {**self.pods, uid: mates}
        if not mates:
            del pods[uid]
        return Ledger(
            MappingProxyType(pods),
            (self.exclusive - _exclusive(before)) | _exclusive(mates),
            (self.share - _share(before)) | _share(mates),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the ledger as JSON-able values for the checkpoint."""
        return {"version": VERSION, "assignments": [_to_dict(one) for one in self]}

    @classmethod
    def from_dict(cls, saved: object) -> Ledger:
        """Read a checkpoint; raise BadContract when it is damaged, of another version, or breaks a rule."""
        if not isinstance(saved, Mapping) or saved.get("version") != VERSION:
            raise BadContract(f"the checkpoint is not of version {VERSION}: rebuild it from the runtime")
        ledger = cls()
        try:
            for one in saved["assignments"]:
                ledger = ledger.assign(_from_dict(one))
        except (KeyError, TypeError, ValueError, AttributeError, PinningError) as problem:
            raise BadContract(
                f"the checkpoint is damaged ({problem}): rebuild it from the runtime"
            ) from problem
        return ledger


def _overlap_in_time(other: Assignment, place: int, role: Role) -> bool:
    first = other.claim.role if other.place < place else role
    return first is not Role.INIT


def _footprints(assignments: Iterable[Assignment]) -> CPUSet:
    return union(one.footprint for one in assignments)


def _exclusive(mates: tuple[Assignment, ...]) -> CPUSet:
    return union(one.footprint for one in mates if one.is_exclusive)


def _share(mates: tuple[Assignment, ...]) -> CPUSet:
    return union(one.cpus for one in mates if not one.is_exclusive)


def _flaw(new: Assignment) -> str:
    """Say what is wrong with an assignment in itself, or nothing."""
    if not new.cpus:
        return "an assignment without CPUs is none: release it"
    if new.cpus & new.idle:
        return f"CPUs {new.cpus & new.idle} cannot be idle and in use"
    if new.idle and not new.is_exclusive:
        return f"only exclusive containers have idle CPUs, not {new.policy}"
    return ""


def problems(ledger: Ledger, sets: NodeSets) -> tuple[str, ...]:
    """Return every rule of design section 6 that a ledger breaks on its node, in words; nothing is good.

    What rests on time (rules 3, 5 and 7) cannot be seen in one ledger.
    """
    return (*_broken_alone(ledger, sets), *_broken_together(ledger), *_broken_shared(ledger, sets))


def _broken_alone(ledger: Ledger, sets: NodeSets) -> Iterator[str]:
    for one in ledger:
        wrong = _flaw(one)
        if wrong:
            yield f"{one.name}: {wrong}"
        outside = one.footprint - sets.allocatable
        if outside:
            yield f"{one.name}: CPUs {outside} are reserved, set aside or not usable"
        if one.owns_cores:
            yield from _broken_cores(one, sets)


def _broken_cores(one: Assignment, sets: NodeSets) -> Iterator[str]:
    cores = sets.topology.siblings_of(one.footprint) & sets.universe
    if not cores <= one.footprint:
        yield f"{one.name}: CPUs {cores - one.footprint} are siblings of its cores and not its own"
    for core in sets.topology.cores_of(one.cpus) if one.smt is SMTPolicy.ISOLATE else ():
        if len(core.cpus & one.cpus) > 1:
            yield f"{one.name}: CPUs {core.cpus & one.cpus} are one core, and isolate means one of them"


def _broken_together(ledger: Ledger) -> Iterator[str]:
    for one, other in combinations(ledger, 2):
        both = one.footprint & other.footprint
        if both and one.meets(other):
            yield f"{one.name} and {other.name} both hold CPUs {both}"


def _broken_shared(ledger: Ledger, sets: NodeSets) -> Iterator[str]:
    shared = sets.shared(ledger)
    if not shared:
        yield "the shared set is empty"
    for one in ledger:
        if one.is_exclusive and shared & one.footprint:
            yield f"{one.name}: CPUs {shared & one.footprint} are in the shared set too"


def _to_dict(one: Assignment) -> dict[str, Any]:
    claim = one.claim
    return {
        "podUID": one.owner.pod_uid,
        "container": one.owner.container,
        "namespace": one.namespace,
        "pod": one.pod,
        "place": one.place,
        "policy": str(one.policy),
        "smtPolicy": str(one.smt),
        "numaPolicy": str(one.numa),
        "cpus": str(one.cpus),
        "idle": str(one.idle),
        "claim": {
            "role": str(claim.role),
            "origin": str(claim.origin),
            "policy": str(claim.policy),
            "count": claim.count,
            "resource": claim.resource,
            "smtPolicy": claim.smt and str(claim.smt),
            "numaPolicy": claim.numa and str(claim.numa),
        },
    }


def _from_dict(saved: Mapping[str, Any]) -> Assignment:
    return Assignment(
        owner=Owner(_text(saved["podUID"]), _text(saved["container"])),
        namespace=_text(saved["namespace"]),
        pod=_text(saved["pod"]),
        place=_whole(saved["place"]),
        claim=_claim_from_dict(_text(saved["container"]), saved["claim"]),
        policy=CPUPolicy(saved["policy"]),
        smt=SMTPolicy(saved["smtPolicy"]),
        numa=NUMAPolicy(saved["numaPolicy"]),
        cpus=CPUSet.parse(saved["cpus"]),
        idle=CPUSet.parse(saved["idle"]),
    )


def _claim_from_dict(container: str, saved: Mapping[str, Any]) -> Claim:
    return Claim(
        container=container,
        role=Role(saved["role"]),
        origin=Origin(saved["origin"]),
        policy=CPUPolicy(saved["policy"]),
        count=_whole(saved["count"]),
        resource=saved["resource"] and _text(saved["resource"]),
        smt=saved["smtPolicy"] and SMTPolicy(saved["smtPolicy"]),
        numa=saved["numaPolicy"] and NUMAPolicy(saved["numaPolicy"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
