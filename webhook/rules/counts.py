"""Requests of extended resources by which the scheduler counts the cores and CPUs that a claim takes. Pure.

A resource that some nodes may not publish is not added: whole cores are counted only if all known nodes have the same
number of threads per core. A count that the user wrote is kept if it can be right for a node, otherwise refused.
Updates cannot change these requests, so a resize only gives a warning.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pinning.contract import (
    CMK_NUM_CORES,
    DEVICE_POLICY,
    EXCLUSIVE_NON_ISOLCPUS_CORES,
    ISOLATED_CORES,
    NEAR_CPUS,
    NUMA_CPUS,
    STATUS_CPUS,
    WHOLE_CORES,
    CPUPolicy,
    DevicePolicy,
    NUMAPolicy,
    SMTPolicy,
)
from pinning.errors import Cause
from pinning.lazy import lazy
from pinning.pods.claims import Claim, Origin
from pinning.pods.near_counts import MOST_KINDS, device_resources, near_resource
from pinning.pods.quantity import parse_quantity, whole
from pinning.pods.resources import COMPUTE, Role, shown, states
from webhook.rules.injection import Counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pinning.pods.annotations import PolicyAnnotations
    from pinning.pods.claims import PodClaims
    from pinning.pods.resources import Member
    from webhook.config.mutations import Fragment
    from webhook.config.settings import Settings

MOST_THREADS: Final = 8  # threads per core of any machine that Kubernetes runs on
GROWN: Final = (
    f"the agent assigns the missing ones once they are free, and {STATUS_CPUS} shows the pod's CPUs"
)
SHRUNK: Final = "create the pod again to have fewer counted"
_UNCOUNTED: Final = frozenset(COMPUTE)
REMOVE: Final = "remove it from requests and limits; corepin adds it if the webhook is configured to count it"
REMOVE_OR_REORDER: Final = (
    f"{REMOVE}; if the pod was sent without it, another webhook changed the pod after corepin had counted: rename one of the"
    " two webhook configurations so that corepin's is called last"
)
_REQUIRED: Final = f"{DEVICE_POLICY.partition('.')[0]} {DevicePolicy.REQUIRE}"


class Need(NamedTuple):
    """The amount of an extended resource that a claim takes; a range while the threads per core are unknown."""

    resource: str
    policy: str  # name of the policy, for messages
    least: int
    most: int

    @property
    def amount(self) -> str:
        """The amount as text for messages."""
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"

    @property
    def unit(self) -> str:
        """The unit of the resource in messages."""
        if self.resource.startswith(NEAR_CPUS):
            return "CPUs near devices"
        return "CPUs of one NUMA node" if self.resource == NUMA_CPUS else "cores"


if TYPE_CHECKING:
    _NeedsOf = Callable[[Claim], Iterable[Need]]


def counts_of_pod(pod_claims: PodClaims, settings: Settings) -> Mapping[str, tuple[Counted, ...]]:
    """Return the extended resources to add to the containers of a pod, by container."""
    counts_pool, needs = _counts_pools(pod_claims.policies, settings), _Needs(pod_claims, settings)
    found = _by_container(pod_claims, needs.counted, needs.possible, counts_pool=counts_pool)
    return {
        container: tuple([Counted(need.resource, need.least) for need in needs])
        for container, needs in found.items()
    }


def _exactly(resource: str, amount: int) -> Need:
    return Need(resource, "", amount, amount)


def _counts_pools(policies: PolicyAnnotations, settings: Settings) -> bool:
    """Return whether corepin counts the pool of a pod with these policies by extended resources."""
    smt, numa = policies.smt.pod, policies.numa.pod
    if settings.numa_cpus and numa and numa.value is NUMAPolicy.SINGLE:
        return True
    if smt and smt.value is SMTPolicy.REQUIRE:
        return bool(settings.whole_cores and settings.threads)
    return bool(smt and smt.value is SMTPolicy.ISOLATE and settings.isolated_cores)


def _by_container(
    pod_claims: PodClaims, needs_of: _NeedsOf, judged_by: _NeedsOf | None = None, *, counts_pool: bool = True
) -> dict[str, tuple[Need, ...]]:
    """Return the resources that the claims of a pod take, by the container that must request them.

    `needs_of` returns the resources of one claim. One container requests those of the pod's pool, because
    `spec.resources` cannot have extended resources; if the budget must be on one NUMA node, it requests the NUMA CPUs
    of the whole budget. Pods with neither a placement policy nor claims of CMK are not counted. `judged_by` returns
    the needs by which validation finds that container, if `needs_of` leaves some of them out.
    """
    if not (pod_claims.policies.states_placement or any(it.origin is Origin.CMK for it in pod_claims.claims)):
        return {}
    pool = _pool_of(pod_claims) if counts_pool else None
    if pool is None or not (carrier := pod_claims.carrier):
        return {claim.container: tuple(needs_of(claim)) for claim in pod_claims.claims}
    found, pooled = _shares(pod_claims, pool, needs_of)
    if requests_counts(pod_claims):
        judged = _shares(pod_claims, pool, judged_by) if judged_by else (found, pooled)
        carrier = _carrying(pod_claims, *judged) or carrier
    requested = (*found.get(carrier, ()), *pooled)
    found[carrier] = tuple(_added(requested)) if len(requested) > 1 else requested
    return found


def _shares(
    pod_claims: PodClaims, pool: Claim, needs_of: _NeedsOf
) -> tuple[dict[str, tuple[Need, ...]], list[Need]]:
    """Return the extended resources for a pod with a budget: those of each container, and those of the pod's pool."""
    found = {claim.container: tuple(needs_of(claim)) for claim in pod_claims.claims}
    pooled = [need for need in needs_of(pool) if need.resource != NUMA_CPUS] if pool.count else []
    if _is_of_one_node(pool):
        parts = [*(claim for claim in pod_claims.slices if claim.role is not Role.INIT), pool]
        single = (replace(part, numa=NUMAPolicy.SINGLE) for part in parts if part.count)
        pooled += [need for part in single for need in needs_of(part) if need.resource == NUMA_CPUS]
        for claim in pod_claims.slices:
            others = (need for need in found[claim.container] if need.resource != NUMA_CPUS)
            found[claim.container] = tuple(others)
    return found, pooled


