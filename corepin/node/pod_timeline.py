"""Timeline of a pod's CPU claims, with the reasons why it waits, from its API object and events. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from corepin.node.pod_waits import waits_of
from drawing.claim_words import claim_words, resource_claim_words
from drawing.policy_words import PATH_WORDS, device_words, noise_words
from pinning.contract import CMK_INJECTED, GATE_CONTAINER, GUARDED, GUARDED_VALUE, PRODUCT, STATUS_CPUS
from pinning.pods.claims import Claim, Origin, PodClaims, read_pod
from pinning.pods.device_claims import MOST_CLAIMS, claim_names, claim_uses
from pinning.truncate import listed
from published.codec import AnotherVersion, decode
from published.pod_status import PodStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from pinning.pods.types import Pod
    from published.pod_status import Container

_TO_SECONDS: Final = len("2026-11-20T10:00:00")
# Order of the stages of entries within the same second, from cause to effect.
_STAGES: Final = ("claim", "admission", "node", "devices", "start", "decision", "refusal", "event", "proof")
_GUARD: Final = (
    "a runtime with corepin's guard starts none of the pod's containers before the agent has set their CPUs"
)
_OF_REASONS: Final = {
    "Pinned": "decision",
    "PolicyChanged": "decision",
    "DeviceRemote": "proof",
    "Unpinnable": "refusal",
}


class Entry(NamedTuple):
    """One entry of a pod's timeline: time, stage and message."""

    time: str  # time in UTC with seconds; empty: unknown
    stage: str
    message: str


@dataclass(frozen=True)
class Timeline:
    """All known entries of one pod, and the reasons for which it waits."""

    title: str
    entries: tuple[Entry, ...]
    waits: tuple[str, ...]  # reasons for which the pod waits; empty: it does not wait


def timeline_of(
    pod: Mapping[str, Any], events: Iterable[Mapping[str, Any]], now: datetime | None = None
) -> Timeline:
    """Return the timeline of a pod, from its API object and its events; `now` is the current time, for ages."""
    status = agent_status(pod)
    recorded = list(_events(events))
    entries = [*_claims(pod), *_admission(pod), *_node(pod), *_starts(pod), *recorded]
    if status:
        entries += [*_resource_claims(pod, status, now), *_devices(status)]
        entries += [*_decisions(status, recorded), *_proofs(status)]
    return Timeline(_title(pod), tuple(sorted(entries, key=_order)), tuple(waits_of(pod, status)))


def agent_status(pod: Mapping[str, Any]) -> PodStatus | None:
    """Return a pod's status annotation; None if it is absent or damaged; raise AnotherVersion for another version."""
    text = (pod["metadata"].get("annotations") or {}).get(STATUS_CPUS)
    try:
        return decode(PodStatus, text) if text else None
    except AnotherVersion as problem:
        if problem.version is None:  # damaged: any user may write it without admission policies
            return None
        raise


def _order(entry: Entry) -> tuple[str, int]:
    return entry.time, _STAGES.index(entry.stage)


def _title(pod: Mapping[str, Any]) -> str:
    metadata, phase = pod["metadata"], pod["status"].get("phase", "of unknown phase")
    node = pod["spec"].get("nodeName")
    place = f"on node {node}" if node else "on no node yet"
    return f"pod {metadata['namespace']}/{metadata['name']}, {phase}, {place}"


def _claims(pod: Mapping[str, Any]) -> Iterator[Entry]:
    time = pod["metadata"].get("creationTimestamp") or ""
    claims = read_pod(cast("Pod", pod))
    if claims.budget:
        yield Entry(time, "claim", _budget(claims))
    for claim in claims.claims:
        yield Entry(time, "claim", f"{claim.container} wants {_wish(claim)}")
    for cause in claims.causes:
        yield Entry(time, "claim", f"invalid: {cause.field}: {cause.message}")
    yield from (Entry(time, "claim", words) for words in _named_claims(pod, claims))
    has_any = claims.claims or claims.budget or claims.causes or pod["spec"].get("resourceClaims")
    if not has_any:
        yield Entry(time, "claim", "none: its containers have no CPUs of their own")


