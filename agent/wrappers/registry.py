"""Which wrapper has which whole cores of its own container. Pure and immutable: a change is a new registry.

A container's cores are what the ledger gave it; here they are lent to its processes, one at a time. What a container
holds is decided elsewhere, and nothing here reaches beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from agent.wrappers.errors import Denied
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from agent.wrappers.wants import Want
    from pinning.planning.observed import Owner

MOST_CLAIMS = 1024  # of one container: each holds a descriptor of the agent's


class Process(NamedTuple):
    """One process of the host; its number alone may be another's tomorrow."""

    pid: int
    started: int  # in ticks since boot


class OwnCore(NamedTuple):
    """What a container owns of one core."""

    package: int
    cpus: CPUSet


class Holder(NamedTuple):
    """The container whose cores a wrapper takes."""

    id: str
    owner: Owner
    name: str  # namespace/pod/container


@dataclass(frozen=True, slots=True)
class Claim:
    """What one wrapper has."""

    process: Process
    holder: Holder
    want: Want
    cpus: CPUSet = EMPTY  # of its container's own; empty in a pool that all share


@dataclass(frozen=True)
class Registry:
    """Every live claim of the node."""

    claims: Mapping[Process, Claim] = field(default_factory=lambda: MappingProxyType({}))

    def __iter__(self) -> Iterator[Claim]:
        """Yield the claims by process."""
        for process in sorted(self.claims):
            yield self.claims[process]

    def __len__(self) -> int:
        return len(self.claims)

    def of(self, process: Process) -> Claim | None:
        """Return what a process has."""
        return self.claims.get(process)

    def of_container(self, container_id: str) -> tuple[Claim, ...]:
        """Return the claims in one container, by process."""
        return tuple(claim for claim in self if claim.holder.id == container_id)

    def take(self, process: Process, holder: Holder, want: Want, own: Sequence[OwnCore]) -> Registry:
        """Give a process what it wants of its container's cores `own`; raise Denied.

        One that has that already keeps it. One that wants something else gives back what it has, if it gets that.
        """
        held = self.of(process)
        if held and (held.holder, held.want) == (holder, want) and held.cpus <= _cpus(own):
            return self
        others = [claim for claim in self.of_container(holder.id) if claim.process != process]
        if len(others) >= MOST_CLAIMS:
            raise Denied(f"this container runs {len(others)} wrappers, and may run no more at a time")
        cpus = _take(own, want, others) if want.pool.resource else EMPTY
        return self._with(Claim(process, holder, want, cpus))

    def restore(self, claim: Claim) -> Registry:
        """Go on with a claim of the agent before this one, unless it is known, or another has some of its CPUs."""
        others = union(other.cpus for other in self.of_container(claim.holder.id))
        return self if claim.process in self.claims or claim.cpus & others else self._with(claim)

    def release(self, process: Process) -> Registry:
        """Take back what a process has; nothing where it has nothing."""
        return self.keep(lambda claim: claim.process != process)

    def keep(self, is_kept: Callable[[Claim], bool]) -> Registry:
        """Take back what all others have."""
        kept = {process: claim for process, claim in self.claims.items() if is_kept(claim)}
        return self if len(kept) == len(self) else replace(self, claims=MappingProxyType(kept))

    def _with(self, claim: Claim) -> Registry:
        return replace(self, claims=MappingProxyType({**self.claims, claim.process: claim}))


def _take(own: Sequence[OwnCore], want: Want, others: Sequence[Claim]) -> CPUSet:
    """Return the CPUs of the first free cores, in the order of their numbers."""
    busy = union(claim.cpus for claim in others)
    within = [core for core in own if want.socket in (None, core.package)]
    free = [core for core in within if core.cpus.isdisjoint(busy)]
    if len(free) < want.cores:
        raise Denied(_too_few(want, own, within, free, others))
    return _cpus(free[: want.cores])


def _too_few(
    want: Want,
    own: Sequence[OwnCore],
    within: Sequence[OwnCore],
    free: Sequence[OwnCore],
    others: Iterable[Claim],
) -> str:
    where = "" if want.socket is None else f" on socket {want.socket}"
    found = f"{want.cores} wanted{where}, {len(free)} of the {len(within)} that this container has{where} are free"
    beyond = f" ({len(own)} on all sockets)" if len(own) > len(within) else ""
    holders = [str(claim.process.pid) for claim in others if claim.cpus]
    by_whom = f"; process {', '.join(holders)} of the host has the others" if holders else ""
    return f"Not enough free cpu lists in pool {want.pool}: {found}{beyond}{by_whom}"


def _cpus(cores: Iterable[OwnCore]) -> CPUSet:
    return union(core.cpus for core in cores)
