"""Validation rules for pods and for pod templates of workloads. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from msgspec import structs

from pinning.contract import (
    CMK_INJECTED,
    CMK_MUTATE,
    CMK_MUTATE_TRUE,
    CMK_NUM_CORES,
    CONTAINER_SCOPE,
    CPU_MANAGER,
    GATE_CONTAINER,
    GUARDED,
    LAUNCHER_CONTAINER,
    CPUPolicy,
    QoSClass,
    SMTPolicy,
    Switch,
)
from pinning.errors import Cause
from pinning.pods.annotations import annotation_field, policy_keys
from pinning.pods.budget import BUDGET_FIELD
from pinning.pods.claims import Origin, read_pod
from pinning.pods.eligible import OWN_CORES
from pinning.pods.launcher import is_dedicated_launcher
from pinning.pods.qos import qos_class
from pinning.pods.quantity import millicores
from pinning.pods.resources import Member, Role, guarantee_gaps, members, shown, whole_cpus
from pinning.truncate import few
from webhook.rules.budget_record import counted_for_dropped, dropped, record_of
from webhook.rules.counts import REMOVE, REMOVE_OR_REORDER, miscounted, recounted, wrong_counts
from webhook.rules.gate import WINDOWS, is_windows, plan_gate, taken_names
from webhook.rules.memory import edited_memory, too_much_memory
from webhook.rules.mutate import plan_injection, wants_injection
from webhook.rules.recounts import is_counted_without_budget

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pinning.pods.budget import PoolUser
    from pinning.pods.claims import Claim, PodClaims
    from pinning.pods.types import Pod
    from webhook.config.settings import NodeShape, Settings
    from webhook.rules.injection import Injection


# Bytes of literal environment variables of one container; 16 such containers fill an NRI message.
LARGE_ENVIRONMENT: Final = 256 * 2**10


@dataclass(frozen=True, slots=True)
class Verdict:
    """Causes for which an object is refused, and warnings for its owner; without causes it is admitted."""

    causes: tuple[Cause, ...] = ()
    warnings: tuple[Cause, ...] = ()

    def weight(self) -> int:
        """Return an upper bound of the verdict's size in bytes; text that two causes share is counted twice."""
        return sum(cause.weight() for cause in (*self.causes, *self.warnings))


def review_new_pod(pod: Pod, settings: Settings, injection: Injection) -> Verdict:
    """Validate a new pod after mutation; refuse it if the mutating webhook was not called."""
    pod_claims = read_pod(pod)
    causes = chain(
        counted_for_dropped(pod, pod_claims),
        _causes(pod, pod_claims, settings),
        taken_names(pod),
        wrong_counts(
            pod_claims, settings, REMOVE_OR_REORDER if _may_be_changed(pod, pod_claims, settings) else REMOVE
        ),
        _not_guaranteed(pod, pod_claims),
        _not_injected(pod, pod_claims, settings, injection),
    )
    return Verdict(few(causes), few(chain(dropped(pod), _warnings(pod, pod_claims, settings))))


def _may_be_changed(pod: Pod, pod_claims: PodClaims, settings: Settings) -> bool:
    """Return whether another webhook may have changed the pod after corepin added its counts."""
    if record_of(pod) is not None:
        return True
    is_wrong = pod_claims.pod_level and any(miscounted(pod_claims, settings))
    return bool(is_wrong) and is_counted_without_budget(pod, settings)


def review_template(pod: Pod, settings: Settings) -> Verdict:
    """Validate a pod template, into which nothing has been injected."""
    pod_claims = read_pod(pod)
    causes = chain(_causes(pod, pod_claims, settings), taken_names(pod), wrong_counts(pod_claims, settings))
    return Verdict(few(causes), few(_warnings(pod, pod_claims, settings)))


