"""Write each pod's CPUs, as read back from the kernel, into its annotation `status.corepin.io/cpus`.

Only pods that hold CPUs or were refused some get the annotation. A pod with CPUs gets it when its first container
runs, because an earlier annotation would be rewritten at once. If the creation of a container was rejected, its pod
gets the annotation as soon as the container may start, because the kubelet retries at once when the pod changes. It
gets it after BLOCKED_SECONDS at the latest, so that operators see the CPUs of a pod whose container stays rejected; the
annotation then changes once more when the container may start, and so does that of a pod that was refused CPUs before.
While a pod starts, the kubelet usually names its devices within seconds, so a refusal for this reason is written only
if it lasts longer. A pod with a gate gets the annotation immediately and keeps it; an empty annotation opens the gate.
Each change of a pod is one PATCH, so facts that change independently of the pod are left out: tasks that start and
exit, and the shared set, except for containers that may also use it. Times and the details of a refusal are only
updated when other content changes.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from agent import published_parts as parts
from agent.clock import Clock
from agent.kept_pod import PODS, PodDecoder
from agent.node_state import QUIET_PENDING
from agent.report.events import gist, is_usual
from agent.report.object_backoff import BETWEEN_SECONDS, FAILURES, ObjectBackoff
from agent.report.publisher import Later
from apiserver.client import METADATA, METADATA_LIST
from apiserver.errors import APIError, Failed, Gone
from apiserver.errors import Refused as RefusedByAPI
from apiserver.pages import decode, decode_any, pages
from pinning.contract import STATUS_CPUS
from pinning.machine.cpuset import union
from pinning.pods.identity import by_runtime_uid, name_of
from published.codec import AnotherVersion, encode
from published.codec import decode as decode_status
from published.pod_status import Applied, Container, Machine, PodStatus, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.interfaces import PodSource
    from agent.node_state import ContainerState, NodeState, PodState, Proof, VMState
    from apiserver.client import Api
    from pinning.planning.refusal import Refusal as Refused
    from pinning.pods.types import Pod

NEW: Final = Container()
_DETAILS: Final = re.compile(r"/\S+|[0-9][0-9,-]*")
_SEPARATOR: Final = re.compile("[:;] ")
# Delay after which a pod with CPUs is reported although its container is still rejected.
BLOCKED_SECONDS: Final = 5.0
SHOWN_SECONDS: Final = 1.0  # longest wait for a pod that the watch lacks, while another one is blocked
_OTHERS: Final = "and  more"  # last entry of a truncated list, after its number is removed

logger = logging.getLogger(__name__)


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


_object = msgspec.json.Decoder(_Object)


def pod_status(
    pod: PodState, before: str | None, blocked_seconds: float = 0.0, may_start: str = ""
) -> str | None:
    """Return the text of a pod's annotation; None if the pod gets none.

    `before` is the annotation's current text, `blocked_seconds` the time for which a container was rejected although
    the pod has its CPUs, `may_start` the time since which such a container may start, empty if the kubelet needs no
    reminder of it.

    `before` is returned if only times differ, or only the number of free CPUs in an unchanged refusal.
    """
    if not pod.is_reported or (before is None and _is_waiting(pod, blocked_seconds)):
        return None
    old = _read(before)
    return _as_ascii(
        PodStatus(
            refusal=_refusal(pod.refusal, None) if pod.refusal else None,
            containers={
                it.name: _container(it, old.containers.get(it.name, NEW), pod.vm)
                for it in pod.containers
                if it.is_reported
            },
            vm=_vm(pod.vm, old.vm) if pod.vm and pod.vm.cpus else None,
            pool=parts.pool(pod.pool) if pod.pool else None,
            claims=parts.claims(pod.claims, old.claims),
            may_start=may_start or old.may_start,
        )
    )


def _as_ascii(status: PodStatus) -> str:
    """Return the status as JSON in ASCII. Python needs up to four times the memory for text that is not ASCII."""
    text = encode(status).decode()
    return text if text.isascii() else json.dumps(msgspec.json.decode(text), separators=(",", ":"))


def _refusals(pod: PodState) -> list[Refused]:
    return [it for it in (pod.refusal, *(container.refusal for container in pod.containers)) if it]


def _is_blocked(pod: PodState) -> bool:
    """Return whether a pod has its CPUs, but a container is still rejected because others run on these."""
    return pod.is_held_back and not _refusals(pod)


def _may_start(pod: PodState) -> bool:
    """Return whether a container that was rejected may start."""
    return pod.was_rejected and not pod.is_held_back and not _refusals(pod)


def _is_waiting(pod: PodState, blocked_seconds: float) -> bool:
    """Return whether a pod without the annotation does not need it yet.

    A pod needs it once a container runs, while it is gated, or if it has a refusal that does not end soon. A claim
    that the kubelet does not prepare is reported too. So are the CPUs of a pod of which a container was rejected,
    because the write makes the kubelet retry at once. While the retry would be rejected too, the report waits for at
    most BLOCKED_SECONDS, because the next retry comes only after the kubelet's backoff.
    """
    refusals = _refusals(pod)
    is_ready = not refusals and (not pod.is_held_back or blocked_seconds >= BLOCKED_SECONDS)
    is_late = any(claim.times.tries for claim in pod.claims) or (pod.was_rejected and is_ready)
    is_refused = not all(map(is_usual, refusals))  # a usual refusal ends soon, which would need another write
    return not (is_refused or pod.is_gated or pod.vm or is_late) and not any(
        container.proof for container in pod.containers
    )


def _container(state: ContainerState, old: Container, vm: VMState | None) -> Container:
    """Return the status of a container, without facts that change with other containers.

    A noise level and a not-quiet reason that are not known keep their old values; a noise level of the same kind
    keeps its start time.
    """
    new = parts.container(
        state,
        vm,
        cpus=str(state.cpus) if state.has_cpus else "",
        applied=_applied(state, state.proof, old.applied) if state.has_cpus and state.proof else None,
        refusal=_refusal(state.refusal, old.refusal) if state.refusal else None,
    )
    if state.quiet == QUIET_PENDING:
        new = replace(new, not_quiet=old.not_quiet, not_kept=old.not_kept)
    else:
        new = replace(
            new,
            not_quiet=_steady(new.not_quiet, old.not_quiet),
            not_kept=_steady(new.not_kept, old.not_kept),
        )
    if new.devices and not new.devices_asked:  # keep the times that an earlier agent process recorded
        new = replace(new, devices_asked=old.devices_asked, devices_named=old.devices_named)
    kind = new.noise.kind if new.noise else ""
    is_same = state.noise is None or (old.noise and old.noise.kind == kind)
    return replace(new, noise=old.noise) if is_same and state.has_cpus else new


def _steady(new: str, old: str) -> str:
    """Return `old` if `new` differs only in details, such as the names of interrupts, which vary each round."""
    return old if new and new != old and _causes(new) == _causes(old) else new


def _causes(reason: str) -> frozenset[str]:
    """Return the parts of a reason without details: paths, numbers, a truncated last part, counts of further parts."""
    parts = [part.strip() for part in _SEPARATOR.split(_DETAILS.sub("", reason))]
    is_cut = len(parts) > 1 and (reason.endswith("...") or parts[-1] == _OTHERS)
    return frozenset(parts[:-1] if is_cut else parts)


def _applied(state: ContainerState, proof: Proof, old: Applied | None) -> Applied:
    """Return since when and by which path a container has its CPUs; the unpinned time may be added later.

    CPUs of the shared set are left out while the container runs on its CPUs.
    """
    own = state.sandbox.own if state.sandbox else state.cpus
    cpus = str(own if state.is_pinned else proof.cpus)
    before = old if old and old.cpus == cpus else Applied(cpus=cpus, time=proof.when, path=proof.path)
    known = {"window_seconds": proof.window_seconds, "split_seconds": proof.split_seconds}
    new = {name: known[name] for name in known if known[name] is not None and getattr(before, name) is None}
    return replace(before, **new) if new else before


def _vm(vm: VMState, old: Machine | None) -> Machine:
    """Return the CPUs of a virtual machine's threads with the start time; threads on the shared set are left out."""
    new = replace(
        parts.machine(vm),
        emulator=str(vm.emulator) if vm.emulator <= vm.cpus else "",
        iothreads=tuple(map(str, vm.iothreads)) if union(vm.iothreads) <= vm.cpus else (),
        vhost=str(vm.vhost) if vm.vhost <= vm.cpus else "",
        cpus="",
    )
    return old if old and replace(new, time=old.time) == old else new


