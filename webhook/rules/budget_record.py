"""Pod-level CPU amounts and an annotation that protect a pod's CPU budget against changes after mutation. Pure.

An API server whose feature gate PodLevelResources is off (the default before Kubernetes 1.34) shows `spec.resources` to
mutating webhooks and drops it before it validates the pod. Webhooks that are called later may add containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.contract import ISOLATED_CORES, NUMA_CPUS, POD_BUDGET, WHOLE_CORES
from pinning.errors import Cause
from pinning.pods.budget import states_cpu
from pinning.pods.resources import shown
from pinning.truncate import VALUE, truncate
from webhook.rules.patch import add, escaped, remove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.pods.claims import PodClaims
    from pinning.pods.types import Pod
    from webhook.rules.patch import Operation

FIELD: Final = "spec.resources"
NO_BUDGET: Final = "none"  # value of the record for pod-level CPU that is not a budget
_POINTER: Final = f"/metadata/annotations/{escaped(POD_BUDGET)}"
POOL_COUNTS: Final = (WHOLE_CORES, ISOLATED_CORES, NUMA_CPUS)
_REMEDY: Final = "switch that gate on, or remove spec.resources and give the containers CPUs of their own"


def plan_amounts(pod: Pod, pod_claims: PodClaims) -> Iterator[Operation]:
    """Yield the operations that add a missing pod-level CPU request or limit of a budget.

    The API server would fill it in after all webhooks, from the amounts of the containers. A container that a later
    webhook adds without a CPU limit, or with a request, would change it, and the pod would lose its budget.

    Nothing is added to a pod that states neither, because its budget is the sum of its containers' CPUs: the API server
    would refuse the pod if a later webhook added a container with a CPU request.
    """
    if not pod_claims.pod_level or not states_cpu(pod):
        return
    resources = (pod.get("spec") or {}).get("resources") or {}
    requests, limits = resources.get("requests"), resources.get("limits")
    if requests and limits and "cpu" in requests and "cpu" in limits:
        return
    cpus = str(pod_claims.pod_level.cpus)
    for kind, stated in (("requests", requests), ("limits", limits)):
        if not stated:
            yield add(f"/spec/resources/{kind}", {"cpu": cpus})
        elif "cpu" not in stated:
            yield add(f"/spec/resources/{kind}/cpu", cpus)


def plan_record(pod: Pod, pod_claims: PodClaims) -> Iterator[Operation]:
    """Yield the operations that write the record of the pod's budget, an annotation.

    Pod-level CPU that is not a budget is recorded too, because a container that a later webhook adds may make it one. A
    record copied from another pod is replaced or removed.
    """
    recorded = record_of(pod)
    cpus = str(pod_claims.pod_level.cpus) if pod_claims.pod_level else None
    wanted = NO_BUDGET if cpus is None and pod_claims.unbudgeted else cpus
    if wanted is not None and wanted != recorded:
        yield add(_POINTER, wanted)
    elif wanted is None and recorded is not None:
        yield remove(_POINTER)


def record_of(pod: Pod) -> str | None:
    """Return the record in a pod's annotation; None if it has none. It may be a copy from another pod."""
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(POD_BUDGET)


def dropped(pod: Pod) -> Iterator[Cause]:
    """Warn that a pod was sent with a budget and is stored without one."""
    if _is_dropped(pod):
        message = (
            f"the pod was sent with a budget of {truncate(record_of(pod) or '', VALUE)} CPUs, which the API server drops because"
            f" its feature gate PodLevelResources is off: containers without CPUs of their own run in the shared set; {_REMEDY}"
        )
        yield Cause(FIELD, message, flaw=("dropped budget",))


def counted_for_dropped(pod: Pod, pod_claims: PodClaims) -> Iterator[Cause]:
    """Refuse a request for cores of the pod's pool if the API server dropped the budget, so that there is no pool."""
    if not _is_dropped(pod):
        return
    for member in pod_claims.members:
        for resource in POOL_COUNTS if pod_claims.claim_of(member.name) is None else ():
            if resource in member.requests:
                given = shown(member.requests[resource])
                message = (
                    f"{given} would be counted for the pool of the pod, but the pod gets no pool: the API server drops"
                    f" its spec.resources, because the feature gate PodLevelResources is off; {_REMEDY}"
                )
                yield Cause(f"{member.path}.resources.requests[{resource}]", message)


def _is_dropped(pod: Pod) -> bool:
    return record_of(pod) not in {None, NO_BUDGET} and not (pod.get("spec") or {}).get("resources")
