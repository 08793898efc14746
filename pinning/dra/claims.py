"""ResourceClaims with CPUs of this node: what the scheduler allocated, and the CPUs that the ledger holds for them.

A claim has a part for each allocation result of corepin's driver. Amounts are those that the scheduler consumed, which
are the amounts of the request, rounded up to whole cores.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pinning.contract import CDI_KIND, CDI_PREFIX, DRA_CAPACITY, DRA_DRIVER
from pinning.errors import BadContract, BadQuantity
from pinning.machine.cpuset import CPUSet, union
from pinning.pods.quantity import parse_quantity, rounded_up
from pinning.pods.resources import MOST_CPUS
from pinning.truncate import VALUE, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_RESULTS: Final = 32  # results of one claim, by the API's own limit
LONGEST_NODE: Final = 253  # characters of a node's name, by the API's own limit
MOST_PODS: Final = 256  # pods in `reservedFor`, by the API's own limit
# Prefix of the annotations of claims that the scheduler makes for the extended resource of a DeviceClass; the pod does
# not name these claims.
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-"
# Uid of a claim, which becomes part of a file's name.
_UID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CDI_DEVICE: Final = re.compile(f"{re.escape(CDI_KIND)}={CDI_PREFIX}({_UID.pattern})-(.+)")
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")  # name of a request or device: a DNS label


def is_uid(text: str) -> bool:
    """Return whether a text is a uid as the API server gives them."""
    return bool(_UID.fullmatch(text))


def device_name(uid: str, request: str) -> str:
    """Return the name of the CDI device of a request."""
    return f"{CDI_PREFIX}{uid}-{request}"


def claimed_by(cdi_device: str) -> tuple[str, str] | None:
    """Return claim and request of a CDI device, None for devices of other drivers."""
    match = _CDI_DEVICE.fullmatch(cdi_device)
    return (match[1], match[2]) if match else None


@dataclass(frozen=True, slots=True)
class ClaimPart:
    """One allocation result of corepin's driver: CPUs of one device for one request."""

    request: str
    device: str
    share: str  # id of the share, which the kubelet gets
    count: int  # number of CPUs


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """An allocated ResourceClaim; without parts it has no device of this driver."""

    uid: str
    namespace: str
    name: str
    pods: frozenset[str]  # uids of the pods that may use it
    parts: tuple[ClaimPart, ...] = ()
    # Number of CPUs that its requests name, before the scheduler rounds it up; None: not known.
    asked: int | None = None
    elsewhere: str = ""  # another node, if the claim has devices of this driver there and none here

    @property
    def full_name(self) -> str:
        """The claim's name in messages: namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def count(self) -> int:
        """Number of CPUs of all parts together."""
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class ClaimGrant:
    """The CPUs that the ledger holds for a claim, for each of its parts."""

    claim: DeviceClaim
    cpus: tuple[CPUSet, ...]
    # Whether the kubelet prepared the claim: then the grant stays until the kubelet has unprepared it.
    is_prepared: bool = False

    @property
    def footprint(self) -> CPUSet:
        """CPUs of all parts of the claim."""
        return union(self.cpus)

    def of(self, request: str) -> CPUSet:
        """Return the CPUs of one request, or of the whole claim if the name is empty."""
        return union(
            cpus
            for part, cpus in zip(self.claim.parts, self.cpus, strict=True)
            if request in ("", part.request)
        )

    @property
    def flaw(self) -> str:
        """A message saying what is inconsistent in the grant itself; empty if nothing is."""
        if len(self.cpus) != len(self.claim.parts) or not all(self.cpus):
            return "a part of the claim has no CPUs"
        return "" if sum(map(len, self.cpus)) == len(self.footprint) else "two parts hold the same CPUs"


class ClaimTimes(NamedTuple):
    """When a claim got its CPUs and when the kubelet prepared it; RFC 3339 in UTC."""

    prepared: str = ""  # time of its Prepare; empty: not prepared, or before this agent started
    since: str = ""  # time since which it has CPUs and waits for the kubelet; empty: it does not wait
    tries: int = 0  # number of reminders to the kubelet since then


@dataclass(frozen=True, slots=True)
class SeenClaims:
    """The claims of this node at one moment, for the agent as their driver."""

    # Allocated claims by uid.
    known: Mapping[str, DeviceClaim] = field(default_factory=lambda: MappingProxyType({}))
    # Claims of any driver that the agent has tried to read: namespace, name, and the uid of a pod that named it then.
    read: frozenset[tuple[str, str, str]] = frozenset()
    prepared: frozenset[str] = frozenset()  # uids of claims whose Prepare the kubelet has called
    released: frozenset[str] = frozenset()  # uids of claims whose Unprepare the kubelet has called
    # Claims that an earlier agent prepared, for an agent without a checkpoint.
    found: tuple[ClaimGrant, ...] = ()
    # Times of each claim, by uid.
    times: Mapping[str, ClaimTimes] = field(default_factory=lambda: MappingProxyType({}))
    # Why claims cannot be read or served, with the remedy; by namespace and name.
    problems: Mapping[tuple[str, str], str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class BadClaim:
    """Why the driver does not serve a claim, with the remedy."""

    message: str


def read_claim(document: object, node: str) -> DeviceClaim | BadClaim:
    """Return a ResourceClaim of the API with its parts on this node; results of other drivers are skipped."""
    try:
        return _read(_mapping(document, "the ResourceClaim"), node)
    except BadContract as problem:
        return BadClaim(str(problem))


def _read(document: Mapping[str, Any], node: str) -> DeviceClaim:
    meta = _mapping(document.get("metadata"), "metadata")
    status = _mapping(document.get("status") or {}, "status")
    allocation = status.get("allocation")
    devices = _mapping(_mapping(allocation or {}, "status.allocation").get("devices") or {}, "devices")
    results = _list(devices.get("results"), "status.allocation.devices.results", MOST_RESULTS)
    parts = tuple(_parts(results, node))
    if parts:
        _refuse_extended(meta)
        _refuse_parameters(_list(devices.get("config"), "status.allocation.devices.config", 2 * MOST_RESULTS))
    pods = _list(status.get("reservedFor"), "status.reservedFor", MOST_PODS)
    return DeviceClaim(
        uid=_matching(meta.get("uid"), _UID, "metadata.uid"),
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        pods=frozenset(str(it["uid"]) for it in pods if it.get("resource") == "pods" and it.get("uid")),
        parts=parts,
        asked=_asked(document.get("spec"), results, node) if parts else None,
        elsewhere="" if parts else _other_node(results),
    )


def _asked(spec: object, results: list[Mapping[str, Any]], node: str) -> int | None:
    """Return the number of CPUs in the requests of this driver's results; None if one of them has no valid amount."""
    named = dict(_amounts(spec))
    amounts = [named.get(str(it.get("request"))) for it in results if _is_ours(it, node)]
    return None if None in amounts else sum(amount for amount in amounts if amount)


