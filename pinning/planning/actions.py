"""What has to be written to which container, and in which order, so that nobody ever runs on an owner's CPUs.

Shrinking comes first and waits for nobody. A grant waits until everyone else has left the CPUs it gives; whoever is
widened waits until the CPUs it gains are left by their owner. All others may run at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.planning.ledger import Ledger
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.observed import Observed, Owner, SeenContainer


class Kind(StrEnum):
    """What a write does to its container, in the order in which kinds come."""

    SHRINK = "shrink"  # it leaves CPUs, and gains none that anybody else may not share
    GRANT = "grant"  # it gets the CPUs that it holds
    WIDEN = "widen"  # it holds none, and gets the shared set


@dataclass(frozen=True, slots=True)
class Action:
    """One cpuset to write; it never is empty."""

    kind: Kind
    container_id: str
    owner: Owner
    cpus: CPUSet
    waits_for: tuple[int, ...] = ()  # positions of earlier actions that must be done before
    vacates: CPUSet = EMPTY  # CPUs that no new container may get before this is done: it still runs there


@dataclass(slots=True, eq=False)
class _Write:
    """An action on its way to its place."""

    kind: Kind
    seen: SeenContainer
    cpus: CPUSet
    leaves: int = 0  # CPUs that nobody of this container uses any more once it is written
    needs: int = 0  # CPUs that all others must have left before
    waits: list[_Write] = field(default_factory=list)


def plan_actions(observed: Observed, before: Ledger, after: Ledger, sets: NodeSets) -> tuple[Action, ...]:
    """Return what brings every live container to what the ledger says, in an order that is safe."""
    shared = sets.shared(after)
    unpinned = shared - after.share
    occupied = union(container.cpus & _cpus_of(container, before) for container in observed.live)
    writes: list[_Write] = []
    for seen in observed.live:
        current = seen.cpus or sets.universe  # what cannot be read may be anything
        if after.of(seen.owner):
            writes += _of_owner(seen, current, before, after, unpinned)
        else:
            writes += _of_sharer(seen, current, before, shared, occupied)
    return _numbered(_in_order(writes, shared - occupied), (shared - before.exclusive).mask)


def _of_owner(
    seen: SeenContainer, current: CPUSet, before: Ledger, after: Ledger, unpinned: CPUSet
) -> Iterator[_Write]:
    """Yield the writes of a container that holds CPUs: off those of others, then to its own."""
    own = after.of(seen.owner)
    if own is None or own.cpus == current:
        return
    charged = _charged(seen, current, before)
    if seen.state is State.CREATED:  # it must not wait: it may start at any moment, with all it has
        left = (charged - own.footprint).mask
        yield _Write(Kind.GRANT, seen, own.cpus, left, (own.cpus - current).mask)
        return
    if own.cpus <= current and own.cpus <= _cpus_of(seen, before):
        yield _Write(Kind.SHRINK, seen, own.cpus, (charged - own.footprint).mask)
        return
    stays = current & (unpinned | own.cpus)
    if stays and stays != current:
        still = charged & (unpinned | own.footprint)
        yield _Write(Kind.SHRINK, seen, stays, (charged - still).mask)
        charged = still
        current = stays
    if current != own.cpus:
        yield _Write(Kind.GRANT, seen, own.cpus, (charged - own.footprint).mask, own.footprint.mask)


def _of_sharer(
    seen: SeenContainer, current: CPUSet, before: Ledger, shared: CPUSet, occupied: CPUSet
) -> Iterator[_Write]:
    """Yield the writes of a container that holds none: to what it may keep, then to the whole shared set."""
    charged = _charged(seen, current, before)
    if not current <= shared:
        current = (current & shared) or (shared - occupied) or current
        if current <= shared:
            yield _Write(Kind.SHRINK, seen, current, (charged - current).mask)
            charged = current
    if current != shared:
        yield _Write(Kind.WIDEN, seen, shared, (charged - shared).mask, (shared - current).mask)


def _cpus_of(seen: SeenContainer, ledger: Ledger) -> CPUSet:
    assignment = ledger.of(seen.owner)
    return assignment.cpus if assignment else EMPTY


def _charged(seen: SeenContainer, current: CPUSet, before: Ledger) -> CPUSet:
    """Return the CPUs that others keep off as long as the container is where it is."""
    assignment = before.of(seen.owner)
    return current | assignment.idle if assignment else current


def _in_order(writes: list[_Write], refuge: CPUSet) -> list[_Write]:
    """Order writes by kind, and each after those it waits for."""
    _link(writes)
    done = [write for write in writes if write.kind is Kind.SHRINK]
    waiting = [write for kind in (Kind.GRANT, Kind.WIDEN) for write in writes if write.kind is kind]
    ready = set(done)
    while waiting:
        blocked = []
        for write in waiting:
            if all(other in ready for other in write.waits):
                done.append(write)
                ready.add(write)
            else:
                blocked.append(write)
        if len(blocked) == len(waiting):
            _untie(blocked, done, ready, refuge)
        waiting = blocked
    return done


def _link(writes: list[_Write]) -> None:
    """Let every write wait for those that leave what it needs, and for the one before it of its container."""
    leaving: dict[int, list[_Write]] = {}
    for write in writes:
        if write.leaves:
            leaving.setdefault(write.leaves, []).append(write)
    before: dict[str, _Write] = {}
    for write in writes:
        own = before.get(write.seen.id)
        before[write.seen.id] = write
        if write.needs:
            found = [other for mask, others in leaving.items() if mask & write.needs for other in others]
            write.waits = [other for other in found if other.seen is not write.seen]
        if own:
            write.waits.append(own)


def _untie(blocked: list[_Write], done: list[_Write], ready: set[_Write], refuge: CPUSet) -> None:
    """Break a circle of containers that wait for each other's CPUs: one steps aside first.

    Such circles come from foreign writes. Where there is no CPU to step aside to, it goes straight ahead: an
    instant beside another is better than never arriving.
    """
    first = _in_circle(blocked[0], ready)
    if not refuge:
        first.waits = [other for other in first.waits if other in ready]
        return
    aside = _Write(Kind.SHRINK, first.seen, refuge, first.leaves)
    done.append(aside)
    ready.add(aside)
    first.leaves = 0
    for write in blocked:
        if first in write.waits and write.needs & aside.leaves:
            write.waits[write.waits.index(first)] = aside
    first.waits.append(aside)


def _in_circle(write: _Write, ready: set[_Write]) -> _Write:
    """Follow what a blocked write waits for until one comes up again."""
    seen: set[_Write] = set()
    while write not in seen:
        seen.add(write)
        write = next(other for other in write.waits if other not in ready)
    return write


def _numbered(writes: list[_Write], common: int) -> tuple[Action, ...]:
    """Return the actions; on CPUs that are and were everybody's nobody is in the way."""
    at = {write: number for number, write in enumerate(writes)}
    return tuple(
        Action(
            write.kind,
            write.seen.id,
            write.seen.owner,
            write.cpus,
            tuple(sorted(at[other] for other in write.waits)),
            CPUSet.of_mask(write.leaves & ~common),
        )
        for write in writes
    )
