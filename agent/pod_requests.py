"""What the pods of a node request, as the scheduler and the kubelet count it. Pure.

Source: Kubernetes "Init containers", "Resource sharing within containers", and sidecar containers (KEP-753): main
containers and sidecars add up; an ordinary init container runs beside the sidecars that start before it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import MIRROR_POD
from pinning.observed import CONFIG_HASH, FINAL_PHASES
from pinning.pod import is_launcher, read_pod
from pinning.quantity import millicores, parse_quantity, rounded_up
from pinning.resources import Member, Role, is_quantity, members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pinning.kube import Pod
    from pinning.ledger import Ledger

Amount = tuple[str, str]  # of CPU and memory


class Overcommit(NamedTuple):
    """What the containers of the shared set request, against the CPUs of that set, in thousandths."""

    requested: int
    there: int

    @property
    def is_over(self) -> bool:
        """Say whether more is promised than there is."""
        return self.requested > self.there


class Sidecars(NamedTuple):
    """What injected sidecars cost beside the containers that they serve."""

    containers: int
    millicores: int
    bytes: int


def runtime_uid(pod: Pod) -> str:
    """Return the uid that the runtime knows a pod by: of a static pod the hash of its manifest."""
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    hashed = annotations.get(CONFIG_HASH) if MIRROR_POD in annotations else None
    return hashed or metadata.get("uid") or ""


def is_final(pod: Pod) -> bool:
    """Say whether a pod is over."""
    return ((pod.get("status") or {}).get("phase") or "") in FINAL_PHASES


def requested(pod: Pod, resource: str) -> int:
    """Return how much of an extended resource a pod takes from its node."""
    return rounded_up_fraction(_together(members(pod), lambda one: _amount(one, resource)))


def requesting(pod: Pod, resource: str) -> frozenset[str]:
    """Return the containers of a pod that request an extended resource."""
    return frozenset(one.name for one in members(pod) if _amount(one, resource))


def overcommit(pods: Iterable[Pod], ledger: Ledger, shared_cpus: int) -> Overcommit:
    """Return what those containers of unfinished pods request that own no CPUs, against the shared set."""
    total = sum((_shared_request(pod, ledger) for pod in pods if not is_final(pod)), Fraction(0))
    return Overcommit(rounded_up_fraction(total * 1000), shared_cpus * 1000)


def sidecars(pods: Iterable[Pod], amount: Amount) -> Sidecars:
    """Return the cost of containers that got the amount of injected sidecars, in pods with CPUs of their own.

    Nothing in a pod tells who gave a container its resources: exactly this amount is what gives it away.
    """
    wanted = {"cpu": parse_quantity(amount[0]), "memory": parse_quantity(amount[1])}
    found = [one for pod in pods if not is_final(pod) for one in _beside(pod) if _has(one, wanted)]
    count = len(found)
    return Sidecars(count, count * millicores(amount[0]), count * rounded_up(amount[1]))


def rounded_up_fraction(amount: Fraction) -> int:
    """Return the amount, rounded up."""
    return -(-amount.numerator // amount.denominator)


def _shared_request(pod: Pod, ledger: Ledger) -> Fraction:
    owners = {one.owner.container for one in ledger.pods.get(runtime_uid(pod), ()) if one.is_exclusive}
    listed = members(pod)
    told = ((pod.get("spec") or {}).get("resources") or {}).get("requests") or {}
    whole = told.get("cpu")  # of the pod: what its owners of CPUs leave is shared
    if whole is not None and is_quantity(whole):
        owned = _together([one for one in listed if one.name in owners], _cpu)
        return max(Fraction(0), parse_quantity(whole) - owned)
    return _together([one for one in listed if one.name not in owners], _cpu)


def _together(listed: Iterable[Member], amount: Callable[[Member], Fraction]) -> Fraction:
    """Return the most that containers take at one time."""
    running = most = Fraction(0)
    for one in listed:
        if one.role is Role.INIT:
            most = max(most, running + amount(one))
        else:
            running += amount(one)
    return max(most, running)


def _cpu(one: Member) -> Fraction:
    return _amount(one, "cpu")


def _amount(one: Member, resource: str) -> Fraction:
    return parse_quantity(one.requests.get(resource, 0))


def _beside(pod: Pod) -> list[Member]:
    """Return the containers of a pod with claims that claim nothing themselves."""
    reading = read_pod(pod)
    claiming = {claim.container for claim in reading.claims}
    if not claiming and not is_launcher(pod):
        return []
    return [one for one in reading.members if one.name not in claiming]


def _has(one: Member, wanted: dict[str, Fraction]) -> bool:
    return all(
        name in given and parse_quantity(given[name]) == amount
        for name, amount in wanted.items()
        for given in (one.requests, one.limits)
    )
