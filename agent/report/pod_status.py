"""Write on each pod which CPUs its containers hold, as the kernel was seen to apply it: `status.corepin.io/cpus`.

Only pods that hold CPUs or were refused some get the annotation; one that holds some gets it when the first of its
containers runs: a moment earlier there is less to say, and all of it would be written again. A pod with a gate gets it
at once, and has it as long as it is there: an empty one lets it pass. What changes without the
pod (the shared set, but for containers that may use it besides their own; tasks that come and go) is left out, so
that one change of a pod is one PATCH. Times, and what was
found when a claim was refused, stay those of the moment at which the content became what it is.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agent.clock import Clock
from agent.kept_pod import PODS, PodDecoder
from agent.report.events import gist
from agent.report.object_backoff import BETWEEN_SECONDS, FAILURES, ObjectBackoff
from agent.report.publisher import Later
from apiserver.client import METADATA, METADATA_LIST
from apiserver.errors import APIError, Failed, Gone, Refused
from apiserver.pages import decode, decode_any, pages
from pinning.contract import STATUS_CPUS, CoreType, CPUPolicy
from pinning.machine.cpuset import union
from pinning.pods.identity import by_runtime_uid, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.interfaces import PodSource
    from agent.node_state import ContainerState, NodeState, PodState, Proof, VMState
    from apiserver.client import Api
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.refusal import Refusal
    from pinning.pods.types import Pod

VERSION: Final = 1

logger = logging.getLogger(__name__)


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


_object = msgspec.json.Decoder(_Object)


def pod_status(pod: PodState, before: str | None) -> str | None:
    """Return the annotation of a pod; None when it holds nothing and was refused nothing.

    What stood there before stays where only times differ, or what is free beside a claim that is still refused.
    """
    if not pod.is_reported or (before is None and _is_waiting(pod)):
        return None
    old = _members(_read(before), "containers")
    status: dict[str, Any] = {"version": VERSION}
    if pod.refusal:
        status["refusal"] = _refusal(pod.refusal)
    status["containers"] = {
        container.name: _container(container, _members(old, container.name), pod.vm)
        for container in pod.containers
        if container.is_reported
    }
    if pod.vm and pod.vm.cpus:
        status["vm"] = _vm(pod.vm, _members(_read(before), "vm"))
    return msgspec.json.encode(status).decode()


def _is_waiting(pod: PodState) -> bool:
    """Return whether a pod has nothing to report: no container runs, was refused, or is gated."""
    return not (pod.refusal or pod.is_gated or pod.vm) and not any(
        container.proof or container.refusal for container in pod.containers
    )


def _container(container: ContainerState, old: Mapping[str, Any], vm: VMState | None) -> dict[str, Any]:
    status: dict[str, Any] = {}
    if container.policy:
        status |= {
            "policy": container.policy,
            "smtPolicy": container.smt,
            "numaPolicy": container.numa,
            "cpus": str(container.cpus),
            "idle": str(container.idle),
            "numaNodes": list(container.numa_nodes),
        }
        if container.core_type is not CoreType.ANY:
            status["coreType"] = container.core_type
    if container.others:
        status |= {"sharedCpus": str(container.others), "confinedBy": "affinity"}
        if container.policy is CPUPolicy.EXCLUSIVE:
            status["cpuLimit"] = "unset"
    if container.memory:
        words = {"memory": container.memory.word, "memoryNote": container.memory.note}
        status |= {name: text for name, text in words.items() if text}
    status["pinned"] = container.is_pinned
    if container.policy and container.sandbox and vm and vm.is_one_to_one:
        status["vcpus"] = [rank for rank, cpus in enumerate(vm.vcpus) if cpus <= container.cpus]
    if container.policy and container.proof:
        status["applied"] = _applied(container.proof, old, _found(container, container.proof))
    if container.refusal:
        status["refusal"] = _refusal(container.refusal, _members(old, "refusal"))
    return status | _findings(container)


def _findings(container: ContainerState) -> dict[str, Any]:
    """Return what is wrong with a container that holds CPUs or asks for them."""
    findings: dict[str, Any] = {}
    if container.proof and container.proof.outside:
        findings["drift"] = True
    if container.intruders:
        findings["intruders"] = list(container.intruders)
    if container.uncounted:
        findings["uncounted"] = container.uncounted
    return findings


def _found(container: ContainerState, proof: Proof) -> CPUSet:
    """Return the CPUs to report as applied; for a pinned container its own, without pools that follow the shared set."""
    if not container.is_pinned:
        return proof.cpus
    return container.sandbox.own if container.sandbox else container.cpus


def _applied(proof: Proof, old: Mapping[str, Any], found: CPUSet) -> Mapping[str, Any]:
    """Return when the CPUs changed and by which path; the window may be known only later."""
    cpus, before = str(found), _members(old, "applied")
    applied: dict[str, Any] = {"cpus": cpus, "time": proof.when, "path": proof.path}
    if before.get("cpus") == cpus:
        applied = dict(before)
    if proof.window_seconds is not None:
        applied.setdefault("windowSeconds", proof.window_seconds)
    if proof.split_seconds is not None:
        applied.setdefault("splitSeconds", proof.split_seconds)
    return applied


def _vm(vm: VMState, old: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return where a machine's threads run, and since when; what follows the shared set is left out."""
    status: dict[str, Any] = {
        "kind": vm.kind,
        "vcpus": [str(cpus) for cpus in vm.vcpus],
        "oneToOne": vm.is_one_to_one,
    }
    own = {
        "emulator": str(vm.emulator) if vm.emulator <= vm.cpus else "",
        "iothreads": [str(cpus) for cpus in vm.iothreads] if union(vm.iothreads) <= vm.cpus else [],
        "vhost": str(vm.vhost) if vm.vhost <= vm.cpus else "",
        "reason": vm.reason,
        "note": vm.note,
        "refused": list(vm.refused),
        "guest": [place._asdict() for place in vm.guest_ids],
    }
    status |= {name: value for name, value in own.items() if value}
    is_same = {**old, "time": ""} == {**status, "time": ""}
    return old if is_same else {**status, "time": vm.when}