def review_changed_pod(old: Pod, new: Pod, settings: Settings) -> Verdict:
    """Validate only what the update changes (ratcheting)."""
    if not changes_claims(old, new):
        return Verdict()
    before, after = read_pod(old), read_pod(new)
    users = after.budget.staying(before.budget.users) if before.budget and after.budget else ()
    running = _in_pool(after, users)
    causes = few(added(_causes(old, before, settings), _causes(new, running, settings)))
    warnings = added(_warnings(old, before, settings), _warnings(new, running, settings))
    found = chain(
        warnings,
        _first_limits(after, users),
        recounted(before, running, settings),
        edited_memory(before, running),
    )
    return Verdict(causes or few(_lost(old, new, before, after)), few(found))


def added(before: Iterable[Cause], after: Iterable[Cause]) -> Iterator[Cause]:
    """Yield the causes in `after` that are not in `before`."""
    known = {cause.identity for cause in before}
    return (cause for cause in after if cause.identity not in known)


def changes_claims(old: Pod, new: Pod) -> bool:
    """Return whether policy annotations or resources differ between two states of a pod."""
    return _policies(old) != _policies(new) or _amounts(old) != _amounts(new)


def _policies(pod: Pod) -> Mapping[str, str]:
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    keys = (*policy_keys(annotations), CMK_MUTATE)
    return {key: annotations[key] for key in keys if key in annotations}


def _amounts(pod: Pod) -> list[object]:
    pod_level = (pod.get("spec") or {}).get("resources")
    return [
        pod_level,
        *((member.name, dict(member.requests), dict(member.limits)) for member in members(pod)),
    ]


def _causes(pod: Pod, pod_claims: PodClaims, settings: Settings) -> Iterator[Cause]:
    yield from pod_claims.every_cause()
    if pod_claims.every_claim and is_windows(pod):
        message = (
            f"a pod of {WINDOWS} gets no CPUs of its own, because corepin's agents run on Linux nodes: remove the"
            " annotations and resources by which it claims CPUs"
        )
        yield Cause("spec.os.name", message, flaw=("windows",))
    yield from _too_large(pod_claims, settings.node_shapes)
    for member in pod_claims.members:
        yield from _preset_cores(member, pod_claims.claim_of(member.name))


def _warnings(pod: Pod, pod_claims: PodClaims, settings: Settings) -> Iterator[Cause]:
    yield from pod_claims.every_warning()
    yield from _mutate_words(pod, pod_claims)
    yield from _guard_words(pod)
    for member in pod_claims.members:
        yield from _throttled(member, pod_claims.claim_of(member.name), settings)
        if pod_claims.claims:
            yield from _large_environment(member)
    yield from too_much_memory(pod_claims, settings.node_shapes)


def _large_environment(member: Member) -> Iterator[Cause]:
    """Warn about an environment so large that the runtime may fail to list its containers to NRI plugins."""
    variables = member.container.get("env") or ()
    size = sum(
        len(f"{variable.get('name') or ''}{variable.get('value') or ''}".encode(errors="replace"))
        for variable in variables
    )
    if size > LARGE_ENVIRONMENT:
        field = f"{member.path}.env"
        message = (
            f"{member.called} has an environment of {size >> 10} KiB, more than {LARGE_ENVIRONMENT >> 10} KiB: containerd"
            " lists containers to NRI plugins in messages of 4 MiB, and registers no plugin if 8 containers exceed one:"
            " mount a ConfigMap as files instead"
        )
        yield Cause(field, message, flaw=("environment", field))


def _preset_cores(member: Member, claim: Claim | None) -> Iterator[Cause]:
    """Refuse a value of CMK_NUM_CORES, set by the user, above the container's claim."""
    if claim is None or claim.origin is not Origin.CMK:
        return
    for at, variable in enumerate(member.container.get("env") or ()):
        value = variable.get("value")
        if variable.get("name") != CMK_NUM_CORES or value is None or value == str(claim.count):
            continue
        if not (
            value.isascii() and value.isdigit() and 1 <= int(value[:9]) <= claim.count and len(value) < 10
        ):
            field = f"{member.path}.env[{at}].value"
            message = f"{value[:20]!r} is not in 1 to {claim.count}, the cores that {member.called} claims; remove it"
            yield Cause(field, message, flaw=("preset", field, value))


