"""Texts about the ResourceClaims that hold the CPUs of containers, for dashboard and commands."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pinning.errors import BadCPUList
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from published.pod_status import Container, PodClaim

_UNITS: Final = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))  # units of ages, each with its seconds


def claim_words(container: Container) -> Iterator[str]:
    """Yield a text about the ResourceClaims that hold a container's CPUs; yield nothing if it has no such claim."""
    if container.claims:
        nodes = _listed(container.numa_nodes or ())
        place = f"NUMA node{'s' * (len(container.numa_nodes or ()) != 1)} {nodes or 'not known'}"
        facts = ", ".join((*_number_of(container.cpus), place))
        is_one = len(container.claims) + container.more_claims == 1
        yield f"of claim{'s' * (not is_one)} {claim_names(container)} ({facts})"


def claim_names(container: Container) -> str:
    """Return a text with the names of a container's ResourceClaims, and the number of further ones."""
    named = ", ".join(container.claims)
    return f"{named} and {container.more_claims} more" if container.more_claims else named


def _number_of(cpus: str) -> tuple[str, ...]:
    """Return the number of CPUs in a CPU list as text, "2 CPUs"; empty for an invalid list, as users may write it."""
    with suppress(BadCPUList):
        count = len(CPUSet.parse(cpus))
        return (f"{count} CPU{'s' * (count != 1)}",)
    return ()


def resource_claim_words(claim: PodClaim, now: datetime | None) -> str:
    """Return a text about a claim's CPUs, held and requested: "12 CPUs (asked for 11), numa 0, prepared 3 s ago"."""
    amount = f"{claim.cpus} CPU{'s' * (claim.cpus != 1)}"
    if claim.asked is not None and claim.asked != claim.cpus:
        amount = f"{amount} (asked for {claim.asked})"
    place = f"numa {_listed(claim.numa_nodes) or 'not known'}"
    return f"{amount}, {place}, {_prepared(claim, now)}"


def _prepared(claim: PodClaim, now: datetime | None) -> str:
    if claim.waits:
        return "not prepared yet"
    if not claim.prepared:
        return "prepared"
    with suppress(ValueError, TypeError):  # a user may have written the annotation
        seconds = int((now - datetime.fromisoformat(claim.prepared)).total_seconds()) if now else -1
        if seconds >= 0:
            number, unit = next(
                ((seconds // size, name) for name, size in _UNITS if seconds >= size), (0, "s")
            )
            return f"prepared {number} {unit} ago"
    return f"prepared at {claim.prepared}"


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
