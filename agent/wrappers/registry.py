"""Which wrapper has which whole cores of its own container. Pure and immutable: a change is a new registry.

A container's cores are what the ledger gave it; here they are lent to its processes, one at a time. What a container
holds is decided elsewhere, and nothing here reaches beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from agent.wrappers.errors import Denied
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    # The same by container: what one of them has costs nobody else's answer anything.
    containers: Mapping[str, Mapping[Process, Claim]] = field(default_factory=lambda: MappingProxyType({}))

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
        """Return the claims in one container, the oldest first."""
        return tuple(self.containers.get(container_id, {}).values())

    def take(self, process: Process, holder: Holder, want: Want, own: Sequence[OwnCore]) -> Registry:
        """Give a process what it wants of its container's cores `own`; raise Denied.

        One that has that already keeps it. One that wants something else gives back what it has, if it gets that.
        """
        held = self.of(process)
        if held and (held.holder, held.want) == (holder, want) and held.cpus <= _cpus(own):
            return self
        inside = self.containers.get(holder.id, {})
        if process not in inside and len(inside) >= MOST_CLAIMS:
            raise Denied(f"this container runs {len(inside)} wrappers, and may run no more at a time")
        if not want.pool.resource:
            return self._with(Claim(process, holder, want))
        others = [claim for claim in inside.values() if claim.cpus and claim.process != process]
        return self._with(Claim(process, holder, want, _take(own, want, others)))

    def restore(self, claim: Claim) -> Registry:
        """Go on with a claim of the agent before this one, unless it is known, or another has some of its CPUs."""
        is_taken = bool(claim.cpus) and any(
            other.cpus & claim.cpus for other in self.of_container(claim.holder.id)
        )
        return self if claim.process in self.claims or is_taken else self._with(claim)

    def release(self, process: Process) -> Registry:
        """Take back what a process has; nothing where it has nothing."""
        claims, containers = dict(self.claims), dict(self.containers)
        claim = claims.pop(process, None)
        if claim is None:
            return self
        inside = dict(containers.pop(claim.holder.id))
        del inside[process]
        if inside:
            containers[claim.holder.id] = inside
        return Registry(MappingProxyType(claims), MappingProxyType(containers))

    def _with(self, claim: Claim) -> Registry:
        process, container = claim.process, claim.holder.id
        before = self.release(process) if process in self.claims else self
        inside = {**before.containers.get(container, {}), process: claim}
        return Registry(
            MappingProxyType({**before.claims, process: claim}),
            MappingProxyType({**before.containers, container: inside}),
        )


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
    holders = [str(process.pid) for process in sorted(claim.process for claim in others)]
    by_whom = f"; process {', '.join(holders)} of the host has the others" if holders else ""
    return f"Not enough free cpu lists in pool {want.pool}: {found}{beyond}{by_whom}"


def _cpus(cores: Iterable[OwnCore]) -> CPUSet:
    return union(core.cpus for core in cores)
