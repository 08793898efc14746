"""Processes of a pod, from its manifest: pure. Kubernetes' rules for order, restarts and final phases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from agent.local.manifest import BadManifest, name_of
from pinning.pods.resources import Role, members
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.pods.types import Pod

# Command of a container whose manifest has none, because there is no image to read it from.
SLEEP: Final = ("sleep", "infinity")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ALWAYS, ON_FAILURE, NEVER = "Always", "OnFailure", "Never"
_VARIABLE: Final = re.compile(r"\$\((\w+)\)")


class _Variable(msgspec.Struct):
    name: str
    value: str | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_Variable] | None = None
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    restart_policy: str | None = None
    runtime_class_name: str | None = None
    termination_grace_period_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container as a process: command, environment and restart policy."""

    name: str
    role: Role
    command: tuple[str, ...]
    environment: Mapping[str, str]
    restart: str  # ALWAYS, ON_FAILURE or NEVER

    def runs_again(self, code: int | None) -> bool:
        """Return whether the container restarts after this exit code; None: unknown, which counts as failed."""
        return self.restart == ALWAYS or (self.restart == ON_FAILURE and code != 0)


@dataclass(frozen=True, slots=True)
class PodRun:
    """One pod as processes, its containers in the order in which they start."""

    uid: str
    namespace: str
    name: str
    containers: tuple[ContainerSpec, ...]
    grace_seconds: float
    runtime_class: str = ""
    has_cpu_limit: bool = False  # whether any of its containers has a CPU limit

    @property
    def is_vm(self) -> bool:
        """Return whether the pod's processes count as one virtual machine, as with Kata's runtime classes."""
        return is_vm_handler(self.runtime_class)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a container ended."""

    code: int | None


def read_run(pod: Pod) -> PodRun:
    """Return the processes of a pod; raise BadManifest."""
    try:
        spec = msgspec.convert(pod.get("spec"), _PodSpec)
    except msgspec.ValidationError as error:
        raise BadManifest(f"pod {name_of(pod)} cannot be started: {error}") from error
    metadata, policy = pod.get("metadata") or {}, spec.restart_policy or ALWAYS
    first = [_init(container, policy) for container in spec.init_containers or ()]
    main = [_container(container, Role.MAIN, policy) for container in spec.containers]
    return PodRun(
        uid=metadata.get("uid") or "",
        namespace=metadata.get("namespace") or "default",
        name=metadata.get("name") or "",
        containers=(*first, *main),
        grace_seconds=30.0
        if spec.termination_grace_period_seconds is None
        else spec.termination_grace_period_seconds,
        runtime_class=spec.runtime_class_name or "",
        has_cpu_limit=any("cpu" in member.limits for member in members(pod)),
    )


def _init(container: _Container, policy: str) -> ContainerSpec:
    if container.restart_policy == ALWAYS:
        return _container(container, Role.SIDECAR, ALWAYS)
    return _container(container, Role.INIT, NEVER if policy == NEVER else ON_FAILURE)


def _container(container: _Container, role: Role, restart: str) -> ContainerSpec:
    environment = {"PATH": PATH}
    for variable in container.env or ():
        environment[variable.name] = _expanded(variable.value or "", environment)
    words = [*container.command, *(container.args or ())] if container.command else SLEEP
    command = tuple(_expanded(word, environment) for word in words)
    return ContainerSpec(container.name, role, command, environment, restart)


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does; an unknown name stays unchanged."""
    return _VARIABLE.sub(lambda found: environment.get(found[1], found[0]), text)


def due(pod: PodRun, live: frozenset[str], ended: Mapping[str, Ended]) -> Iterator[ContainerSpec]:
    """Yield the containers to start now: init containers one after the other, then all others at once."""
    for spec in pod.containers:
        if spec.name in live:
            if spec.role is Role.INIT:
                return
            continue
        end = ended.get(spec.name)
        if spec.role is Role.INIT and end and end.code == 0:
            continue
        if end is None or spec.runs_again(end.code):
            yield spec
        if spec.role is not Role.MAIN:  # the next container waits until this one has ended or started
            return


def final_phase(pod: PodRun, live: frozenset[str], ended: Mapping[str, Ended]) -> str | None:
    """Return Succeeded or Failed once no container of a pod will run again, else None."""
    failed = [ended[spec.name] for spec in pod.containers if spec.role is Role.INIT and spec.name in ended]
    if any(end.code != 0 for end in failed) and not _any_again(pod, Role.INIT, ended):
        return "Failed"
    main = [spec for spec in pod.containers if spec.role is Role.MAIN]
    if any(spec.name in live or spec.name not in ended for spec in main) or _any_again(pod, Role.MAIN, ended):
        return None
    return "Succeeded" if all(ended[spec.name].code == 0 for spec in main) else "Failed"


def _any_again(pod: PodRun, role: Role, ended: Mapping[str, Ended]) -> bool:
    return any(
        spec.runs_again(ended[spec.name].code)
        for spec in pod.containers
        if spec.role is role and spec.name in ended
    )
