"""Mutation plan for a new pod: CMK contract, scheduler counts, sidecar limits, NRI annotations, guest file, gate. Pure.

A plan is a list of JSON Patch operations with warnings. It is idempotent: the plan for a patched pod has no operation.
It only adds, with two exceptions: it removes the API token of an account that the webhook sets, and it replaces or
removes corepin's own budget records, and counts that another webhook has made wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from pinning.contract import CMK_MUTATE, CMK_MUTATE_TRUE, FILLED_IN
from pinning.errors import Cause
from pinning.pods.budget import filled_in, kept_names
from pinning.pods.claims import PodClaims, read_pod
from pinning.pods.quantity import whole
from pinning.truncate import few
from webhook.rules.account import plan_account, plan_token, warn_token
from webhook.rules.budget_record import plan_amounts
from webhook.rules.counts import counts_of_pod, plan_core_limits
from webhook.rules.gate import plan_gate
from webhook.rules.guest_file import plan_guest_file
from webhook.rules.injection import NOTHING, joined, merged
from webhook.rules.nri_annotations import plan_nri_annotations
from webhook.rules.patch import Operation, add, clashes, escaped, missing, wanted
from webhook.rules.recounts import plan_recounts
from webhook.rules.sidecars import plan_limits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.pods.resources import Member
    from pinning.pods.types import Pod
    from webhook.config.mutations import Fragment, Mutations
    from webhook.config.settings import Settings
    from webhook.rules.injection import Counted, Injection

POD = ""  # JSON pointer to the pod


@dataclass(frozen=True, slots=True)
class Plan:
    """The JSON Patch of one pod, and the warnings for its owner."""

    operations: tuple[Operation, ...]
    warnings: tuple[Cause, ...] = ()


def plan_mutation(pod: Pod, settings: Settings, injection: Injection) -> Plan:
    """Return every change that corepin makes to a pod at its creation."""
    given, (pod, removals) = pod, plan_token(pod, injection.mutations)
    pod_claims = read_pod(pod)
    limits, limit_warnings = plan_limits(pod, pod_claims, settings)
    guest_file = plan_guest_file(pod, _reads_cpus(pod, pod_claims), injection.mutations.volumes)
    core_limits = plan_core_limits(pod_claims)
    more = merged({POD: plan_nri_annotations(pod_claims, settings)}, core_limits, limits, guest_file)
    operations = plan_injection(pod, pod_claims, settings, injection, more)
    operations += _keep_filled_in(pod, pod_claims)
    operations += plan_amounts(pod, pod_claims)
    operations += plan_recounts(pod, pod_claims, settings)
    operations += plan_gate(pod, pod_claims, settings, operations)
    if not wants_injection(pod, pod_claims):
        return Plan(tuple(operations), few(limit_warnings))
    warnings = chain(
        warn_token(given, injection.mutations),
        _host_path_warnings(pod, pod_claims, injection),
        _misfits(pod, pod_claims, injection.mutations),
        limit_warnings,
    )
    # Removals precede additions, because their indexes are those of the pod as it was sent.
    return Plan((*removals, *operations), few(warnings))


def wants_injection(pod: Pod, pod_claims: PodClaims) -> bool:
    """Return whether a pod requests CMK's additions: by a container's resource, or by CMK's annotation."""
    for member in pod_claims.members:
        if member.cores:
            return True
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    return annotations.get(CMK_MUTATE) in CMK_MUTATE_TRUE


def _keep_filled_in(pod: Pod, pod_claims: PodClaims) -> Iterator[Operation]:
    """Yield the operation that records which CPU limits a LimitRange has filled in.

    LimitRanger's own annotation is not enough, because it is overwritten when LimitRanger fills in further limits. A
    record that lacks containers was copied from another pod, and is completed.
    """
    if not pod_claims.pod_level or not pod_claims.pod_level.filled:
        return
    known = filled_in(pod)
    names = [member.name for member in pod_claims.members if member.name in known]
    if not kept_names(pod).issuperset(names):
        yield add(f"/metadata/annotations/{escaped(FILLED_IN)}", ",".join(names))


def _reads_cpus(pod: Pod, pod_claims: PodClaims) -> tuple[Member, ...]:
    """Return the containers that get the guest file: all of a pod with CMK's additions, else those with claims."""
    if wants_injection(pod, pod_claims):
        return tuple(pod_claims.members)
    return tuple(pod_claims.member_of(claim) for claim in pod_claims.claims)


def plan_injection(
    pod: Pod,
    pod_claims: PodClaims,
    settings: Settings,
    injection: Injection,
    more: Mapping[str, Fragment] | None = None,
) -> list[Operation]:
    """Return the operations that add resources, CMK's additions and `more` (fragments by JSON pointer) to a pod."""
    source = injection if wants_injection(pod, pod_claims) else NOTHING
    pod_wanted, needless = source.pod_wanted, source.needless(pod_claims.members)
    pod_more = (more or {}).get(POD) or {}
    if pod_more or needless:
        pod_wanted = source.pod_wanted_beside(pod_more, needless)
    operations = [*missing(pod, pod_wanted), *plan_account(pod, source.mutations)]
    counts = counts_of_pod(pod_claims, settings)
    for member in pod_claims.members:
        pointer, counted = member.pointer, _as_requested(member, counts.get(member.name, ()))
        members = source.container_wanted(pointer, counted)
        if more and pointer in more:
            members = wanted(pointer, joined(source.container_fragment(counted), more[pointer]))
        operations += missing(member.container, members)
    return operations


def _as_requested(member: Member, counted: tuple[Counted, ...]) -> tuple[Counted, ...]:
    """Return the counts with the amounts that the container requests already, because its limits have to be equal."""
    if not any(it.name in member.requests for it in counted):
        return counted
    return tuple(it._replace(number=whole(member.requests.get(it.name, 0)) or it.number) for it in counted)


def _host_path_warnings(pod: Pod, pod_claims: PodClaims, injection: Injection) -> Iterator[Cause]:
    needless = injection.needless(pod_claims.members)
    present = {volume.get("name"): volume for volume in (pod.get("spec") or {}).get("volumes") or ()}
    for name, path in injection.mutations.host_paths.items():
        other = present.get(name)
        if other is None:
            if name not in needless:
                yield injection.mounted[name]
        elif (other.get("hostPath") or {}).get("path") != path:
            yield Cause(
                "spec.volumes", f"volume {name} is the pod's own; CMK would mount host directory {path}"
            )


def _misfits(pod: Pod, pod_claims: PodClaims, mutations: Mutations) -> Iterator[Cause]:
    """Warn about additions of the mutations file that are skipped because the pod has a value of another type there."""
    if mutations.is_typed:
        return  # the decoder has checked the pod against the same types as the file
    fields = [*clashes("", pod, mutations.per_pod)]
    for member in pod_claims.members:
        fields += clashes(member.path, member.container, mutations.per_container)
    for field in fields:
        yield Cause(field, "has another type than in the mutations file, so nothing is added to it")