def _pool_of(pod_claims: PodClaims) -> Claim | None:
    """Return a claim that stands for the pod's pool, to count it; None if the pod has no budget."""
    cpus, smt, numa = pod_claims.pool_cpus, pod_claims.policies.smt.pod, pod_claims.policies.numa.pod
    return None if cpus is None else _pool(cpus, smt.value if smt else None, numa.value if numa else None)


@lru_cache(maxsize=256)  # because a Claim is slow to create, and most pods have the same few pools
def _pool(cpus: int, smt: SMTPolicy | None, numa: NUMAPolicy | None) -> Claim:
    return Claim("", Role.MAIN, Origin.POOL, CPUPolicy.EXCLUSIVE, cpus, smt=smt, numa=numa)


def _carrying(pod_claims: PodClaims, own: Mapping[str, Iterable[Need]], pooled: Iterable[Need]) -> str:
    """Return the container that requests the pool's resources already, i.e. more than its own claim needs; else "".

    Without this, corepin would add them again to a container that a later webhook inserts in front, and the scheduler
    would count the pool twice.
    """
    for need in pooled:
        stating = [it for it in pod_claims.members if states(it, need.resource) and it.role is not Role.INIT]
        stating.sort(key=lambda member: member.name in pod_claims.holding)
        for member in stating:
            alone = max(
                (it.most for it in own.get(member.name, ()) if it.resource == need.resource), default=0
            )
            if (whole(member.requests.get(need.resource, 0)) or 0) > alone:
                return member.name
    return ""


def _added(needs: Iterable[Need]) -> Iterator[Need]:
    """Yield the sum of all needs for each resource."""
    by_resource: dict[str, list[Need]] = {}
    for need in needs:
        by_resource.setdefault(need.resource, []).append(need)
    for resource, alike in by_resource.items():
        least, most = sum(need.least for need in alike), sum(need.most for need in alike)
        yield Need(resource, alike[0].policy, least, most)


def plan_core_limits(pod_claims: PodClaims) -> dict[str, Fragment]:
    """Return the missing limits of CMK's resources, by container, equal to the requests.

    CMK accepted requests alone. For extended resources the API server requires equal limits, after mutation.
    """
    return {
        member.pointer: {"resources": {"limits": {name: member.requests[name] for name in bare}}}
        for member in pod_claims.members
        if (bare := [name for name in member.cores if name not in member.limits])
    }