def _named_claims(pod: Mapping[str, Any], claims: PodClaims) -> Iterator[str]:
    """Yield the names of the ResourceClaims of containers, which may be for CPUs or for other devices."""
    for use in claim_uses(cast("Pod", pod), claims):
        names = sorted({it.claim for it in use.requests})
        yield f"{use.container} names ResourceClaim{'s' * (len(names) != 1)} {listed(names)}"
    asked = (pod["spec"].get("resourceClaims") or ())[:MOST_CLAIMS]
    missing = len(asked) - len(claim_names(cast("Pod", pod)))
    if missing > 0:
        yield f"ResourceClaims that are not created from their templates yet: {missing}"


def _budget(claims: PodClaims) -> str:
    """Return a text with the slices and the pool of a pod's budget."""
    cpus, pool = claims.budget.cpus if claims.budget else 0, claims.pool
    slices = [f"{claim.count} for {claim.container}" for claim in claims.slices]
    users = ", ".join(user.container for user in pool.pool.users) if pool and pool.pool else ""
    left = f"{pool.count if pool else 0} in its pool{users and f' for {users}'}"
    return f"the pod has a budget of {cpus} CPU{'s' * (cpus != 1)}: {', '.join([*slices, left])}"


def _wish(claim: Claim) -> str:
    unit = "core" if claim.origin is Origin.CMK else "CPU"
    words = [f"{claim.count} {unit}{'s' * (claim.count != 1)}", str(claim.policy)]
    words += [f"smt {claim.smt}"] if claim.smt else []
    words += [f"numa {claim.numa}"] if claim.numa else []
    words += [f"core type {claim.core_type}"] if claim.core_type else []
    words += [f"quota {claim.quota}"] if claim.quota else []
    words += [f"devices {claim.devices}"] if claim.devices else []
    words += [f"noise {claim.noise}"] if claim.noise else []
    words += [f"interrupts {' '.join(claim.irq)}"] if claim.irq else []
    source = {
        Origin.CMK: f"by the resource {claim.resource}",
        Origin.LAUNCHER: "for a virtual machine with dedicated CPUs",
        Origin.ANNOTATION: "by annotation",
        Origin.POOL: "for the pool of the pod",
    }[claim.origin]
    return f"{', '.join(words)}, {source}" + (", and must not start without them" if claim.must_fit else "")