def _throttled(member: Member, claim: Claim | None, settings: Settings) -> Iterator[Cause]:
    """Warn about a CPU limit below the CPUs of the container's CMK claim, because CFS throttles there."""
    limit = member.limits.get("cpu")
    if claim is None or claim.origin is not Origin.CMK or claim.loses_quota or limit is None:
        return
    brought = claim.count * max(settings.threads_per_core, default=1)
    if millicores(limit) < brought * 1000:
        cores = f"whose {claim.count} cores bring {brought} CPUs or more"
        message = f"{shown(limit)} throttles container {member.called}, {cores}; raise or remove the limit"
        field = f"{member.path}.resources.limits[cpu]"
        yield Cause(field, message, flaw=("throttled", field))


def _guard_words(pod: Pod) -> Iterator[Cause]:
    """Warn about a mark that the guard takes for `false`, so that the pod may start without its CPUs."""
    value = ((pod.get("metadata") or {}).get("annotations") or {}).get(GUARDED)
    if value is not None and value not in set(Switch):
        message = f"{value[:20]!r} counts as false: write true, or false to start while no agent answers"
        yield Cause(annotation_field(GUARDED), message, flaw=("guard", value[:20]))


def _mutate_words(pod: Pod, pod_claims: PodClaims) -> Iterator[Cause]:
    value = ((pod.get("metadata") or {}).get("annotations") or {}).get(CMK_MUTATE)
    if value is None or value in CMK_MUTATE_TRUE:
        return
    field = annotation_field(CMK_MUTATE)
    if wants_injection(pod, pod_claims):
        yield Cause(
            field, f"{value[:20]!r} does not opt out: a container claims cores, so the pod is injected"
        )
    elif value[:20].strip().lower() not in {"false", "0", ""}:
        yield Cause(field, f'{value[:20]!r} has no effect: write "true" to have the pod injected')


def _too_large(pod_claims: PodClaims, shapes: tuple[NodeShape, ...]) -> Iterator[Cause]:
    """Refuse more whole cores than any node shape has."""
    claims = pod_claims.every_claim
    owners = [claim for claim in claims if claim.smt in OWN_CORES]
    if not shapes or not owners:
        return
    if any(_cores_needed(claims, shape) <= shape.free_cores for shape in shapes):
        return
    largest = max(shapes, key=lambda shape: (shape.free_cores, shape.name))
    needed = _cores_needed(claims, largest)
    for claim in owners:
        message = f"{claim.smt} needs {needed} whole cores for this pod; the largest node kind"
        message = f"{message}, {largest.name}, has {largest.free_cores}: ask for fewer CPUs"
        field = BUDGET_FIELD if claim.pool else f"{pod_claims.member_of(claim).path}.resources.limits[cpu]"
        yield Cause(field, message, flaw=("too large", field))


def _cores_needed(claims: tuple[Claim, ...], shape: NodeShape) -> int:
    """Return the most cores that a pod takes at any time on an empty node of a shape."""
    needs = [(claim.role, _cores_of(claim, shape.threads_per_core)) for claim in claims]
    lasting = sum(count for role, count in needs if role is Role.SIDECAR)
    running = sum(count for role, count in needs if role is Role.MAIN)
    starting = max((count for role, count in needs if role is Role.INIT), default=0)
    return lasting + max(running, starting)


