"""CPU and memory of a pod's containers, and which containers are eligible for claims."""

from __future__ import annotations

from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import (
    CMK_RESOURCES,
    GATE_CONTAINER,
    ISOLATED_CORES,
    NEAR_CPUS,
    NUMA_CPUS,
    WHOLE_CORES,
)
from pinning.errors import BadQuantity, Cause
from pinning.lazy import lazy
from pinning.machine.cpuset import MAX_CPU
from pinning.pods.quantity import parse_quantity, whole
from pinning.truncate import NAME, VALUE, truncate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from fractions import Fraction

    from pinning.pods.quantity import RawQuantity
    from pinning.pods.types import Container, Pod, ResourceList, ResourceRequirements

COMPUTE = ("cpu", "memory")
CORE_RESOURCES = frozenset({*CMK_RESOURCES, ISOLATED_CORES, WHOLE_CORES, NUMA_CPUS})
READ = CORE_RESOURCES | frozenset(COMPUTE)
_OUR_DOMAIN: Final = ".corepin.io"
_NATIVE: Final = (
    "kubernetes.io/"  # the API server takes every name that contains it for a resource of its own
)
MOST_CPUS: Final = MAX_CPU + 1
DEVICES: Final = (
    "any.device/any"  # stands for all limits of a container that name devices; its amount is their number
)
MOST_DEVICES: Final = 256  # limits of a container that are read as devices


class Role(StrEnum):
    """The part of a pod's life in which a container runs."""

    INIT = "init"  # runs to completion before the next one starts
    SIDECAR = "sidecar"  # an init container with restartPolicy Always: runs as long as the pod
    MAIN = "main"


class _Placed(NamedTuple):
    name: str
    role: Role
    kind: str  # its list in the spec: "initContainers"
    at: int
    container: Container


class Member(_Placed):
    """One container of a pod with its place in the document; its resources are read on demand.

    A tuple, because one is created per container and review, and a frozen dataclass costs three times as much.
    """

    @lazy
    def limits(self) -> ResourceList:
        """Return the valid limits of CPU, memory and the extended resources that corepin counts."""
        return _readable((self.container.get("resources") or {}).get("limits"))

    @lazy
    def requests(self) -> ResourceList:
        """Return the valid requests of these resources; an absent request is equal to the limit."""
        resources = self.container.get("resources") or {}
        requested = resources.get("requests")
        if requested == resources.get("limits"):
            return self.limits
        return {**self.limits, **_readable(requested)}

    @lazy
    def cores(self) -> tuple[str, ...]:
        """Return the CMK resources that the container requests; only the first one has an effect."""
        resources = self.container.get("resources") or {}
        requested, limited = resources.get("requests") or {}, resources.get("limits") or {}
        if requested.keys().isdisjoint(CMK_RESOURCES) and limited.keys().isdisjoint(CMK_RESOURCES):
            return ()
        return tuple([resource for resource in CMK_RESOURCES if resource in self.requests])

    @lazy
    def called(self) -> str:
        """Return the name for messages."""
        return truncate(self.name, NAME)

    @property
    def is_gate(self) -> bool:
        """Return whether the container is corepin's gate, which waits until the other containers have their CPUs."""
        return self.name == GATE_CONTAINER and self.role is Role.INIT

    @property
    def path(self) -> str:
        """The place as a field path: "spec.initContainers[0]"."""
        return f"spec.{self.kind}[{self.at}]"

    @property
    def pointer(self) -> str:
        """The place as a JSON pointer: "/spec/initContainers/0"."""
        return f"/spec/{self.kind}/{self.at}"


def members(pod: Pod) -> tuple[Member, ...]:
    """Return init containers and containers in start order, without ephemeral ones."""
    spec = pod.get("spec") or {}
    first = [
        Member(container.get("name") or "", _init_role(container), "initContainers", at, container)
        for at, container in enumerate(spec.get("initContainers") or ())
    ]
    main = [
        Member(container.get("name") or "", Role.MAIN, "containers", at, container)
        for at, container in enumerate(spec.get("containers") or ())
    ]
    return (*first, *main)


def _init_role(container: Container) -> Role:
    return Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT


def _readable(given: ResourceList | None) -> ResourceList:
    if not given:
        return {}
    return {name: value for name, value in given.items() if is_read(name) and is_quantity(value)}