def _admission(pod: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield entries about the fields that the webhook has added to the pod."""
    time = pod["metadata"].get("creationTimestamp") or ""
    annotations = pod["metadata"].get("annotations") or {}
    if CMK_INJECTED in annotations:
        yield Entry(time, "admission", "the webhook added CMK's mounts, variable and toleration")
    if annotations.get(GUARDED) == GUARDED_VALUE:
        yield Entry(time, "admission", f"it has the annotation {GUARDED}: {_GUARD}")
    if any(it["name"] == GATE_CONTAINER for it in pod["spec"].get("initContainers") or ()):
        yield Entry(time, "admission", f"the webhook added the init container {GATE_CONTAINER}")


def _node(pod: Mapping[str, Any]) -> Iterator[Entry]:
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            time = condition.get("lastTransitionTime") or ""
            yield Entry(time, "node", f"the scheduler chose {pod['spec'].get('nodeName')}")


def _starts(pod: Mapping[str, Any]) -> Iterator[Entry]:
    for container in pod["status"].get("containerStatuses") or ():
        running = (container.get("state") or {}).get("running")
        if running:
            again = f", restart {container['restartCount']}" if container.get("restartCount") else ""
            yield Entry(running.get("startedAt") or "", "start", f"{container['name']} started{again}")


def _events(events: Iterable[Mapping[str, Any]]) -> Iterator[Entry]:
    """Yield entries for corepin's events, and for warnings of any source."""
    for event in events:
        is_ours = (event.get("source") or {}).get("component") == PRODUCT
        if is_ours or event.get("type") == "Warning":
            reason, count = event.get("reason") or "", event.get("count") or 1
            often = f" ({count} times, last {event.get('lastTimestamp')})" if count > 1 else ""
            stage = _OF_REASONS.get(reason, "event") if is_ours else "event"
            yield Entry(_time(event), stage, f"{reason}: {event.get('message')}{often}")


def _time(event: Mapping[str, Any]) -> str:
    created = event["metadata"].get("creationTimestamp")
    time = event.get("firstTimestamp") or event.get("eventTime") or created
    return f"{time[:_TO_SECONDS]}Z" if time else ""


def _resource_claims(pod: Mapping[str, Any], status: PodStatus, now: datetime | None) -> Iterator[Entry]:
    """Yield entries about the ResourceClaims of a pod that hold CPUs."""
    for claim in status.claims:
        facts = resource_claim_words(claim, now)
        name = f"{pod['metadata']['namespace']}/{claim.name}"
        yield Entry(claim.prepared or claim.waits, "decision", f"claim {name}: {facts}")


def _decisions(status: PodStatus, recorded: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the decision about each container, unless an entry in `recorded` already has it.

    Such entries come from events, which the API server deletes after an hour.
    """
    for name, container in status.containers.items():
        if not container.policy:
            continue
        time = container.applied.time if container.applied else ""
        decided = f"container {name} runs on CPUs {container.cpus}"
        if not any(
            entry.message.startswith((f"Pinned: {decided},", f"Pinned: {decided} ")) for entry in recorded
        ):
            words = [
                f"cpu {container.policy}",
                f"smt {container.smt_policy}",
                f"numa {container.numa_policy}",
            ]
            words += [f"core type {container.core_type}"] if container.core_type else []
            idle = f", siblings {container.idle} idle" if container.idle else ""
            yield Entry(time, "decision", f"{name} gets CPUs {container.cpus}{idle} ({', '.join(words)})")
        if container.shared_cpus:
            yield Entry(time, "decision", f"{name} {_sharing(container)}")
        for claims in claim_words(container):
            yield Entry(time, "decision", f"{name} has the CPUs {claims}")
        for place in device_words(container):
            yield Entry(max(time, container.devices_named), "proof", f"{name} runs {place}")
        reported = f"Uncounted: container {name}: "
        if container.uncounted and not any(it.message.startswith(reported) for it in recorded):
            message = f"the scheduler does not count the cores of {name}: {container.uncounted}"
            yield Entry(time, "decision", message)


def _devices(status: PodStatus) -> Iterator[Entry]:
    """Yield entries for when the agent asked for each container's devices, and when the kubelet named them."""
    for name, container in status.containers.items():
        if container.devices_asked:
            message = f"the agent asked the kubelet for the devices of {name}"
            yield Entry(container.devices_asked, "devices", message)
            message = f"the kubelet has named the devices of {name}"
            yield Entry(container.devices_named, "devices", message)


def _sharing(container: Container) -> str:
    """Return a text about the shared CPUs that a container may also use, and the effect on its threads and limit."""
    words = f"may also run on CPUs {container.shared_cpus}, which other containers use"
    if container.confined_by == "affinity":
        words += "; threads that the application does not move there are kept off them by their affinity"
    if container.cpu_limit == "unset":
        words += "; its CPU limit is not enforced"
    return words


def _proofs(status: PodStatus) -> Iterator[Entry]:
    for name, container in status.containers.items():
        if applied := container.applied:
            path = PATH_WORDS.get(applied.path, applied.path)
            whom = f"{name}, except threads that were moved," if container.shared_cpus else name
            message = f"the kernel keeps {whom} on CPUs {applied.cpus}, {path}"
            yield Entry(applied.time, "proof", message + _window(applied.window_seconds))
        if container.not_proven:
            yield Entry(
                "", "proof", f"it is not proven where all tasks of {name} run: {container.not_proven}"
            )
        if container.not_quiet:
            yield Entry("", "proof", f"the CPUs of {name} are not kept quiet: {container.not_quiet}")
        if container.not_kept:
            yield Entry("", "proof", f"the irq-policy of {name}: {container.not_kept}")
        if noise := container.noise:
            yield Entry(noise.since, "proof", f"{name} is disturbed on its CPUs: {noise_words(noise.kind)}")
    if machine := status.vm:
        vcpus = ", ".join(f"{number} on {cpus}" for number, cpus in enumerate(machine.vcpus))
        yield Entry(machine.time, "proof", f"the kernel keeps its vCPUs on these CPUs: {vcpus}")


def _window(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"; it may have run elsewhere for {seconds:g} s" if seconds else "; before its first instruction"