def wrong_counts(pod_claims: PodClaims, settings: Settings, remedy: str = REMOVE) -> Iterator[Cause]:
    """Refuse requests of extended resources that differ from what the claims take; `remedy` ends the message."""
    for member, need, _ in miscounted(pod_claims, settings):
        given = shown(member.requests[need.resource])
        taken = f"{given} differs from the {need.amount} {need.unit} that"
        yield Cause(_field(member, need), f"{taken} {need.policy} takes; {remedy}")


def recounted(before: PodClaims, after: PodClaims, settings: Settings) -> Iterator[Cause]:
    """Warn that a resize does not change the extended resources by which the scheduler counts the container."""
    was = _by_container(before, _Needs(before, settings).possible)
    together = dict(_together(after, settings))
    wrong = ((member, need) for member, need, _ in miscounted(after, settings))
    for member, need in chain(wrong, _missing(after, settings)):
        given = member.requests.get(need.resource, 0)
        message = f"the scheduler still counts {shown(given)} {need.unit} for container {member.called}"
        remedy = GROWN if need.least > parse_quantity(given) else SHRUNK
        of_pod = remedy if member.role is Role.INIT else together.get(need.resource, remedy)
        if need in was.get(member.name, ()) or of_pod != remedy:
            continue
        yield Cause(_field(member, need), f"{message}, and {need.policy} now takes {need.amount}; {remedy}")


