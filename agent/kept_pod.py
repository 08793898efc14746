"""Bounded decoding of pods: only the fields that the agent reads. Pure.

Every user who may create pods chooses their size and their node, so all other fields are skipped while decoding.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, cast

import msgspec

from pinning.contract import (
    ASKING_MARKS,
    CONTAINER_SCOPE,
    CPUMANAGER_LABELS,
    CRANE_CPU_MANAGER,
    CRIO_FOLLOWED,
    EXCLUSIVE_CORES,
    EXCLUSIVE_NON_ISOLCPUS_CORES,
    FILLED_IN,
    ISOLATED_CORES,
    KUBEVIRT_LABEL,
    LIMIT_RANGER,
    MIRROR_POD,
    NEAR_CPUS,
    NUMA_CPUS,
    POD_SCOPE,
    STATUS_CPUS,
    UNTRUSTED_WORKLOAD,
    WHOLE_CORES,
)
from pinning.planning.requests import totals
from pinning.pods.annotations import is_misspelt, is_policy_key
from pinning.pods.budget import filled_in, filled_in_annotation
from pinning.pods.crowd import MOST_CONTAINERS
from pinning.pods.device_claims import MOST_CLAIMS
from pinning.pods.identity import CONFIG_HASH
from pinning.pods.near_counts import MOST_KINDS
from pinning.pods.quantity import RawQuantity
from pinning.pods.resources import DEVICES, READ, count_foreign

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pinning.pods.types import Container, Pod

PODS: Final = "/api/v1/pods"
MOST_STRANGE: Final = 20  # number of reported corepin annotations that name no container
# Number of limits on CPUs near devices that are kept of a container; admission adds at most MOST_KINDS.
MOST_NEAR: Final = 4 * MOST_KINDS
LONGEST_VALUE: Final = 100  # characters of an annotation's value: every valid word is shorter
# Characters of a value that is not ASCII, and so invalid: one such character can make Python store all in four bytes.
LONGEST_FOREIGN: Final = LONGEST_VALUE // 4
# Characters of a status that is not ASCII, as earlier agents wrote: it then takes no more memory than the longest one
# in ASCII (256 KiB).
LONGEST_STATUS: Final = 2**16

logger = logging.getLogger(__name__)


class _Requests(
    msgspec.Struct,
    omit_defaults=True,
    rename={
        "cores": EXCLUSIVE_CORES,
        "others": EXCLUSIVE_NON_ISOLCPUS_CORES,
        "isolated": ISOLATED_CORES,
        "whole": WHOLE_CORES,
        "numa": NUMA_CPUS,
    },
):
    cpu: RawQuantity | None = None
    memory: RawQuantity | None = None
    cores: RawQuantity | None = None
    others: RawQuantity | None = None
    isolated: RawQuantity | None = None
    whole: RawQuantity | None = None
    numa: RawQuantity | None = None


class _NamedClaim(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    request: str | None = None


class _Resources(msgspec.Struct, omit_defaults=True):
    requests: _Requests | None = None
    limits: dict[str, RawQuantity | None] | None = None
    claims: list[_NamedClaim] | None = None


class _Container(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str | None = None
    restart_policy: str | None = None
    resources: _Resources | None = None


class _Selector(
    msgspec.Struct,
    omit_defaults=True,
    rename=dict(zip(("old", "new"), CPUMANAGER_LABELS, strict=True)),
):
    old: str | None = None
    new: str | None = None


class _PodClaim(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str | None = None
    resource_claim_name: str | None = None


class _Spec(msgspec.Struct, omit_defaults=True, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_selector: _Selector | None = None
    resource_claims: list[_PodClaim] | None = None
    resources: _Resources | None = None
    runtime_class_name: str | None = None


class _Labels(msgspec.Struct, omit_defaults=True, rename={"kubevirt": KUBEVIRT_LABEL}):
    kubevirt: str | None = None


class _Meta(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: _Labels | None = None
    annotations: dict[str, str] | None = None


class _Given(msgspec.Struct, omit_defaults=True):
    cpu: RawQuantity | None = None


class _Terminated(msgspec.Struct, omit_defaults=True, rename="camel"):
    reason: str | None = None
    finished_at: str | None = None


class _State(msgspec.Struct, omit_defaults=True):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, omit_defaults=True, rename="camel"):
    name: str | None = None
    allocated_resources: _Given | None = None
    state: _State | None = None
    last_state: _State | None = None
    ready: bool | None = None


class _Status(msgspec.Struct, omit_defaults=True, rename="camel"):
    phase: str | None = None
    allocated_resources: _Given | None = None
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None
    resource_claim_statuses: list[_PodClaim] | None = None


class _Pod(msgspec.Struct, omit_defaults=True):
    metadata: _Meta | None = None
    spec: _Spec | None = None
    status: _Status | None = None


_pod = msgspec.json.Decoder(_Pod)


class PodDecoder:
    """Decodes a pod of the API into a `Pod` with only the fields that are kept."""

    def __init__(self, own_namespace: str = "") -> None:
        """Also keep readiness and termination of containers in `own_namespace`, where corepin itself runs."""
        self._own_namespace = own_namespace

    def decode(self, document: bytes | bytearray | msgspec.Raw, /) -> Pod:
        """Return the kept fields of a pod; raise msgspec.DecodeError."""
        read = _pod.decode(document)
        meta, containers = read.metadata or _Meta(), _containers(read)
        is_crowd = len(containers) > MOST_CONTAINERS
        if read.status and (meta.namespace != self._own_namespace or not self._own_namespace):
            _forget_states(read.status)
        for resources in (read.spec and read.spec.resources, *(it.resources for it in containers)):
            if resources and resources.limits:
                resources.limits = _limits(resources.limits)
        _cut_claims(read)
        if meta.annotations:
            names = set() if is_crowd else {container.name for container in containers}
            kept = dict(_annotations(meta.annotations, names))
            if kept and not is_crowd and read.spec and read.spec.resources:
                kept |= _filled_in(meta.annotations, names)
            meta.annotations = kept or None
        if is_crowd:
            _log_crowd(meta, len(containers))
            return _summed(read)
        return cast("Pod", msgspec.to_builtins(read))


def _cut_claims(pod: _Pod) -> None:
    """Keep the first MOST_CLAIMS claims of a pod and of each container."""
    spec, status = pod.spec or _Spec(), pod.status or _Status()
    if spec.resource_claims is None:
        for container in _containers(pod):
            if container.resources:
                container.resources.claims = None
        return
    spec.resource_claims = spec.resource_claims[:MOST_CLAIMS]
    if status.resource_claim_statuses:
        status.resource_claim_statuses = status.resource_claim_statuses[:MOST_CLAIMS]
    for container in _containers(pod):
        if container.resources and container.resources.claims:
            container.resources.claims = container.resources.claims[:MOST_CLAIMS]


def _forget_states(status: _Status) -> None:
    for container in (*(status.container_statuses or ()), *(status.init_container_statuses or ())):
        container.state = container.last_state = container.ready = None


def _summed(read: _Pod) -> Pod:
    """Return a pod reduced to the sum of its containers' requests; its number of containers stays above the limit."""
    read.status = read.status and _Status(read.status.phase)
    spec = read.spec or _Spec()
    spec.containers, spec.init_containers = _counted(spec.containers), _counted(spec.init_containers)
    kept = cast("Pod", msgspec.to_builtins(read))
    together: Container = {"resources": {"requests": dict(totals(kept))}}
    nothing: Container = {}
    everyone = [together, *[nothing] * MOST_CONTAINERS]
    kept["spec"] = {**(kept.get("spec") or {}), "containers": everyone, "initContainers": None}
    return kept


