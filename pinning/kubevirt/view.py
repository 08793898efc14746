"""Parsed numbers of a VMI spec, shared by the rules.

An unreadable number is reported as a cause and removed from the spec, so that no rule reports a consequence of it.
Readable specs are validated in `rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pinning.errors import BadQuantity, Cause
from pinning.kubevirt.defaults import KubeVirtSettings, copied, vcpu_count
from pinning.pods.quantity import RawQuantity, millicores, parse_quantity, rounded_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pinning.kubevirt.types import CPU, Domain, Memory, VMISpec

INVALID: Final = "FieldValueInvalid"
NOT_SUPPORTED: Final = "FieldValueNotSupported"
REQUIRED: Final = "FieldValueRequired"

MAX_COUNT: Final = 2**32 - 1  # KubeVirt's counts are uint32

TOPOLOGY: Final = ("cpu.sockets", "cpu.cores", "cpu.threads", "cpu.maxSockets")
POOL_COUNT: Final = "ioThreads.supplementalPoolThreadCount"
CPU_AMOUNTS: Final = ("resources.requests.cpu", "resources.limits.cpu")
MEMORY_AMOUNTS: Final = (
    "resources.requests.memory",
    "resources.limits.memory",
    "memory.guest",
    "memory.maxGuest",
)
PAGE_SIZE: Final = "memory.hugepages.pageSize"


@dataclass(frozen=True, slots=True)
class Amount:
    """One quantity: as written, and rounded up to whole units and to thousandths as in KubeVirt."""

    text: str
    value: int
    milli: int

    @classmethod
    def of(cls, raw: RawQuantity | None) -> Amount:
        """Read a quantity; an absent one is zero."""
        return cls(shortened(raw), rounded_up(raw or 0), millicores(raw or 0))

    @property
    def is_whole(self) -> bool:
        """Return whether it is an integer: "2" and "2000m" are."""
        return self.value * 1000 == self.milli


@dataclass(frozen=True, slots=True)
class VMIView:
    """One readable VMI spec; `root` is its path in the object, ending with a dot."""

    root: str
    spec: VMISpec
    settings: KubeVirtSettings

    @property
    def domain(self) -> Domain:
        """Return `spec.domain` of the machine."""
        return self.spec.get("domain") or {}

    @property
    def cpu(self) -> CPU:
        """Return the guest's CPUs."""
        return self.domain.get("cpu") or {}

    @property
    def architecture(self) -> str:
        """Return the guest's architecture, empty if none has been chosen yet."""
        return self.spec.get("architecture") or ""

    @property
    def is_dedicated(self) -> bool:
        """Return whether dedicated CPUs are requested for the vCPUs."""
        return bool(self.cpu.get("dedicatedCpuPlacement"))

    @property
    def vcpus(self) -> int:
        """Return the number of vCPUs."""
        return vcpu_count(self.cpu)

    @property
    def passes_numa_through(self) -> bool:
        """Return whether the guest gets the NUMA topology of the host."""
        return (self.cpu.get("numa") or {}).get("guestMappingPassthrough") is not None

    @property
    def has_hugepages(self) -> bool:
        """Return whether huge pages are requested."""
        return self.memory.get("hugepages") is not None

    @property
    def memory(self) -> Memory:
        """Return the guest's memory."""
        return self.domain.get("memory") or {}

    def request(self, resource: str) -> Amount:
        """Return requests[resource]."""
        return Amount.of(((self.domain.get("resources") or {}).get("requests") or {}).get(resource))

    def limit(self, resource: str) -> Amount:
        """Return limits[resource]."""
        return Amount.of(((self.domain.get("resources") or {}).get("limits") or {}).get(resource))

    def cause(self, path: str, message: str, reason: str = INVALID) -> Cause:
        """Return a cause for the field at `path` below `spec.domain`."""
        return Cause(f"{self.root}domain.{path}", message, reason)


def unreadable(domain: Domain) -> dict[str, str]:
    """Return unreadable values in a fixed order: their path below `spec.domain`, and the message that follows it."""
    found = {path: _count_problem(find(domain, path)) for path in (*TOPOLOGY, POOL_COUNT)}
    found |= {path: _cpu_problem(find(domain, path)) for path in CPU_AMOUNTS}
    found |= {path: _amount_problem(find(domain, path)) for path in MEMORY_AMOUNTS}
    if find(domain, "memory.hugepages") is not None:
        found[PAGE_SIZE] = _page_problem(find(domain, PAGE_SIZE))
    if not any(found[path] for path in TOPOLOGY) and vcpu_count(domain.get("cpu")) > MAX_COUNT:
        found["cpu"] = f"has more than {MAX_COUNT} vCPUs: set smaller sockets, cores or threads"
    return {path: message for path, message in found.items() if message}


def readable(spec: VMISpec, bad: Collection[str]) -> VMISpec:
    """Return a copy of the spec without the unreadable values and the values that depend on them."""
    domain = copied(spec.get("domain"))
    if not {*TOPOLOGY, "cpu"}.isdisjoint(bad):
        bad = {*bad, *TOPOLOGY} - {"cpu"}  # a partial topology would be validated as if it were complete
    for path in bad:
        parent, _, key = path.rpartition(".")
        # An unreadable number of I/O threads is replaced by 1, so that no rule reports it as missing too.
        cast("dict[str, Any]", find(domain, parent))[key] = 1 if path == POOL_COUNT else None
    return {**spec, "domain": domain}


def find(node: Mapping[str, object], path: str) -> object:
    """Return the value at a dotted path, None if there is none."""
    value: object = node
    for key in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def shortened(value: object) -> str:
    """Return a user's value as text, truncated for messages."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:  # str() raises for very long integers
        return f"a number of {value.bit_length()} bits"
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _count_problem(value: object) -> str:
    if value is None or (type(value) is int and 0 <= value <= MAX_COUNT):
        return ""
    return f"is {shortened(value)}; set a whole number between 0 and {MAX_COUNT}, or leave it out"


def _amount_problem(value: object) -> str:
    if value is None:
        return ""
    try:
        parse_quantity(cast("RawQuantity", value))
    except (BadQuantity, TypeError):  # TypeError: a list or an object
        return f"is {shortened(value)!r}, which is not a quantity: set one such as 2, 1500m or 1Gi"
    return ""


def _cpu_problem(value: object) -> str:
    problem = _amount_problem(value)
    if problem or value is None or abs(parse_quantity(cast("RawQuantity", value))) <= MAX_COUNT:
        return problem
    return f"is {shortened(value)}, more CPUs than KubeVirt can count: set at most {MAX_COUNT}"


def _page_problem(value: object) -> str:
    if value is not None and not _amount_problem(value) and parse_quantity(cast("RawQuantity", value)) > 0:
        return ""
    return f"is {shortened(value)}, which is not a page size: set one that the nodes have, for example 2Mi or 1Gi"