def _together(pod_claims: PodClaims, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each resource that a pod with a budget needs, with a remedy ("" if its containers request the right sum).

    Only the sum is checked: the scheduler adds the requests up, and a resize inside the budget moves CPUs between a
    slice and the pool.
    """
    if not pod_claims.budget:
        return
    lasting = [member for member in pod_claims.members if member.role is not Role.INIT]
    needs = _by_container(pod_claims, _Needs(pod_claims, settings).possible)
    for need in _added(need for member in lasting for need in needs.get(member.name, ())):
        given = sum(whole(member.requests.get(need.resource, 0)) or 0 for member in lasting)
        yield need.resource, GROWN if given < need.least else SHRUNK if given > need.most else ""


def _field(member: Member, need: Need) -> str:
    """Return the field in which a count is written: a template may have it in its limits alone."""
    resources = member.container.get("resources") or {}
    is_limit_alone = need.resource in member.limits and need.resource not in (resources.get("requests") or ())
    return f"{member.path}.resources.{'limits' if is_limit_alone else 'requests'}[{need.resource}]"


def miscounted(pod_claims: PodClaims, settings: Settings) -> Iterator[tuple[Member, Need, int]]:
    """Yield the containers that request a wrong amount of a resource, with the need and the requested amount."""
    if not requests_counts(pod_claims):
        return
    for container, needs in _by_container(pod_claims, _Needs(pod_claims, settings).possible).items():
        member = pod_claims.member_called(container)
        for need in needs:
            given = member.requests.get(need.resource)
            if given is not None and not need.least <= (amount := whole(given) or 0) <= need.most:
                yield member, need, amount


def requests_counts(pod_claims: PodClaims) -> bool:
    """Return whether any container requests extended resources by which corepin counts; most pods do not."""
    return not _UNCOUNTED.issuperset([name for member in pod_claims.members for name in member.requests])


def needing(pod_claims: PodClaims, settings: Settings) -> frozenset[tuple[str, str]]:
    """Return pairs of a container and a resource that can count its claim."""
    needs = _by_container(pod_claims, _Needs(pod_claims, settings).possible)
    return frozenset((container, need.resource) for container, listed in needs.items() for need in listed)


def _missing(pod_claims: PodClaims, settings: Settings) -> Iterator[tuple[Member, Need]]:
    """Yield the containers that lack a request by which the scheduler would count their claims.

    Only resources are checked that another container of the pod requests, or that corepin would add to a new pod.
    """
    found = _by_container(pod_claims, _Needs(pod_claims, settings).possible)
    if not found:
        return
    counted = counts_of_pod(pod_claims, settings)
    requested = {resource for member in pod_claims.members for resource in member.requests}
    for container, needs in found.items():
        requests, here = pod_claims.member_called(container).requests, counted.get(container, ())
        for need in needs:
            is_counted = need.resource in requested or any(need.resource == it.name for it in here)
            if is_counted and need.resource not in requests:
                yield pod_claims.member_called(container), need


class _Needs:
    """The resources that the claims of one pod take.

    Init containers run near the devices of the whole pod, which are read once for all init containers.
    """

    def __init__(self, pod_claims: PodClaims, settings: Settings) -> None:
        self._pod_claims, self._settings = pod_claims, settings

    def counted(self, claim: Claim) -> list[Need]:
        """Return the extended resources that corepin adds for a claim, with their amounts."""
        found, settings = [], self._settings
        if claim.origin is Origin.CMK:
            found.append(_exactly(CMK_NUM_CORES, claim.count))
        elif claim.smt is SMTPolicy.ISOLATE and settings.isolated_cores:
            found.append(_exactly(ISOLATED_CORES, claim.count))
        elif claim.smt is SMTPolicy.REQUIRE and settings.whole_cores and (threads := settings.threads):
            found.append(_exactly(WHOLE_CORES, -(-claim.count // threads)))
        if settings.numa_cpus and _is_of_one_node(claim):
            found.append(_exactly(NUMA_CPUS, _cpus(claim, settings.threads or 1)))
        if settings.near_cpus:
            cpus = _cpus(claim, settings.threads or 1)
            found += [_exactly(resource, cpus) for resource in self._near(claim)]
        return found

    def possible(self, claim: Claim) -> Iterator[Need]:
        """Yield the resources that can count a claim, whether corepin adds them or not."""
        count, settings = claim.count, self._settings
        if claim.origin is not Origin.CMK and claim.smt is SMTPolicy.ISOLATE:
            yield Need(ISOLATED_CORES, claim.smt, count, count)
        if claim.origin is not Origin.CMK and claim.smt is SMTPolicy.REQUIRE:
            cores = -(-count // settings.threads) if settings.threads else None
            yield Need(WHOLE_CORES, claim.smt, cores or 1, cores or count)
        if _is_of_one_node(claim):
            yield Need(NUMA_CPUS, NUMAPolicy.SINGLE, count, _cpus(claim, MOST_THREADS))
        for resource in self._near(claim):
            yield Need(resource, _REQUIRED, count, _cpus(claim, MOST_THREADS))

    def _near(self, claim: Claim) -> tuple[str, ...]:
        """Return the resources that count a claim's CPUs near devices; empty if the claim does not require that.

        Empty also for a pod's pool, which is not placed near devices, and for claims on CMK's pool
        exclusive-non-isolcpus, whose CPUs agents do not publish.
        """
        is_near = claim.devices is DevicePolicy.REQUIRE and claim.resource != EXCLUSIVE_NON_ISOLCPUS_CORES
        if not is_near or claim.origin is Origin.POOL:
            return ()
        if claim.role is Role.INIT:
            return self._beside_all
        return self._beside([self._pod_claims.member_of(claim)])

    @lazy
    def _beside_all(self: Any) -> tuple[str, ...]:
        found: tuple[str, ...] = self._beside(self._pod_claims.members)
        return found

    def _beside(self, having: Sequence[Member]) -> tuple[str, ...]:
        """Return the resources that count CPUs near the devices of these containers, at most MOST_KINDS, by name."""
        counted: dict[str, None] = {}
        for resource in device_resources(having):
            if len(counted) == MOST_KINDS:
                break
            if not _is_ignored(resource, self._settings) and (name := near_resource(resource)):
                counted[name] = None
        return tuple(counted)


def _is_ignored(resource: str, settings: Settings) -> bool:
    return any(fnmatchcase(resource, pattern) for pattern in settings.near_ignore)


def _is_of_one_node(claim: Claim) -> bool:
    """Return whether a claim is counted by the CPUs of a NUMA node, which agents publish for the common pool only."""
    return claim.numa is NUMAPolicy.SINGLE and claim.resource != EXCLUSIVE_NON_ISOLCPUS_CORES


def _cpus(claim: Claim, threads: int) -> int:
    """Return the CPUs that a claim takes from its node, including idle siblings."""
    if claim.origin is Origin.CMK or claim.smt is SMTPolicy.ISOLATE:
        return claim.count * threads
    if claim.smt is SMTPolicy.REQUIRE:
        return -(-claim.count // threads) * threads
    return claim.count