def _refusal(refusal: Refusal, old: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    before = str(old.get("message"))
    is_same = gist(replace(refusal, message=before)) == gist(refusal) and old.get("reason") == refusal.reason
    message = before if is_same else refusal.message
    return {"reason": refusal.reason, "message": message, "blocksStart": refusal.blocks_start}


def _read(text: str | None) -> Mapping[str, Any]:
    """Decode the status annotation; return an empty status if it is damaged or another program's."""
    try:
        status = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return status if isinstance(status, dict) else {}


def _members(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    members = status.get(name)
    return members if isinstance(members, dict) else {}


class PodReport:
    """Writes the annotation of every pod of the node that differs from what it should be."""

    def __init__(self, api: Api, node: str, pods: PodSource, clock: Clock = Clock()) -> None:
        self._api = api
        self._node = node
        self._source = pods
        self._written: dict[str, tuple[int, str | None]] = {}  # by uid: version of the pod then, annotation
        self._annotated: dict[str, Pod] = {}  # by uid, also of those that the source shows no more
        self._backoff = ObjectBackoff(clock)
        self.writes = 0

    async def publish(self, state: NodeState) -> None:
        """Write on every pod but those that were refused a moment ago; raise Later while there are such."""
        shown = self._source.pods()
        self._written = {uid: written for uid, written in self._written.items() if uid in shown}
        changes = {_uid(pod): (pod, text) for pod, text in self._changes(state)}
        self._backoff.keep(changes)
        await self._write_all(changes)
        await self._try_again(changes)
        await self._clear_finished()
        self._check_complete(state)

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
        """Write on one pod; return why it was refused. What concerns all of them is raised."""
        try:
            await self._write(pod, text)
        except (Refused, Failed) as error:
            if self._backoff.refuse(_uid(pod), error, _version(pod)):
                facts = {"pod": "/".join(name_of(pod)), "reason": str(error)}
                logger.warning("pod status not written", extra={"facts": facts})
            return error
        except Gone:
            pass
        self._backoff.forget(_uid(pod))
        return None

    async def _clear_finished(self) -> None:
        """Take the annotation from pods that are over, which the source shows no more, if they are still there."""
        shown = self._source.pods()
        for uid, pod in list(self._annotated.items()):
            if uid not in shown:
                if not (pod.get("metadata") or {}).get("deletionTimestamp"):
                    with suppress(Gone, Refused, Failed):
                        await self._write(pod, None)
                del self._annotated[uid]
        self._annotated.update({uid: pod for uid, pod in shown.items() if self._current(pod) is not None})

    def _check_complete(self, state: NodeState) -> None:
        """Raise Later when the watch lacks a pod that gets the annotation, or the API server refused one."""
        refused = len(self._backoff)
        shown = by_runtime_uid(list(self._source.pods().values()), state.names)
        late = [pod.name for pod in state.pods if pod.is_known and pod.is_reported and pod.uid not in shown]
        if late:
            raise Later(f"not shown yet: {', '.join(late)}", refused=refused)
        if refused:
            raise Later(f"refused: {refused} pods", BETWEEN_SECONDS, refused)

    async def reset(self) -> None:
        """Remove the annotation from every pod of the node, as the API lists them now."""
        decoder = PodDecoder()
        selector = {"fieldSelector": f"spec.nodeName={self._node}"}
        async for page in pages(self._api, PODS, selector, METADATA_LIST):
            for raw in page.items or ():
                pod = decode(decoder, raw)
                if _annotation(pod) is not None:
                    with suppress(Gone):
                        await self._write(pod, None)

    def _changes(self, state: NodeState) -> Iterator[tuple[Pod, str | None]]:
        known = {pod.uid: pod for pod in state.pods if pod.is_known}
        seen = {pod.uid for pod in state.seen_pods} if state.is_synchronised else set()
        for uid, pod in by_runtime_uid(list(self._source.pods().values()), state.names).items():
            before = self._current(pod)
            if uid not in known and uid not in seen:
                continue  # younger than the state
            after = pod_status(known[uid], before) if uid in known else None
            if after != before:
                yield pod, after

    def _current(self, pod: Pod) -> str | None:
        """Return the annotation as the API has it: what was written, until the watch shows that or later."""
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
    """Return a version as a number; Kubernetes says that versions of one kind may be compared so (KEP-5504)."""
    return int(version) if version.isdecimal() else 0
