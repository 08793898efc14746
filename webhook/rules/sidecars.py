"""Limits for injected sidecars that state none, so that a pod with dedicated CPUs stays in QoS class Guaranteed. Pure.

KubeVirt gives its own hook sidecars 200m and 64M; containers injected by other webhooks get nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pinning.contract import GATE_SIDECAR, LAUNCHER_CONTAINER, LIMIT_RANGER, SIDECAR_LIMITS_POD
from pinning.errors import Cause
from pinning.pods.annotations import annotation_field
from pinning.pods.launcher import is_dedicated_launcher, is_launcher
from pinning.pods.resources import Member, guarantee_gaps, has_any, states_compute, whole_cpus

if TYPE_CHECKING:
    from pinning.pods.claims import PodClaims
    from pinning.pods.types import Pod
    from webhook.config.mutations import Fragment
    from webhook.config.settings import Settings

_RANGED: Final = re.compile(r"container ([^\s;]++)(?=;|$)")
Limits = dict[str, "Fragment"]  # limits to add, by JSON pointer of the container


def plan_limits(pod: Pod, pod_claims: PodClaims, settings: Settings) -> tuple[Limits, list[Cause]]:
    """Return the limits to add to containers with neither CPU nor memory amounts, and warnings for the user."""
    asked = _annotation(pod) == "true"
    if not _applies(pod, pod_claims, settings):
        return {}, _unheard(pod_claims, settings) if asked else []
    owners = {claim.container for claim in pod_claims.claims} | (
        {LAUNCHER_CONTAINER} if is_launcher(pod) else set()
    )
    stating, bare = [], []
    for member in pod_claims.members:
        if member.name in owners or states_compute(member):
            stating.append(member)
        else:
            bare.append(member)
    obstacles = [member for member in stating if guarantee_gaps(member)]
    if obstacles:
        ranged = _ranged(pod, frozenset([member.name for member in obstacles]))
        heard = bare or asked or ranged or is_dedicated_launcher(pod)
        return {}, [_obstacle(member, member.name in ranged) for member in obstacles] if heard else []
    amounts = {"cpu": str(settings.sidecar_resources.cpu), "memory": str(settings.sidecar_resources.memory)}
    return {member.pointer: {"resources": {"requests": amounts, "limits": amounts}} for member in bare}, [
        _injected(member, amounts) for member in bare
    ]


def _annotation(pod: Pod) -> str | None:
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(SIDECAR_LIMITS_POD)


def _applies(pod: Pod, pod_claims: PodClaims, settings: Settings) -> bool:
    spec = pod.get("spec") or {}
    if (
        settings.sidecar_limits == "off"
        or GATE_SIDECAR not in settings.gates
        or has_any(spec.get("resources") or {})
    ):
        return False
    wish = _annotation(pod)
    if wish == "false":
        return False
    if is_launcher(pod):
        return any(member.name == LAUNCHER_CONTAINER and whole_cpus(member) for member in pod_claims.members)
    return bool(pod_claims.claims) and (wish == "true" or settings.sidecar_limits == "claims")


def _unheard(pod_claims: PodClaims, settings: Settings) -> list[Cause]:
    field = annotation_field(SIDECAR_LIMITS_POD)
    if settings.sidecar_limits == "off" or GATE_SIDECAR not in settings.gates:
        return [Cause(field, "has no effect: the operator switched sidecar limits off")]
    if not pod_claims.claims:
        return [Cause(field, "has no effect: no container of the pod claims CPUs")]
    return [Cause(field, "has no effect in a pod with pod-level spec.resources")]


def _obstacle(member: Member, is_ranged: bool) -> Cause:  # noqa: FBT001 a fact, not a switch
    message = f"container {member.called} keeps the pod from QoS Guaranteed: set requests = limits of "
    source = " (a LimitRange filled some in)" if is_ranged else ""
    return Cause(f"{member.path}.resources", message + " and ".join(guarantee_gaps(member)) + source)


def _ranged(pod: Pod, names: frozenset[str]) -> frozenset[str]:
    """Return the containers whose values a LimitRange filled in."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    text = annotations.get(LIMIT_RANGER, "")  # "LimitRanger plugin set: cpu request for container a; ..."
    return names.intersection(found[1] for found in _RANGED.finditer(text))


def _injected(member: Member, amounts: dict[str, str]) -> Cause:
    message = (
        f"container {member.called} got requests = limits cpu {amounts['cpu']}, memory {amounts['memory']}"
    )
    return Cause(f"{member.path}.resources", message)
