"""Resource requests of a node's pods, added up as the scheduler and the kubelet do. Pure.

Source: Kubernetes "Init containers", "Resource sharing within containers", and sidecar containers (KEP-753): main
containers and sidecars add up; an ordinary init container runs together with the sidecars that start before it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import SIDECAR_CPU, SIDECAR_MEMORY
from pinning.planning.pod_pools import shared_users
from pinning.pods.identity import by_runtime_uid
from pinning.pods.phase import is_final
from pinning.pods.qos import in_effect, pod_amounts
from pinning.pods.quantity import millicores, parse_quantity, rounded_up
from pinning.pods.resources import Member, members

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pinning.planning.ledger import Ledger
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import SeenPod
    from pinning.pods.types import Pod

Amount = tuple[str, str]  # amounts of CPU and memory
SIDECAR: Final[Amount] = (SIDECAR_CPU, SIDECAR_MEMORY)


class Overcommit(NamedTuple):
    """CPU requests of the containers that run on a CPU set, and the size of the set, in millicores."""

    requested: int
    there: int

    @property
    def is_over(self) -> bool:
        """Return whether the CPU requests exceed the size of the set."""
        return self.requested > self.there


class Sidecars(NamedTuple):
    """The number and the requests of injected sidecars in pods with CPUs of their own."""

    containers: int
    millicores: int
    bytes: int


def requested(listed: Iterable[Member], resource: str) -> int:
    """Return how much of an extended resource the containers of a pod take from its node."""
    return rounded_up_fraction(_sum(listed, resource))


def totals(pod: Pod) -> dict[str, str]:
    """Return the sum of a pod's requests for each resource, as exactly as the API can express it."""
    listed = members(pod)
    named = sorted({name for member in listed for name in member.requests})
    return {name: f"{rounded_up_fraction(_sum(listed, name) * 10**9)}n" for name in named}


def fulfilled(listed: Iterable[Member], resource: str, held: Mapping[str, int]) -> int:
    """Return how much of the pod's request its containers hold.

    A surplus of one container does not fill a deficit of another.
    """
    return rounded_up_fraction(
        in_effect(listed, lambda member: min(_amount(member, resource), Fraction(held.get(member.name, 0))))
    )


def overcommit(pods: Iterable[Pod], ledger: Ledger, shared_cpus: int) -> Overcommit:
    """Return the CPU requests of unfinished pods' containers without CPUs of their own, and the shared set's size."""
    holding = {uid: ledger.of_pod(uid)[0] for uid in ledger.uids}
    names = {uid: (part.namespace, part.pod) for uid, part in holding.items()}
    known = by_runtime_uid(pods, names).items()
    total = sum((_shared_request(pod, uid, ledger) for uid, pod in known if not is_final(pod)), Fraction(0))
    return Overcommit(rounded_up_fraction(total * 1000), shared_cpus * 1000)


def in_shared_set(pods: Iterable[Pod], sets: NodeSets) -> list[Pod]:
    """Return the pods whose containers may use the shared set: if the reserve is strict, system pods do not."""
    if not (sets.is_strict and sets.system):
        return list(pods)
    return [pod for pod in pods if not sets.is_system((pod.get("metadata") or {}).get("namespace") or "")]


def system_load(seen: Iterable[SeenPod], sets: NodeSets) -> Overcommit:
    """Return the CPU requests of containers that run on the reserved CPUs, and the size of the reserve."""
    pods = [pod for pod in seen if sets.is_system(pod.namespace) and not pod.is_final]
    return Overcommit(sum(pod.unclaimed_millicores for pod in pods), 1000 * len(sets.system))


def sidecars(pods: Iterable[Pod], seen: Iterable[SeenPod], amount: Amount) -> Sidecars:
    """Return the cost of injected sidecars in pods with CPUs of their own.

    A pod does not show whether the webhook set a container's requests. So a container with exactly the configured
    amounts counts as a sidecar.
    """
    wanted = {"cpu": parse_quantity(amount[0]), "memory": parse_quantity(amount[1])}
    served = {seen_pod.uid: seen_pod for seen_pod in seen if seen_pod.claims and not seen_pod.is_final}
    names = {uid: (seen_pod.namespace, seen_pod.name) for uid, seen_pod in served.items()}
    count = 0
    for uid, pod in by_runtime_uid(pods, names).items():
        if seen_pod := served.get(uid):
            claiming = {claim.container for claim in seen_pod.claims}
            others = [it for it in members(pod) if it.name not in claiming and not it.is_gate]
            count += sum(_has(member, wanted) for member in others)
    return Sidecars(count, count * millicores(amount[0]), count * rounded_up(amount[1]))


def rounded_up_fraction(amount: Fraction) -> int:
    """Return the amount, rounded up."""
    return -(-amount.numerator // amount.denominator)


def _shared_request(pod: Pod, uid: str, ledger: Ledger) -> Fraction:
    owners = {held.owner.container for held in ledger.pods.get(uid, ()) if held.is_exclusive}
    listed = [member for member in members(pod) if not member.is_gate]
    if pool := ledger.pools.get(uid):
        return Fraction(0) if pool.cpus else in_effect(_in_empty_pool(listed, ledger, uid), _cpu)
    pod_level = pod_amounts(pod)
    # Owners get their CPUs first, the other containers share the rest.
    if pod_level and "cpu" in pod_level.requests:
        owned = in_effect([member for member in listed if member.name in owners], _cpu)
        return max(Fraction(0), pod_level.requests["cpu"] - owned)
    return in_effect([member for member in listed if member.name not in owners], _cpu)


def _in_empty_pool(listed: Iterable[Member], ledger: Ledger, uid: str) -> list[Member]:
    users = set(shared_users(ledger, uid))
    return [member for member in listed if member.name in users]


def _sum(listed: Iterable[Member], resource: str) -> Fraction:
    return in_effect(listed, lambda member: _amount(member, resource))


def _cpu(member: Member) -> Fraction:
    return _amount(member, "cpu")


def _amount(member: Member, resource: str) -> Fraction:
    return parse_quantity(member.requests.get(resource, 0))


def _has(member: Member, wanted: dict[str, Fraction]) -> bool:
    return all(
        name in given and parse_quantity(given[name]) == amount
        for name, amount in wanted.items()
        for given in (member.requests, member.limits)
    )