def _counted(containers: list[_Container] | None) -> list[_Container]:
    return [
        _Container(None, container.restart_policy, container.resources)
        for container in containers or ()
        if container.resources
    ]


def _limits(given: dict[str, RawQuantity | None]) -> dict[str, RawQuantity | None]:
    """Return the limits that the agent reads, with the sum of all limits on devices under the name DEVICES."""
    kept = {name: given[name] for name in given.keys() & READ if given[name] is not None}
    if len(given) == len(kept):
        return kept
    near = [name for name, value in given.items() if name.startswith(NEAR_CPUS) and value is not None]
    kept |= {name: given[name] for name in near[:MOST_NEAR]}
    devices = count_foreign(given)
    return {**kept, DEVICES: devices} if devices else kept


def _containers(pod: _Pod) -> list[_Container]:
    spec = pod.spec or _Spec()
    return (spec.init_containers or []) + (spec.containers or [])


def _annotations(given: dict[str, str], containers: Collection[str | None]) -> Iterator[tuple[str, str]]:
    """Yield the annotations that the agent reads, with at most MOST_STRANGE of those that name no container."""
    strange = 0
    for key, value in given.items():
        if key == STATUS_CPUS:
            yield key, value if value.isascii() or len(value) <= LONGEST_STATUS else _shortened(value)
        elif key in ASKING_MARKS:
            yield key, ""  # only the key matters, as in NRI requests of the runtime
        elif key == UNTRUSTED_WORKLOAD:
            yield key, _shortened(value)
        elif key.partition("/")[0] in CRIO_FOLLOWED:
            if key in CRIO_FOLLOWED or key.partition("/")[2] in containers:
                yield key, _shortened(value)
        elif key in {MIRROR_POD, CONFIG_HASH} or is_policy_key(key):
            strange += _is_strange(key, containers)
            if strange <= MOST_STRANGE or not _is_strange(key, containers):
                yield key, _shortened(value)


def _shortened(value: str) -> str:
    """Truncate a value to a length at which it is still invalid, because its first characters may be a valid policy."""
    if value.isascii():
        return value[:LONGEST_VALUE]
    return value if len(value) <= LONGEST_FOREIGN else f"{value[: LONGEST_FOREIGN - 1]}…"


def _filled_in(given: dict[str, str], containers: Collection[str | None]) -> dict[str, str]:
    """Return LimitRanger's annotation, completed with the containers that the webhook's own annotation records."""
    if LIMIT_RANGER not in given and FILLED_IN not in given:
        return {}
    named = filled_in({"metadata": {"annotations": given}})
    found = [name for name in named if name in containers]
    return {LIMIT_RANGER: filled_in_annotation(found)} if found else {}


def _is_strange(key: str, containers: Collection[str | None]) -> bool:
    scope = key.partition("/")[2]
    is_whole = scope == POD_SCOPE or key in {MIRROR_POD, CONFIG_HASH, CRANE_CPU_MANAGER}
    return is_misspelt(key) or (not is_whole and scope.removeprefix(CONTAINER_SCOPE) not in containers)


def _log_crowd(meta: _Meta, containers: int) -> None:
    facts = {
        "pod": f"{meta.namespace}/{meta.name}",
        "containers": containers,
        "remedy": f"give it at most {MOST_CONTAINERS}",
    }
    logger.warning("pod has too many containers to be read", extra={"facts": facts})