def is_read(resource: str) -> bool:
    """Return whether a resource of a container is read: CPU, memory, and the extended ones that corepin counts."""
    return resource in READ or resource.startswith(NEAR_CPUS)


def is_quantity(value: RawQuantity) -> bool:
    """Return whether the API server would accept a value as a quantity."""
    try:
        parse_quantity(value)
    except BadQuantity:
        return False
    return True


def unreadable(listed: Iterable[Member]) -> Iterator[Cause]:
    """Yield a cause for every amount of CPU, memory or cores that is not a quantity."""
    for member in listed:
        resources = member.container.get("resources") or {}
        for kind, given, read in (
            ("limits", resources.get("limits"), member.limits),
            ("requests", resources.get("requests"), member.requests),
        ):
            if given and given != read:  # if they are equal, every amount is a quantity
                yield from _unreadable(f"{member.path}.resources.{kind}", given)


def _unreadable(field: str, given: ResourceList) -> Iterator[Cause]:
    for name, value in given.items():
        if is_read(name) and not is_quantity(value):
            yield Cause(f"{field}[{name}]", f"{shown(value)!r} is not a quantity: write e.g. 2, 1500m or 64M")


def whole_cpus(member: Member) -> int | None:
    """Return the CPUs of an eligible container: a whole limit >= 1 equal to the request; else None."""
    limit = member.limits.get("cpu")
    if limit is None or parse_quantity(limit) != parse_quantity(member.requests["cpu"]):
        return None
    count = whole(limit)
    return count if count is not None and count >= 1 else None


def stated(member: Member) -> str:
    """Return a container's CPU limit and request for messages, e.g. "limit 1500m, request 1"."""
    return f"limit {shown(member.limits.get('cpu'))}, request {shown(member.requests.get('cpu'))}"


def shown(value: RawQuantity | None) -> str:
    """Return an amount for messages."""
    return "absent" if value is None else truncate(str(value), VALUE)


def states(member: Member, resource: str) -> bool:
    """Return whether a container names a resource at all; its amounts are not read."""
    resources = member.container.get("resources") or {}
    return resource in (resources.get("requests") or ()) or resource in (resources.get("limits") or ())


def states_compute(member: Member) -> bool:
    """Return whether a container states any amount of CPU or memory, even zero."""
    return any(name in member.requests for name in COMPUTE)


def guarantee_gaps(member: Member) -> tuple[str, ...]:
    """Return the resources of cpu and memory that keep a container from QoS Guaranteed."""
    return tuple(name for name in COMPUTE if not _is_fixed(name, member.requests, member.limits))


def _is_fixed(name: str, requests: Mapping[str, RawQuantity], limits: Mapping[str, RawQuantity]) -> bool:
    limit = _amount(limits.get(name))
    return limit > 0 and _amount(requests.get(name)) == limit


def _amount(value: RawQuantity | None) -> Fraction:
    return parse_quantity(0 if value is None else value)


def count_devices(container: Container) -> int:
    """Return the number of extended resources of other programs, such as device plugins, in a container's limits.

    If the limits have `DEVICES`, its amount is that number.
    """
    limits = (container.get("resources") or {}).get("limits") or {}
    number = limits.get(DEVICES)
    return count_foreign(limits) if number is None or not is_quantity(number) else int(parse_quantity(number))


def count_foreign(amounts: Mapping[str, RawQuantity | None]) -> int:
    """Return the number of other programs' extended resources with an amount; at most MOST_DEVICES names are read."""
    named = (amounts[name] or 0 for name in islice(filter(is_foreign, amounts), MOST_DEVICES))
    return sum(is_quantity(amount) and parse_quantity(amount) > 0 for amount in named)


def names_claims(listed: Iterable[Member]) -> frozenset[str]:
    """Return the containers that name ResourceClaims, for CPUs or for other devices."""
    return frozenset(
        member.name for member in listed if (member.container.get("resources") or {}).get("claims")
    )


def is_foreign(resource: str) -> bool:
    """Return whether a resource is an extended one, and neither corepin's nor CMK's."""
    domain, slash, _ = resource.partition("/")
    is_ours = resource in CORE_RESOURCES or f".{domain}".endswith(_OUR_DOMAIN)
    return bool(slash) and not is_ours and _NATIVE not in resource


def has_any(resources: ResourceRequirements) -> bool:
    """Return whether pod-level resources state any amount."""
    return bool(resources.get("requests") or resources.get("limits"))