def _refusal(refused: Refused, old: Refusal | None) -> Refusal:
    new = parts.refusal(refused)
    if old is None or old.reason != new.reason:
        return new
    is_same = gist(dataclasses.replace(refused, message=old.message)) == gist(refused)
    return replace(new, message=old.message) if is_same else new


def _read(text: str | None) -> PodStatus:
    """Decode the status annotation; return an empty status if it is damaged or of another version."""
    try:
        return decode_status(PodStatus, text or "{}")
    except AnotherVersion:
        return PodStatus()


class PodReport:
    """Writes the annotation of every pod of the node whose status changed."""

    def __init__(self, api: Api, node: str, pods: PodSource, clock: Clock = Clock()) -> None:
        self._api = api
        self._node = node
        self._source = pods
        self._written: dict[
            str, tuple[int, str | None]
        ] = {}  # by uid: resourceVersion after the agent's last write, and the text written
        # Pods with the annotation, by uid, also those that the watch no longer shows.
        self._annotated: dict[str, Pod] = {}
        self._backoff = ObjectBackoff(clock)
        self._clock = clock
        # Since when each pod is blocked, by uid as the runtime knows it.
        self._blocked: dict[str, float] = {}
        # Since when rejected containers of blocked pods may start, by uid. Pods without the annotation are left out,
        # because their first annotation makes the kubelet retry.
        self._may_start: dict[str, str] = {}
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Update every pod whose annotation changed; raise Later while pods are in backoff or the watch lacks some."""
        shown = self._source.pods()
        self._written = {uid: written for uid, written in self._written.items() if uid in shown}
        seconds = self._note_blocked(state)
        changes = {_uid(pod): (pod, text) for pod, text in self._changes(state)}
        self._backoff.keep(changes)
        await self._write_all(changes)
        await self._try_again(changes)
        await self._clear_finished()
        self._check_complete(state, seconds)

    def _note_blocked(self, state: NodeState) -> float | None:
        """Record since when pods are blocked; return the seconds until the next one is reported, None without one."""
        now, text = self._clock.monotonic(), self._clock.text()
        ready = (pod.uid for pod in state.pods if _may_start(pod))
        since = {uid: text if uid in self._blocked else self._may_start.get(uid) for uid in ready}
        self._may_start = {uid: time for uid, time in since.items() if time}
        blocked = (pod.uid for pod in state.pods if _is_blocked(pod))
        self._blocked = {uid: self._blocked.get(uid, now) for uid in blocked}
        waits = (since + BLOCKED_SECONDS - now for since in self._blocked.values())
        return min((wait for wait in waits if wait > 0.0), default=None)

    async def _write_all(self, changes: Mapping[str, tuple[Pod, str | None]]) -> None:
        failures = 0
        for uid, change in changes.items():
            if uid in self._backoff:
                continue
            error = await self._attempt(*change)
            failures = failures + 1 if isinstance(error, Failed) else 0
            if error and failures == FAILURES:
                raise error

    async def _try_again(self, changes: Mapping[str, tuple[Pod, str | None]]) -> None:
        versions = {uid: _version(changes[uid][0]) for uid in changes if uid in self._backoff}
        for uid in self._backoff.turns(versions):
            if await self._attempt(*changes[uid]):
                return

    async def _attempt(self, pod: Pod, text: str | None) -> APIError | None:
        """Write one pod's annotation; return the error if it was refused, else None; raise if all writes fail."""
        try:
            await self._write(pod, text)
        except (RefusedByAPI, Failed) as error:
            if self._backoff.refuse(_uid(pod), error, _version(pod)):
                facts = {"pod": "/".join(name_of(pod)), "reason": str(error)}
                logger.warning("pod status not written", extra={"facts": facts})
            return error
        except Gone:
            pass
        self._backoff.forget(_uid(pod))
        return None

    async def _clear_finished(self) -> None:
        """Remove the annotation from finished pods that still exist; the watch no longer shows them."""
        shown = self._source.pods()
        for uid, pod in list(self._annotated.items()):
            if uid not in shown:
                if not (pod.get("metadata") or {}).get("deletionTimestamp"):
                    with suppress(Gone, RefusedByAPI, Failed):
                        await self._write(pod, None)
                del self._annotated[uid]
        self._annotated.update({uid: pod for uid, pod in shown.items() if self._current(pod) is not None})

    def _check_complete(self, state: NodeState, seconds: float | None) -> None:
        """Raise Later if the watch lacks a pod that gets the annotation, the API server refused one, or one is blocked.

        `seconds` is the wait until a blocked pod is reported.
        """
        refused = len(self._backoff)
        shown = by_runtime_uid(list(self._source.pods().values()), state.names)
        late = [pod.name for pod in state.pods if pod.is_known and pod.is_reported and pod.uid not in shown]
        if late:
            wait = seconds and min(SHOWN_SECONDS, seconds)
            raise Later(f"not shown yet: {', '.join(late)}", wait, refused)
        if refused:
            raise Later(f"refused: {refused} pods", min(BETWEEN_SECONDS, seconds or math.inf), refused)
        if seconds is not None:
            raise Later("a container is rejected while others run on its CPUs", seconds)

    async def reset(self) -> None:
        """List the pods of the node and remove the annotation from each; raise the first refusal."""
        decoder, failed = PodDecoder(), list[APIError]()
        selector = {"fieldSelector": f"spec.nodeName={self._node}"}
        async for page in pages(self._api, PODS, selector, METADATA_LIST):
            for raw in page.items or ():
                pod = decode(decoder, raw)
                if _annotation(pod) is not None and (error := await self._attempt(pod, None)):
                    failed.append(error)
        if failed:
            raise failed[0]

    def _changes(self, state: NodeState) -> Iterator[tuple[Pod, str | None]]:
        now = self._clock.monotonic()
        known = {pod.uid: pod for pod in state.pods if pod.is_known}
        seen = {pod.uid for pod in state.seen_pods} if state.is_synchronised else set()
        for uid, pod in by_runtime_uid(list(self._source.pods().values()), state.names).items():
            before = self._current(pod)
            if uid not in known and uid not in seen:
                continue  # the pod was created after the state was computed
            if before is None:  # the first annotation itself makes the kubelet retry
                self._may_start.pop(uid, None)
            blocked_seconds, may_start = now - self._blocked.get(uid, now), self._may_start.get(uid, "")
            after = pod_status(known[uid], before, blocked_seconds, may_start) if uid in known else None
            if after != before:
                yield pod, after

    def _current(self, pod: Pod) -> str | None:
        """Return the annotation as stored: the one last written, until the watch shows that version or a later one."""
        version, text = self._written.get(_uid(pod), (0, None))
        return text if _number(_version(pod)) < version else _annotation(pod)

    async def _write(self, pod: Pod, text: str | None) -> None:
        namespace, name = name_of(pod)
        path, uid = f"/api/v1/namespaces/{namespace}/pods/{name}", _uid(pod)
        # the uid is a precondition: a pod of the same name is another pod
        body: Mapping[str, Any] = {"metadata": {"uid": uid, "annotations": {STATUS_CPUS: text}}}
        answer = await self._api.patch(path, body, accept=METADATA)
        self.writes += 1
        self._written[uid] = (_number((await decode_any(_object, answer)).metadata.resource_version), text)


def _uid(pod: Pod) -> str:
    return (pod.get("metadata") or {}).get("uid") or ""


def _version(pod: Pod) -> str:
    return (pod.get("metadata") or {}).get("resourceVersion") or ""


def _annotation(pod: Pod) -> str | None:
    return ((pod.get("metadata") or {}).get("annotations") or {}).get(STATUS_CPUS)


def _number(version: str) -> int:
    """Return a resourceVersion as a number, to compare it with another of the same kind (KEP-5504)."""
    return int(version) if version.isdecimal() else 0