def _amounts(spec: object) -> Iterator[tuple[str, int]]:
    """Yield the name of each request of a claim, and of each alternative, with its amount rounded up to whole CPUs."""
    devices = spec.get("devices") if isinstance(spec, Mapping) else None
    listed = devices.get("requests") if isinstance(devices, Mapping) else None
    for request in listed if isinstance(listed, list) else ():
        if isinstance(request, Mapping):
            yield from _amount(str(request.get("name")), request.get("exactly"))
            others = request.get("firstAvailable")
            for other in others if isinstance(others, list) else ():
                if isinstance(other, Mapping):
                    yield from _amount(f"{request.get('name')}/{other.get('name')}", other)


def _amount(name: str, request: object) -> Iterator[tuple[str, int]]:
    capacity = request.get("capacity") if isinstance(request, Mapping) else None
    amounts = capacity.get("requests") if isinstance(capacity, Mapping) else None
    if isinstance(amounts, Mapping) and DRA_CAPACITY in amounts:
        with suppress(BadQuantity, TypeError):
            if abs(count := rounded_up(amounts[DRA_CAPACITY])) <= MOST_CPUS:
                yield name, count


def _is_ours(result: Mapping[str, Any], node: str) -> bool:
    return bool(result.get("driver") == DRA_DRIVER and result.get("pool") == node)


def _other_node(results: list[Mapping[str, Any]]) -> str:
    """Return the node of the first result of this driver, whose pools are named after nodes; empty without such a result."""
    pools = (str(it.get("pool") or "") for it in results if it.get("driver") == DRA_DRIVER)
    return truncate(next(pools, ""), LONGEST_NODE)


def _parts(results: list[Mapping[str, Any]], node: str) -> Iterator[ClaimPart]:
    for result in results:
        if _is_ours(result, node):
            if result.get("adminAccess"):
                raise BadContract("adminAccess is not served for CPUs: remove it from the request")
            yield ClaimPart(
                request=_matching(
                    str(result.get("request")).partition("/")[0], _NAME, "the name of a request"
                ),
                device=_matching(result.get("device"), _NAME, "the name of a device"),
                share=str(result.get("shareID") or "")[:VALUE],
                count=_consumed(result.get("consumedCapacity")),
            )


def _consumed(given: object) -> int:
    """Return the CPUs that the scheduler consumed for a result."""
    if not isinstance(given, Mapping) or DRA_CAPACITY not in given:
        raise BadContract(
            f"the allocation has no consumedCapacity of {DRA_CAPACITY}: switch on the feature gate"
            " DRAConsumableCapacity of API server and scheduler, then create the claim again"
        )
    amount = given[DRA_CAPACITY]
    try:
        count = rounded_up(amount)
        is_amount = 1 <= count <= MOST_CPUS and parse_quantity(amount) > 0
    except (BadQuantity, TypeError):  # TypeError: the value has another type
        is_amount = False
    if not is_amount:
        shown = truncate(str(amount), VALUE)
        raise BadContract(f"{shown} of {DRA_CAPACITY} was consumed: 1 to {MOST_CPUS} CPUs can be given")
    return count


def _refuse_extended(meta: Mapping[str, Any]) -> None:
    if any(str(key).startswith(_EXTENDED) for key in _mapping(meta.get("annotations") or {}, "annotations")):
        raise BadContract(
            "the scheduler made this claim for an extended resource, which is not served for CPUs: name a"
            f" ResourceClaim of class {DRA_DRIVER} in the pod instead"
        )


def _refuse_parameters(config: list[Mapping[str, Any]]) -> None:
    for entry in config:
        if _mapping(entry.get("opaque") or {}, "opaque").get("driver") == DRA_DRIVER:
            raise BadContract(f"driver {DRA_DRIVER} has no parameters: remove them from the claim")


def _mapping(given: object, what: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise BadContract(f"{what} is not an object: {truncate(repr(given), VALUE)}")
    return given


def _list(given: object, what: str, most: int) -> list[Mapping[str, Any]]:
    listed = given or []
    if not isinstance(listed, list) or len(listed) > most:
        raise BadContract(f"{what} is not a list of at most {most}: {truncate(repr(given), VALUE)}")
    return [_mapping(item, f"an item of {what}") for item in listed]


def _matching(given: object, pattern: re.Pattern[str], what: str) -> str:
    if not isinstance(given, str) or not pattern.fullmatch(given):
        raise BadContract(f"{what} is {truncate(repr(given), VALUE)}, which no valid API object has")
    return given
