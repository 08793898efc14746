"""Registry of the whole cores that wrappers lease from their containers. No I/O: cores are chosen first, then recorded.

The ledger assigns cores to a container; the registry leases them to its processes, each core to one at a time. It never
leases a core that its container does not hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from agent.wrappers.protocol import Denied
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.wrappers.protocol import Want
    from pinning.planning.observed import Owner

MOST_CLAIMS = 1024  # per container; each holds a pidfd


class Process(NamedTuple):
    """One process of the host; the start time detects a reused pid."""

    pid: int
    started: int  # start time in ticks since boot


class OwnCore(NamedTuple):
    """A container's share of one core."""

    package: int
    cpus: CPUSet


class Holder(NamedTuple):
    """The container from which a wrapper leases cores."""

    id: str
    owner: Owner
    name: str  # namespace/pod/container


@dataclass(frozen=True, slots=True)
class Claim:
    """The lease of one wrapper."""

    process: Process
    holder: Holder
    want: Want
    cpus: CPUSet = EMPTY  # CPUs leased from its container's own; empty in a pool
    # For nested wrappers: the claim of the outer `cmk isolate` in the same process, which keeps its cores.
    outer: Claim | None = None

    @property
    def held(self) -> CPUSet:
        """The CPUs that the process leases, by its outer claim if there is one; other processes cannot lease them."""
        return self.outer.cpus if self.outer else self.cpus

    @property
    def all(self) -> tuple[Claim, ...]:
        """This claim, after its outer claim."""
        return (self.outer, self) if self.outer else (self,)


class Registry:
    """Every live claim of the node, indexed by container, so that lookups do not slow down with other containers."""

    def __init__(self) -> None:
        self.version = 0  # incremented with each update
        self._claims: dict[Process, Claim] = {}
        self._containers: dict[
            str, dict[Process, Claim]
        ] = {}  # the claims by container, without empty entries

    def __iter__(self) -> Iterator[Claim]:
        """Iterate over the current claims, by process."""
        return iter(sorted(self._claims.values(), key=attrgetter("process")))

    def __len__(self) -> int:
        return len(self._claims)

    @property
    def containers(self) -> tuple[str, ...]:
        """The ids of the containers with claims."""
        return tuple(self._containers)

    def inside(self, container_id: str) -> tuple[Claim, ...]:
        """Return the claims of a container, by process."""
        claims = self._containers.get(container_id, {})
        return tuple(claims[process] for process in sorted(claims))

    def of(self, process: Process) -> Claim | None:
        """Return the claim of a process; None if it has none."""
        return self._claims.get(process)

    def choose(self, process: Process, holder: Holder, want: Want, own: Sequence[OwnCore]) -> Claim:
        """Return a claim for a request, with cores of `own`, the container's cores; raise Denied. Nothing is recorded.

        A repeated request gets the same claim. If a process requests other cores, recording the new claim releases its
        old one. If it requests a pool, it keeps its cores as outer claim, as with nested wrappers in CMK.
        """
        before = self.of(process)
        for claim in before.all if before else ():
            if (claim.holder, claim.want) == (holder, want) and claim.cpus <= _cpus(own):
                return claim
        inside = self._containers.get(holder.id, {})
        if process not in inside and len(inside) >= MOST_CLAIMS:
            raise Denied(f"this container runs {len(inside)} wrappers, and may run no more at a time")
        if not want.pool.resource:
            return Claim(process, holder, want, outer=_owner(before, holder))
        return Claim(process, holder, want, self._take(process, holder, want, own))

    def choose_again(self, claim: Claim, own: Sequence[OwnCore]) -> Claim:
        """Return a claim with cores of `own`, because its container lost some of its old ones; raise Denied."""
        if claim.outer:
            return replace(claim, outer=self.choose_again(claim.outer, own))
        return replace(claim, cpus=self._take(claim.process, claim.holder, claim.want, own))

    def _take(self, process: Process, holder: Holder, want: Want, own: Sequence[OwnCore]) -> CPUSet:
        inside = self._containers.get(holder.id, {}).values()
        return _take(own, want, [claim for claim in inside if claim.held and claim.process != process])

    def is_free(self, claim: Claim) -> bool:
        """Return whether the process has no claim yet, and no other process of its container holds any of the CPUs."""
        inside = self._containers.get(claim.holder.id, {}) if claim.held else {}
        return claim.process not in self._claims and all(
            claim.held.isdisjoint(other.held) for other in inside.values()
        )

    def put(self, claim: Claim) -> None:
        """Record this as the only claim of its process."""
        self.release(claim.process)
        self._claims[claim.process] = claim
        self._containers.setdefault(claim.holder.id, {})[claim.process] = claim
        self.version += 1

    def release(self, process: Process) -> Claim | None:
        """Remove and return the claim of a process; None if it has none."""
        claim = self._claims.pop(process, None)
        if claim is None:
            return None
        inside = self._containers[claim.holder.id]
        del inside[process]
        if not inside:
            del self._containers[claim.holder.id]
        self.version += 1
        return claim


def _owner(before: Claim | None, holder: Holder) -> Claim | None:
    """Return the claim by which a process already holds cores of this container; None if it holds none."""
    outer = before and (before.outer or before)
    return outer if outer and outer.cpus and outer.holder == holder else None


def _take(own: Sequence[OwnCore], want: Want, others: Sequence[Claim]) -> CPUSet:
    """Return the CPUs of the first free cores of `own` on the wanted socket; raise Denied if too few are free."""
    busy = union(claim.held for claim in others)
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
