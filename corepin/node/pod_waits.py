"""Reasons why a pod still waits for the CPUs that its containers claim. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pinning.contract import GATE_CONTAINER
from pinning.planning.refusal import Reason
from pinning.pods.claims import read_pod

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.pods.types import Pod
    from published.pod_status import Container, PodStatus

_OVER = frozenset({"Succeeded", "Failed"})
# Waiting reasons that every container has for a moment while it starts.
_ON_THE_WAY = frozenset({"ContainerCreating", "PodInitializing"})


def waits_of(pod: Mapping[str, Any], status: PodStatus | None) -> Iterator[str]:
    """Yield the reasons why a pod waits; `status` is its status annotation, None without one."""
    if pod["status"].get("phase") in _OVER:
        return
    if not pod["spec"].get("nodeName"):
        yield f"a node: {_unscheduled(pod)}"
        return
    claims = read_pod(cast("Pod", pod)).claims
    if claims and status is None:
        node = pod["spec"]["nodeName"]
        yield f"the agent of node {node}, which has reported nothing: check that one runs there, and read its log"
    if status and status.refusal:
        is_invalid = status.refusal.reason in ("", Reason.INVALID)
        yield f"{'its annotations' if is_invalid else 'CPUs for its pool'}: {status.refusal.message}"
    for claim in status.claims if status else ():
        if claim.waits:
            tries = f"{claim.tries} time{'s' * (claim.tries != 1)}"
            yield f"the kubelet to prepare claim {claim.name}, which has its CPUs since {claim.waits}; the agent reminded it {tries}"
    for name, container in status.containers.items() if status else ():
        yield from _of_container(name, container)
    yield from _of_kubelet(pod)


def _unscheduled(pod: Mapping[str, Any]) -> str:
    conditions = pod["status"].get("conditions") or ()
    messages = (it.get("message") for it in conditions if it["type"] == "PodScheduled")
    return next(messages, None) or "the scheduler has not reported anything yet"


def _of_container(name: str, container: Container) -> Iterator[str]:
    if container.refusal:
        yield f"CPUs for {name}: {container.refusal.message}"
    elif container.policy and not container.pinned:
        yield f"the kernel to confine {name} to CPUs {container.cpus}"
    if container.drift:
        yield f"tasks of {name} that may run outside of its CPUs: the agent moves them back"
    if container.intruders:
        yield f"{', '.join(container.intruders)} to leave the CPUs of {name}"


def _of_kubelet(pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts about containers that the kubelet does not start, and about the gate while it runs."""
    kinds = ("initContainerStatuses", "containerStatuses")
    for container in (it for kind in kinds for it in pod["status"].get(kind) or ()):
        state = container.get("state") or {}
        if container["name"] == GATE_CONTAINER and "running" in state:
            yield f"{GATE_CONTAINER}, which ends when the agent has assigned every CPU that the pod must have"
        waiting = state.get("waiting") or {}
        if waiting and waiting.get("reason") not in _ON_THE_WAY:
            yield f"{container['name']} ({waiting.get('reason')}): {waiting.get('message', 'no details')}"
