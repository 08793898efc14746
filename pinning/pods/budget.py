"""The CPU budget of a pod: whole CPUs of `spec.resources`, of which containers own slices and share the rest. Pure.

The API server fills in amounts after admission, so that the budget is computed from what it will store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pinning.contract import FILLED_IN, LIMIT_RANGER, CPUPolicy, SMTPolicy
from pinning.errors import Cause
from pinning.lazy import lazy
from pinning.pods.allocated import pod_as_allocated
from pinning.pods.qos import pod_amounts
from pinning.pods.quantity import parse_quantity
from pinning.pods.resources import MOST_CPUS, Role, is_quantity, shown
from pinning.truncate import listed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from fractions import Fraction

    from pinning.pods.annotations import PolicyAnnotations
    from pinning.pods.types import Pod

BUDGET_FIELD: Final = "spec.resources.limits[cpu]"
_WHOLE_CORES: Final = frozenset({SMTPolicy.REQUIRE, SMTPolicy.ISOLATE})
_FILLED: Final = "LimitRanger plugin set: "
# Parts of a LimitRange's annotation: requests and limits of the 200 containers of a pod with a budget.
_MOST_PARTS: Final = 400


class PoolUser(NamedTuple):
    """A container without CPUs of its own in a pod with a budget."""

    container: str
    start_index: int
    role: Role
    is_bare: bool = False  # it had no CPU limit when it was put into the pool


class _Purpose(NamedTuple):
    budget: int
    users: tuple[PoolUser, ...] = ()
    may_have_others: bool = False  # ResourceClaims may give CPUs to some of the pod's containers
    irq_devices: tuple[str, ...] = ()  # containers whose devices' interrupts stay on the pool's CPUs


class PodPool(_Purpose):
    """The budget of a pool's pod, and the containers that run in the pool.

    A tuple, because claims are compared in each pass.
    """

    def user(self, container: str) -> PoolUser | None:
        """Return the pool's record of a container; None if the container does not run in the pool."""
        return self._by_name.get(container)

    def without(self, containers: Collection[str]) -> PodPool:
        """Return the pool without some of its containers."""
        return self._replace(
            users=tuple([user for user in self.users if user.container not in containers]),
            irq_devices=tuple([name for name in self.irq_devices if name not in containers]),
        )

    @lazy
    def _by_name(self: Any) -> Mapping[str, PoolUser]:
        return {user.container: user for user in reversed(self.users)}

    @property
    def shared_users(self) -> tuple[str, ...]:
        """Names of the containers to report if the pool is empty: they run as long as the pod, in the shared set."""
        return () if self.may_have_others else self.lasting

    @property
    def lasting(self) -> tuple[str, ...]:
        """Names of its containers that run as long as the pod, in start order."""
        return tuple(user.container for user in self.users if user.role is not Role.INIT)


def asks_for_budget(pod: Pod, policies: PolicyAnnotations) -> bool:
    """Return whether a pod asks for exclusive CPUs as a whole, and the API server stores pod-level CPU for it."""
    if policies.cpu.pod:
        is_asked = policies.cpu.pod.value is CPUPolicy.EXCLUSIVE
    else:
        is_asked = policies.smt.pod is not None and policies.smt.pod.value in _WHOLE_CORES
    return is_asked and (states_cpu(pod) or _has_cpu_filled_in(pod))


def states_cpu(pod: Pod) -> bool:
    """Return whether a pod states pod-level CPU."""
    resources = (pod.get("spec") or {}).get("resources") or {}
    return "cpu" in (resources.get("limits") or {}) or "cpu" in (resources.get("requests") or {})


def _has_cpu_filled_in(pod: Pod) -> bool:
    """Return whether the API server adds pod-level CPU to the other pod-level resources of a pod."""
    amounts = pod_amounts(pod, ("cpu",))
    return bool(amounts and (amounts.limits or amounts.requests))