def _cores_of(claim: Claim, threads: int) -> int:
    if claim.origin is Origin.CMK or claim.smt is SMTPolicy.ISOLATE:
        return claim.count
    return -(-claim.count // threads) if claim.smt in OWN_CORES else 0


def _not_guaranteed(pod: Pod, pod_claims: PodClaims) -> Iterator[Cause]:
    """Refuse a launcher with dedicated CPUs that is not Guaranteed, because KubeVirt would fail the machine later."""
    if not is_dedicated_launcher(pod):
        return
    compute = next((member for member in pod_claims.members if member.name == LAUNCHER_CONTAINER), None)
    if compute is None or not whole_cpus(compute):
        return
    if qos_class(pod) is QoSClass.GUARANTEED:
        return
    for member in members(pod):
        for name in guarantee_gaps(member):
            message = f"container {member.called} must state {name} limits equal to requests, or this virtual machine"
            yield Cause(
                f"{member.path}.resources.limits[{name}]", f"{message} with dedicated CPUs is not Guaranteed"
            )


def _not_injected(
    pod: Pod, pod_claims: PodClaims, settings: Settings, injection: Injection
) -> Iterator[Cause]:
    certain = structs.replace(settings, whole_cores=False)  # another replica may not know the node shapes yet
    missing = plan_injection(pod, pod_claims, certain, injection)
    if missing:
        yield Cause(annotation_field(CMK_INJECTED), _without(missing[0]["path"]))
    if plan_gate(pod, pod_claims, settings):
        yield Cause("spec.initContainers", _without(GATE_CONTAINER))


def _without(part: str) -> str:
    """Return the message about a part that the mutating webhook did not add.

    It names both possible causes, because they cannot be distinguished here.
    """
    return (
        f"not injected ({part} is missing): either the mutating webhook was not called: create the pod again once it"
        " answers; or its replicas had different configurations or versions: create the pod again two minutes after"
        " the change"
    )


def _in_pool(pod_claims: PodClaims, users: Iterable[PoolUser]) -> PodClaims:
    """Return a pod's claims after a resize, with these containers still in its pool instead of on slices."""
    names = [user.container for user in users]
    if not names:
        return pod_claims
    return replace(pod_claims, claims=tuple([it for it in pod_claims.claims if it.container not in names]))


def _first_limits(after: PodClaims, users: Iterable[PoolUser]) -> Iterator[Cause]:
    """Warn about containers of a pool that get their first CPU limit: at each resize a LimitRange may fill one in."""
    for user in users:
        member, key = after.member_called(user.container), f"{CPU_MANAGER}/{CONTAINER_SCOPE}{user.container}"
        message = (
            f"container {member.called} had no CPU limit until now, and may have got this one from a LimitRange: it"
            f" stays in the pool of its pod if it runs there; annotate {key}: {CPUPolicy.EXCLUSIVE} to give it CPUs of its"
            f" own (a slice), or {CPUPolicy.NONE} to keep it in the pool in any case"
        )
        yield Cause(f"{member.path}.resources.limits[cpu]", message)


def _lost(old: Pod, new: Pod, before: PodClaims, after: PodClaims) -> Iterator[Cause]:
    """Refuse a resize after which a container is no longer eligible for its policy."""
    if _policies(old) != _policies(new):
        return
    if before.budget and before.pool and before.pool.count and after.budget is None:
        message = f"the pod has a budget of {before.budget.cpus} CPUs, and would have none"
        remedy = "set limit and request to one whole number >= 1, or first set the pod's policy to none"
        yield Cause(BUDGET_FIELD, f"{message}: {remedy}", flaw=("lost budget",))
    for member in after.members:
        claim = before.claim_of(member.name)
        if claim and claim.origin is not Origin.CMK and after.claim_of(member.name) is None:
            limit, request = shown(member.limits.get("cpu")), shown(member.requests.get("cpu"))
            message = (
                f"container {member.called} has {claim.policy} CPUs, but limit {limit} and request {request}"
            )
            yield Cause(
                f"{member.path}.resources.limits[cpu]",
                f"{message} are not one equal whole number: set both to a whole number, or first set its policy to none",
            )
