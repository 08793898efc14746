"""Decision of one admission request: decode the parts that its kind needs, apply the rules, return the answer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from pinning.contract import MIRROR_POD, PRODUCT
from pinning.errors import Cause
from pinning.kubevirt.review import Kind
from pinning.pods.crowd import count_containers, crowded
from pinning.pods.types import Pod
from pinning.truncate import MOST_REPORTED
from webhook.review.decision_cache import DecisionCache, pod_key, reader
from webhook.review.response import Allowed, Denied, Patched, weight
from webhook.review.wire import generate_name
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation
from webhook.rules.part_reader import PartReader
from webhook.rules.pod_parts import NewPodWithToken, StoredPod, WholePod
from webhook.rules.pods import Verdict, changes_claims, review_changed_pod, review_new_pod, review_template
from webhook.rules.raw_json import OBJECT, OLD_OBJECT, UNREADABLE, Malformed, malformed
from webhook.rules.unchanged import is_leaving, is_unchanged
from webhook.rules.vms import (
    KINDS,
    VirtObject,
    is_kubevirt,
    read_running,
    review_changed_vm,
    review_changed_vmi,
    review_hotplugged_vmi,
    review_vm,
)
from webhook.rules.workloads import TEMPLATES, read_template, template_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from webhook.config.mutations import Mutations
    from webhook.config.settings import Settings
    from webhook.review.wire import Request

Read = TypeVar("Read")
POD: Final = ("", "Pod")
MOST_JUDGED: Final = 1000  # most containers of a pod that is validated; the rules take 50 us for each
CHANGING: Final = frozenset({"CREATE", "UPDATE"})
JUDGED_OF_PODS: Final = frozenset({None, "", "resize"})  # subresources of pods whose requests are validated
# A constant, because the API server calls twice for some pods, and ignores another value of the second call.
AUDIT_INJECTED: Final = {"injected": "true"}
_stored: Final = PartReader(StoredPod)
_whole: Final = PartReader(WholePod)
_machines: Final = PartReader(VirtObject)


@dataclass(frozen=True)
class Decider:
    """The rules of one configuration revision; each review is decided by one decider."""

    settings: Settings
    mutations: Mutations
    _mutated: DecisionCache[Allowed | Patched] = field(
        default_factory=lambda: DecisionCache(weight), init=False, repr=False, compare=False
    )
    _judged: DecisionCache[Verdict] = field(
        default_factory=lambda: DecisionCache(Verdict.weight), init=False, repr=False, compare=False
    )

    @cached_property
    def injection(self) -> Injection:
        """The additions of the mutations file, prepared for every pod."""
        return Injection(self.mutations)

    def mutate(self, request: Request) -> Allowed | Patched:
        """Return the changes of a new pod; any other object is admitted unchanged."""
        if _kind(request) != POD or request.operation != "CREATE" or request.subResource:
            return Allowed()
        if self.mutations.is_typed:
            pod, key = self._key(request)
            return self._mutated.of(key, lambda: self._mutate(pod))
        return self._mutate(self._whole(request))

    def judge_new_pod(self, request: Request) -> Verdict:
        """Validate a new pod after mutation."""
        if self.mutations.is_typed:
            pod, key = self._key(request)
            return self._judged.of(key, lambda: self._judge(pod))
        return self._judge(self._whole(request))

    def _whole(self, request: Request) -> Pod:
        """Return a whole pod, after a type check of the parts that rules read."""
        pod = _whole.read(request.object)
        try:
            self._encoded(msgspec.convert(pod, NewPodWithToken), request)
        except UNREADABLE as error:
            raise malformed(error).under(OBJECT) from error
        return pod

    def _key(self, request: Request) -> tuple[Pod, bytes]:
        """Return the part of a new pod that rules read, and its key in the caches."""
        pod = reader(self.mutations).read(request.object)
        return pod, self._encoded(pod, request)

    def _encoded(self, pod: Pod, request: Request) -> bytes:
        try:
            return pod_key(pod, self.mutations, len(memoryview(request.object)))
        except OverflowError as error:  # not from an API server, which writes amounts as strings
            raise Malformed(OBJECT, "a number has more than 64 bits: write it as a string") from error

    def _judge(self, pod: Pod) -> Verdict:
        if _is_mirror(pod):
            return Verdict()
        return _crowded(pod) or review_new_pod(pod, self.settings, self.injection)

    def _mutate(self, pod: Pod) -> Allowed | Patched:
        if _is_mirror(pod) or _crowded(pod):
            return Allowed()
        plan = plan_mutation(pod, self.settings, self.injection)
        warnings = warning_texts(plan.warnings)
        if not plan.operations:
            return Allowed(warnings)
        return Patched(plan.operations, warnings, AUDIT_INJECTED)

    def validate(self, request: Request) -> Allowed | Denied:
        """Return whether an object is valid, with every cause; kinds without rules are admitted.

        Raise Malformed for an object that cannot be decoded, unless it is being deleted or the update changes nothing
        that rules read, so that its finalizers can be removed.
        """
        judge = _JUDGES.get(_kind(request))
        if judge is None or request.operation not in CHANGING:
            return Allowed()
        try:
            verdict = judge(self, request)
        except Malformed:
            if request.operation == "UPDATE" and (is_leaving(request.object) or _is_unchanged(request)):
                return Allowed()
            raise
        if not verdict.causes:
            return Allowed(warning_texts(verdict.warnings))
        return Denied(
            kind=request.kind.kind,
            group=request.kind.group,
            name=name_of(request),
            causes=verdict.causes,
            warnings=warning_texts(verdict.warnings),
            audit={"refused": str(min(len(verdict.causes), MOST_REPORTED))},
        )


def under(root: str, verdict: Verdict) -> Verdict:
    """Return the verdict on a template with fields relative to the whole object."""
    return Verdict(
        tuple(replace(cause, field=root + cause.field) for cause in verdict.causes),
        tuple(replace(warning, field=root + warning.field) for warning in verdict.warnings),
    )


def _kind(request: Request) -> tuple[str, str]:
    return request.kind.group, request.kind.kind


def _is_mirror(pod: Pod) -> bool:
    return MIRROR_POD in ((pod.get("metadata") or {}).get("annotations") or {})


def _crowded(pod: Pod) -> Verdict | None:
    """Return a refusal for a pod with too many containers, which would get no CPUs or delay reviews; else None."""
    count = count_containers(pod)
    if causes := crowded(pod):
        return Verdict(
            tuple(
                replace(cause, message=f"the pod has {count} containers; {cause.message}") for cause in causes
            )
        )
    if count <= MOST_JUDGED:
        return None
    message = (
        f"{count} containers are more than the {MOST_JUDGED} that corepin admits in a pod: use several pods"
    )
    return Verdict((Cause("spec.containers", message),))


def warning_texts(warnings: tuple[Cause, ...]) -> tuple[str, ...]:
    """Return the warnings as texts for users, with the field of each."""
    return tuple(f"{warning.field}: {PRODUCT}: {warning.message}" for warning in warnings)


def name_of(request: Request) -> str:
    """Return the name of the object, or its generateName."""
    if request.name:
        return request.name  # known from the envelope, without a search in the object
    prefix = generate_name(request)
    return f"{prefix}..." if prefix else ""


def _judge_pod(rules: Decider, request: Request) -> Verdict:
    if request.subResource not in JUDGED_OF_PODS:
        return Verdict()
    if request.operation == "CREATE":
        return rules.judge_new_pod(request)
    pod = _stored.read(request.object)
    if _is_mirror(pod) or (pod.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    old = _before(lambda: _stored.read(request.oldObject, OLD_OBJECT), Pod())
    if verdict := _crowded(pod):  # an update cannot add containers, but it can add a claim
        return verdict if crowded(pod) and not crowded(old) else Verdict()
    return review_changed_pod(old, pod, rules.settings)


def _judge_workload(rules: Decider, request: Request) -> Verdict:
    """Return the verdict on a workload's template, with refusals as warnings, so that `kubectl apply` does not fail."""
    path = TEMPLATES[_kind(request)]
    template = read_template(request.object, path, OBJECT)
    crowd = _crowded(template)
    if request.operation == "UPDATE":
        old = _before(lambda: read_template(request.oldObject, path, OLD_OBJECT), Pod())
        if _crowded(old) if crowd else not changes_claims(old, template):
            return Verdict()
    verdict = crowd or review_template(template, rules.settings)
    verdict = under(".".join(path) + ".", verdict)
    return Verdict(warnings=(*verdict.causes, *verdict.warnings))