def budget_of(pod: Pod) -> int | None:
    """Return the CPUs of a pod's budget, as the kubelet has allocated them; None if the pod-level CPU is not a budget.

    It is a budget if the limit is a whole number >= 1 and equal to the request.
    """
    limit = _fixed_cpu(pod)
    if limit is None:
        return None
    limit = (pod_as_allocated(pod) or limit) if pod.get("status") else limit
    return limit.numerator if limit.denominator == 1 and 1 <= limit.numerator <= MOST_CPUS else None


def _fixed_cpu(pod: Pod) -> Fraction | None:
    """Return the pod-level CPU if limit and request are equal; None if not. Equal texts are parsed once."""
    resources = (pod.get("spec") or {}).get("resources") or {}
    limit = (resources.get("limits") or {}).get("cpu")
    if limit is not None and limit == (resources.get("requests") or {}).get("cpu") and is_quantity(limit):
        return parse_quantity(limit)
    amounts = pod_amounts(pod, ("cpu",))
    return amounts.limits["cpu"] if amounts and amounts.is_fixed("cpu") else None


def filled_in(pod: Pod) -> frozenset[str]:
    """Return the containers whose CPU limit a LimitRange filled in, by the annotations of API server and webhook.

    The API server's annotation reads "LimitRanger plugin set: cpu, memory request for container a; cpu limit for
    init container b". If a webhook adds containers, the API server runs the plugin again, which rewrites the
    annotation with only these containers.
    """
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(LIMIT_RANGER)
    if not text:
        return kept_names(pod)
    found = set()
    for part in _parts(text.removeprefix(_FILLED), "; "):
        kinds, is_limit, container = part.partition(" limit for ")
        if is_limit and ", cpu, " in f", {kinds}, ":
            found.add(container.rpartition(" ")[2])
    return kept_names(pod).union(found)


def kept_names(pod: Pod) -> frozenset[str]:
    """Return the containers that the webhook's annotation names."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(FILLED_IN)
    return frozenset(_parts(text, ",")) if text else frozenset()


def _parts(text: str, separator: str) -> list[str]:
    """Return the first parts of a text: before a pod is admitted, its annotations have up to 3 MiB."""
    return text.split(separator, _MOST_PARTS)[:_MOST_PARTS]


def filled_in_annotation(containers: Collection[str]) -> str:
    """Return the annotation that names just these containers."""
    return _FILLED + "; ".join(f"cpu limit for container {name}" for name in sorted(containers))


def no_budget(pod: Pod) -> Iterator[Cause]:
    """Warn that pod-level CPU is not a budget, so that containers without CPUs of their own use the shared set."""
    amounts = pod_amounts(pod)
    limit, request = (_shown(kind, pod) for kind in ("limits", "requests"))
    if amounts and "cpu" in amounts.limits and amounts.limits["cpu"] > MOST_CPUS:
        message = f"{limit} CPUs are more than any machine has: write a whole number from 1 to {MOST_CPUS}"
    else:
        message = (
            f"limit {limit} and request {request} give the pod no CPUs of its own besides those of its containers:"
            " set both to one whole number >= 1 for a pool of the pod"
        )
    yield Cause(BUDGET_FIELD, message, flaw=("no budget",))


def _shown(kind: str, pod: Pod) -> str:
    """Return pod-level CPU as the user wrote it, else as the API server fills it in."""
    resources = (pod.get("spec") or {}).get("resources") or {}
    stated = (resources.get("limits") if kind == "limits" else resources.get("requests")) or {}
    if "cpu" in stated:
        return shown(stated["cpu"])
    amounts = pod_amounts(pod)
    filled = amounts and (amounts.limits if kind == "limits" else amounts.requests).get("cpu")
    return "absent" if filled is None else f"{float(filled):g} (filled in)"


def empty_pool(budget: int, users: Collection[str]) -> str:
    """Return the message about a pod whose slices leave no CPU for its other containers."""
    return (
        f"all {budget} CPUs of the pod are slices of other containers; containers without a slice run in the shared"
        f" set instead of the pool: {listed(users)}"
    )
