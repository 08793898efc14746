"""Registry of the whole cores that each wrapper has of its container. No I/O: cores are chosen first, then recorded.

The ledger assigns cores to a container; the registry leases them to its processes, each core to one at a time. It
never leases a core that its container does not hold.
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
    # The claim of the `cmk isolate` that executed this one, in the same process: it holds its cores until that ends.
    outer: Claim | None = None

    @property
    def held(self) -> CPUSet:
        """The CPUs that no other process of the container can get."""
        return self.outer.cpus if self.outer else self.cpus

    @property
    def all(self) -> tuple[Claim, ...]:
        """This claim, after the one that it was made under."""
        return (self.outer, self) if self.outer else (self,)


class Registry:
    """Every live claim of the node. Those in other containers cost an answer, or an end, nothing."""

    def __init__(self) -> None:
        self.version = 0  # another one after each change
        self._claims: dict[Process, Claim] = {}
        self._containers: dict[str, dict[Process, Claim]] = {}  # the same, of those alone that have one

    def __iter__(self) -> Iterator[Claim]:
        """Go through the claims there are now, by process."""
        return iter(sorted(self._claims.values(), key=attrgetter("process")))

    def __len__(self) -> int:
        return len(self._claims)

    def of(self, process: Process) -> Claim | None:
        """Return what a process has."""
        return self._claims.get(process)

    def of_container(self, container_id: str) -> tuple[Claim, ...]:
        """Return the claims in one container."""
        return tuple(self._containers.get(container_id, {}).values())

    def choose(self, process: Process, holder: Holder, want: Want, own: Sequence[OwnCore]) -> Claim:
        """Return what a process may have that wants this of its container's cores `own`; raise Denied.

        One that has that already keeps it. One that wants other cores gives back what it has, if it gets them. One
        that wants a pool that all share keeps its cores: in CMK the outer of two wrappers did.
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
        """Return a claim with other cores of `own`, for its container has lost some of those it holds; raise Denied."""
        if claim.outer:
            return replace(claim, outer=self.choose_again(claim.outer, own))
        return replace(claim, cpus=self._take(claim.process, claim.holder, claim.want, own))

    def _take(self, process: Process, holder: Holder, want: Want, own: Sequence[OwnCore]) -> CPUSet:
        inside = self._containers.get(holder.id, {}).values()
        return _take(own, want, [claim for claim in inside if claim.held and claim.process != process])

    def is_free(self, claim: Claim) -> bool:
        """Say whether the process of a claim has nothing yet, and no other in its container has some of the CPUs."""
        inside = self._containers.get(claim.holder.id, {}) if claim.held else {}
        return claim.process not in self._claims and all(
            claim.held.isdisjoint(other.held) for other in inside.values()
        )

    def put(self, claim: Claim) -> None:
        """Let a process have this, and nothing else."""
        self.release(claim.process)
        self._claims[claim.process] = claim
        self._containers.setdefault(claim.holder.id, {})[claim.process] = claim
        self.version += 1

    def release(self, process: Process) -> Claim | None:
        """Take back what a process has, and return it; nothing where it has nothing."""
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
    """Return the claim of a process to cores of the same container; None where it has none."""
    outer = before and (before.outer or before)
    return outer if outer and outer.cpus and outer.holder == holder else None


def _take(own: Sequence[OwnCore], want: Want, others: Sequence[Claim]) -> CPUSet:
    """Return the CPUs of the first free cores, in the order of their numbers."""
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
