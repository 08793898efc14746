"""Decide one admission request: decode what its kind needs, ask the pure rules, answer. Built once per configuration."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from pinning.brief import MOST_REPORTED
from pinning.contract import MIRROR_POD, PRODUCT
from pinning.errors import Cause
from pinning.kubevirt.review import Kind
from pinning.pods.claims import count_containers, crowded
from webhook.review.decision_cache import DecisionCache, pod_key
from webhook.review.decision_cache import decoder as key_decoder
from webhook.review.response import Allowed, Denied, Patched, weight
from webhook.review.wire import generate_name
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation
from webhook.rules.pod_parts import StoredPod
from webhook.rules.pods import Verdict, changes_claims, review_changed_pod, review_new_pod, review_template
from webhook.rules.raw_json import OBJECT, OLD_OBJECT, UNREADABLE, Malformed, malformed
from webhook.rules.vms import (
    KINDS,
    RunningMachine,
    VirtObject,
    is_kubevirt,
    review_changed_vm,
    review_changed_vmi,
    review_hotplugged_vmi,
    review_vm,
)
from webhook.rules.workloads import TEMPLATES, read_template

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pinning.pods.types import Pod
    from webhook.config.mutations import Mutations
    from webhook.config.settings import Settings
    from webhook.review.wire import Request

Decoded = TypeVar("Decoded")
POD: Final = ("", "Pod")
MOST_JUDGED: Final = 1000  # a node runs some hundred pods; the rules take 50 us for each of so many
CHANGING: Final = frozenset({"CREATE", "UPDATE"})
# The API server takes no other value from a second call for the same pod: never a number of operations.
AUDIT_INJECTED: Final = {"injected": "true"}
_stored = msgspec.json.Decoder(StoredPod)
_machine = msgspec.json.Decoder(VirtObject)
_running = msgspec.json.Decoder(RunningMachine)
_whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, Any])


@dataclass(frozen=True)
class Decider:
    """The rules of one configuration generation; a review is answered by one of these as a whole."""

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
        """Return the additions to a pod that is being created; anything else is admitted untouched."""
        if _kind(request) != POD or request.operation != "CREATE" or request.subResource:
            return Allowed()
        if self.mutations.is_typed:
            pod, key = self._key(request)
            return self._mutated.of(key, lambda: self._mutate(pod))
        self._key(request)  # which holds the pod to its shape
        return self._mutate(_decode_pod(request.object, _whole))

    def judge_new_pod(self, request: Request) -> Verdict:
        """Return the verdict on a pod as it will be stored."""
        if self.mutations.is_typed:
            pod, key = self._key(request)
            return self._judged.of(key, lambda: self._judge(pod))
        self._key(request)  # which holds the pod to its shape
        return self._judge(_decode_pod(request.object, _whole))

    def _key(self, request: Request) -> tuple[Pod, bytes]:
        pod = _decode(key_decoder, request.object)
        try:
            return pod, pod_key(pod, self.mutations)
        except OverflowError as error:  # the API server writes amounts as texts, and no such number
            raise Malformed(OBJECT, "a number has more than 64 bits: write it as a string") from error

    def _judge(self, pod: Pod) -> Verdict:
        if _is_mirror(pod):
            return Verdict()
        return _crowded(pod) or review_new_pod(pod, self.settings, self.injection)

    def _mutate(self, pod: Pod) -> Allowed | Patched:
        if _is_mirror(pod) or _crowded(pod):
            return Allowed()
        plan = plan_mutation(pod, self.settings, self.injection)
        warnings = _sentences(plan.warnings)
        if not plan.operations:
            return Allowed(warnings)
        return Patched(plan.operations, warnings, AUDIT_INJECTED)

    def validate(self, request: Request) -> Allowed | Denied:
        """Return whether an object is consistent, with every cause; kinds that are not ours are admitted."""
        judge = _JUDGES.get(_kind(request))
        if judge is None or request.operation not in CHANGING:
            return Allowed()
        verdict = judge(self, request)
        if not verdict.causes:
            return Allowed(_sentences(verdict.warnings))
        return Denied(
            kind=request.kind.kind,
            group=request.kind.group,
            name=_name(request),
            causes=verdict.causes,
            warnings=_sentences(verdict.warnings),
            audit={"refused": str(min(len(verdict.causes), MOST_REPORTED))},
        )


def under(root: str, verdict: Verdict) -> Verdict:
    """Return the verdict on a template with its fields told from the whole object."""
    return Verdict(
        tuple(replace(cause, field=root + cause.field) for cause in verdict.causes),
        tuple(replace(warning, field=root + warning.field) for warning in verdict.warnings),
    )


def _kind(request: Request) -> tuple[str, str]:
    return request.kind.group, request.kind.kind


def _decode_pod(document: msgspec.Raw, decoder: msgspec.json.Decoder[Pod], path: str = OBJECT) -> Pod:
    """Return the pod as its owner wrote it: what is reported of it does not count at admission."""
    pod = _decode(decoder, document, path)
    pod.pop("status", None)
    return pod


def _decode(decoder: msgspec.json.Decoder[Decoded], document: msgspec.Raw, path: str = OBJECT) -> Decoded:
    try:
        return decoder.decode(document)
    except UNREADABLE as error:
        raise malformed(error).under(path) from error


def _is_mirror(pod: Pod) -> bool:
    return MIRROR_POD in ((pod.get("metadata") or {}).get("annotations") or {})


def _crowded(pod: Pod) -> Verdict | None:
    """Refuse a pod that asks for CPUs and would get none, or whose containers would keep the other reviews waiting."""
    count = count_containers(pod)
    if causes := crowded(pod):
        return Verdict(
            tuple(
                replace(cause, message=f"the pod has {count} containers; {cause.message}") for cause in causes
            )
        )
    if count <= MOST_JUDGED:
        return None
    message = f"{count} containers are more than the {MOST_JUDGED} that a pod may have here: use several pods"
    return Verdict((Cause("spec.containers", message),))


def _sentences(warnings: tuple[Cause, ...]) -> tuple[str, ...]:
    return tuple(f"{warning.field}: {PRODUCT}: {warning.message}" for warning in warnings)


def _name(request: Request) -> str:
    prefix = generate_name(request)
    return request.name or (f"{prefix}..." if prefix else "")


def _judge_pod(rules: Decider, request: Request) -> Verdict:
    if request.subResource not in {None, "", "resize"}:
        return Verdict()
    if request.operation == "CREATE":
        return rules.judge_new_pod(request)
    pod = _decode_pod(request.object, _stored)
    if _is_mirror(pod) or (pod.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    old = _decode_pod(request.oldObject, _stored, OLD_OBJECT)
    if verdict := _crowded(pod):  # no update brings containers: only the wish for CPUs can be new
        return verdict if crowded(pod) and not crowded(old) else Verdict()
    return review_changed_pod(old, pod, rules.settings)


def _judge_workload(rules: Decider, request: Request) -> Verdict:
    """Warn only: a refusal of the pods would be seen in an event, a refusal here would stop an apply."""
    path = TEMPLATES[_kind(request)]
    template = read_template(request.object, path, OBJECT)
    crowd = _crowded(template)
    if request.operation == "UPDATE":
        old = read_template(request.oldObject, path, OLD_OBJECT)
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
        return review_vm(kind, _decode(_machine, request.object), rules.settings)
    if kind is Kind.VMI:
        return _judge_changed_vmi(rules, request)
    new = _decode(_machine, request.object)
    if (new.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    return review_changed_vm(kind, _decode(_machine, request.oldObject, OLD_OBJECT), new, rules.settings)


def _judge_changed_vmi(rules: Decider, request: Request) -> Verdict:
    new = _decode(_running, request.object)
    if (new.get("metadata") or {}).get("deletionTimestamp"):
        return Verdict()
    if is_kubevirt(request.userInfo.username or "", rules.settings):
        old = _decode(_machine, request.oldObject, OLD_OBJECT)
        return review_hotplugged_vmi(old, _decode(_machine, request.object))
    try:
        return review_changed_vmi(_decode(_running, request.oldObject, OLD_OBJECT), new)
    except RecursionError as error:  # two values that could just be read, compared
        raise malformed(error).under(f"{OBJECT}.spec") from error


_JUDGES: Final[Mapping[tuple[str, str], Callable[[Decider, Request], Verdict]]] = {
    POD: _judge_pod,
    **dict.fromkeys(TEMPLATES, _judge_workload),
    **dict.fromkeys(KINDS, _judge_machine),
}