def _judge_machine(rules: Decider, request: Request) -> Verdict:
    kind = KINDS[_kind(request)]
    if request.subResource:
        return Verdict()
    if request.operation == "CREATE":
        return review_vm(kind, _machines.read(request.object), rules.settings)
    if kind is Kind.VMI:
        return _judge_changed_vmi(rules, request)
    new = _machines.read(request.object)
    if (new.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    old = _before(lambda: _machines.read(request.oldObject, OLD_OBJECT), VirtObject())
    return review_changed_vm(kind, old, new, rules.settings)


def _judge_changed_vmi(rules: Decider, request: Request) -> Verdict:
    new = read_running(request.object)
    if (new.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    if is_kubevirt(request.userInfo.username or "", rules.settings):
        old = _machines.read(request.oldObject, OLD_OBJECT)
        return review_hotplugged_vmi(old, _machines.read(request.object))
    try:
        return review_changed_vmi(read_running(request.oldObject, OLD_OBJECT), new)
    except RecursionError as error:  # raised by comparing two values at the limit of nesting
        raise malformed(error).under(f"{OBJECT}.spec") from error


def _before(read: Callable[[], Read], nothing: Read) -> Read:
    """Return the decoded old state, or `nothing` if it cannot be decoded.

    All of the new state is validated then, so that an update can repair the object.
    """
    try:
        return read()
    except Malformed:
        return nothing


def _is_unchanged(request: Request) -> bool:
    """Return whether an update changes nothing that the rules of its kind read."""
    new, old = request.object, request.oldObject
    if path := TEMPLATES.get(_kind(request)):
        return is_unchanged(template_of(old, path), template_of(new, path), _stored)
    kind = KINDS.get(_kind(request))
    if kind is Kind.VMI:  # the whole spec of a VMI is immutable
        return is_unchanged(old, new)
    return is_unchanged(old, new, _machines if kind else _stored)


_JUDGES: Final[Mapping[tuple[str, str], Callable[[Decider, Request], Verdict]]] = {
    POD: _judge_pod,
    **dict.fromkeys(TEMPLATES, _judge_workload),
    **dict.fromkeys(KINDS, _judge_machine),
}
