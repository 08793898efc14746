"""Defaults of a VMI spec, applied to a copy as KubeVirt's mutating webhook does.

In a cluster a VMI already has its defaults when a validator sees it; offline input and templates do not.
Source: KubeVirt's pkg/defaults/defaults.go. Only the defaults that CPU and memory rules read are copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final, cast

from pinning.contract import EVEN_PARITY
from pinning.pods.quantity import RawQuantity, parse_quantity, rounded_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.kubevirt.types import CPU, Domain, Memory, VMISpec
    from pinning.pods.types import ResourceRequirements

ARM64: Final = "arm64"
BUILT_IN_CPU_REQUEST: Final = (
    "100m"  # KubeVirt writes the cluster's cpuRequest into a VMI only if it differs from this
)
AMOUNTS_DEPTH: Final = 2  # levels below the domain that contain amounts, e.g. resources.requests
MAX_HOTPLUG_VCPUS: Final = 512  # KubeVirt's bound for the default of maxSockets, in vCPUs


@dataclass(frozen=True, slots=True)
class KubeVirtSettings:
    """The settings of the cluster's KubeVirt object that affect CPUs."""

    architecture: str = "amd64"
    live_update: bool = True  # rollout strategy LiveUpdate; False is Stage
    max_cpu_sockets: int | None = None
    max_hotplug_ratio: int = 4
    cpu_request: str = BUILT_IN_CPU_REQUEST
    cpu_model: str = "host-model"
    # The gate AlignCPUs is on and the KubeVirt object has the even-parity annotation.
    even_parity: bool = False


def vcpu_count(cpu: CPU | None) -> int:
    """Return the product of the non-zero values of sockets, cores and threads; 0 if all are zero."""
    cpu = cpu or {}
    given = [count for count in (cpu.get("sockets"), cpu.get("cores"), cpu.get("threads")) if count]
    return prod(given) if given else 0


def copied(domain: Domain | None) -> Domain:
    """Return a copy of a domain with its amounts and counts; lists of any length are shared."""
    return cast("Domain", _copied(domain or {}, AMOUNTS_DEPTH))


def defaulted(spec: VMISpec, settings: KubeVirtSettings) -> VMISpec:
    """Return a copy of a VMI's spec with all defaults; idempotent. Raise BadQuantity for an unreadable amount.

    KubeVirt does not default model and maxSockets in templates; no rule depends on the difference.
    """
    result: VMISpec = {**spec, "domain": copied(spec.get("domain"))}
    result["architecture"] = spec.get("architecture") or settings.architecture
    domain = _domain(result)
    _default_cpu_request(domain, settings)
    _default_guest_memory(domain)
    _default_topology(domain)
    _default_model(result, settings)
    _default_max_sockets(result, settings)
    return result


def _copied(part: Mapping[str, Any], depth: int) -> dict[str, Any]:
    return {
        key: _copied(value, depth - 1) if depth and isinstance(value, dict) else value
        for key, value in part.items()
    }


def has_even_parity(spec: VMISpec, annotations: Mapping[str, str], settings: KubeVirtSettings) -> bool:
    """Return whether the VMI has the even-parity annotation, its own or the cluster's."""
    cpu = (spec.get("domain") or {}).get("cpu") or {}
    return EVEN_PARITY in annotations or (settings.even_parity and bool(cpu.get("isolateEmulatorThread")))


def _default_cpu_request(domain: Domain, settings: KubeVirtSettings) -> None:
    requests = _resources(domain).get("requests") or {}
    _, limit = _request_and_limit(domain, "cpu")
    if limit is not None and not _is_zero(limit) and _is_zero(requests.get("cpu")):
        requests["cpu"] = limit
    elif requests.get("cpu") is None and _wants_cluster_request(domain, settings):
        requests["cpu"] = settings.cpu_request
    _resources(domain)["requests"] = requests


def _wants_cluster_request(domain: Domain, settings: KubeVirtSettings) -> bool:
    differs = parse_quantity(settings.cpu_request) != parse_quantity(BUILT_IN_CPU_REQUEST)
    return differs and not _cpu(domain).get("dedicatedCpuPlacement")


def _default_guest_memory(domain: Domain) -> None:
    memory = _memory(domain)
    if memory.get("guest") is not None:
        return
    hugepages = memory.get("hugepages") or {}
    given = (amount for amount in _request_and_limit(domain, "memory") if not _is_zero(amount))
    memory["guest"] = next(given, hugepages.get("pageSize"))


def _default_topology(domain: Domain) -> None:
    cpu = _cpu(domain)
    if vcpu_count(cpu):
        return
    request, limit = _request_and_limit(domain, "cpu")
    fallback = 1 if request is None else request
    cpu["sockets"] = max(rounded_up(fallback if limit is None else limit), 0)
    cpu["cores"] = cpu["threads"] = 1


def _default_model(spec: VMISpec, settings: KubeVirtSettings) -> None:
    cpu = _cpu(_domain(spec))
    if not cpu.get("model"):
        cpu["model"] = "host-passthrough" if spec.get("architecture") == ARM64 else settings.cpu_model


def _default_max_sockets(spec: VMISpec, settings: KubeVirtSettings) -> None:
    cpu = _cpu(_domain(spec))
    if settings.live_update and spec.get("architecture") != ARM64 and not cpu.get("maxSockets"):
        cpu["maxSockets"] = _max_sockets(cpu, settings)


def _max_sockets(cpu: CPU, settings: KubeVirtSettings) -> int:
    sockets = cpu.get("sockets") or 0
    if settings.max_cpu_sockets:
        return max(settings.max_cpu_sockets, sockets)
    wanted = sockets * settings.max_hotplug_ratio
    per_socket = (cpu.get("cores") or 1) * (cpu.get("threads") or 1)
    return (
        wanted if wanted * per_socket <= MAX_HOTPLUG_VCPUS else max(MAX_HOTPLUG_VCPUS // per_socket, sockets)
    )


def _request_and_limit(domain: Domain, resource: str) -> tuple[RawQuantity | None, RawQuantity | None]:
    resources = _resources(domain)
    return (resources.get("requests") or {}).get(resource), (resources.get("limits") or {}).get(resource)


def _is_zero(amount: RawQuantity | None) -> bool:
    return amount is None or parse_quantity(amount) == 0


def _domain(spec: VMISpec) -> Domain:
    domain: Domain = spec.get("domain") or {}
    spec["domain"] = domain
    return domain


def _cpu(domain: Domain) -> CPU:
    cpu: CPU = domain.get("cpu") or {}
    domain["cpu"] = cpu
    return cpu


def _memory(domain: Domain) -> Memory:
    memory: Memory = domain.get("memory") or {}
    domain["memory"] = memory
    return memory


def _resources(domain: Domain) -> ResourceRequirements:
    resources: ResourceRequirements = domain.get("resources") or {}
    domain["resources"] = resources
    return resources
