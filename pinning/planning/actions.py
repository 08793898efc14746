"""Ordered cpuset writes of one plan, such that no container runs on CPUs that another one exclusively owns.

Shrinks come first and wait for nothing. A grant waits until all other containers have left the granted CPUs; a
widening waits until the owner of the gained CPUs has left them. Actions without such a dependency may run
concurrently.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner, State
from pinning.planning.pod_pools import part_of
from pinning.planning.run_sets import RunSet, SandboxSet, holders

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.planning.ledger import Assignment, Ledger
    from pinning.planning.observed import Observed, SeenContainer, SeenSandbox
    from pinning.planning.pod_pools import Part
    from pinning.planning.run_sets import RunSets

NO_SANDBOXES: Final[Mapping[str, SandboxSet]] = MappingProxyType({})


class Kind(StrEnum):
    """The effect of a write on its container, in execution order."""

    SHRINK = "shrink"  # removes CPUs; CPUs that it adds may be shared with other containers
    GRANT = "grant"  # adds the CPUs that the container owns
    WIDEN = "widen"  # adds CPUs of the shared set, or of a pool without an owner


@dataclass(frozen=True, slots=True)
class Action:
    """One cpuset to write, or the affinity masks of a sandbox's threads; never empty."""

    kind: Kind
    container_id: str  # id of a container or of a sandbox
    owner: Owner  # for a sandbox: its pod, with an empty container name
    cpus: CPUSet
    # Positions of the earlier actions that vacate its CPUs; one tuple for all containers that gain the same CPUs.
    after: tuple[int, ...] = ()
    follows: tuple[int, ...] = ()  # position of the previous action of the same container, if it has one
    vacates: CPUSet = EMPTY  # CPUs in use until this action is done, which new containers must not get
    threads: SandboxSet | None = None  # for a sandbox: the CPUs of each kind of thread
    # CPUs of tasks that the application does not place itself; empty: the container uses no pools.
    home: CPUSet = EMPTY

    @property
    def waits_for(self) -> tuple[int, ...]:
        """Positions of the earlier actions that must be done first."""
        return tuple(sorted((*self.after, *self.follows)))


class _Writer(NamedTuple):
    """A unit that is moved: a container, or a sandbox with all its containers."""

    id: str
    owner: Owner
    target: RunSet
    footprint: CPUSet  # CPUs charged to it after the move
    current: CPUSet  # CPUs it runs on now
    held: CPUSet  # CPUs it held before this plan
    charged: CPUSet  # CPUs that others must avoid until it has moved
    must_wait: bool
    sandbox: SandboxSet | None = None  # CPUs of a sandbox's threads; None: this is a container

    @property
    def stays_charged(self) -> CPUSet:
        """CPUs charged to it after the move."""
        return self.footprint | self.target.others

    def leaves(self, charged: CPUSet) -> int:
        """Return the CPUs the move frees, as a bitmask.

        These include CPUs that the container no longer holds even if some of its threads stay there: threads that use
        pools, or in a sandbox threads of containers without CPUs of their own.
        """
        is_divided = bool(self.target.home or self.sandbox)
        had_home = (charged & self.held) - self.footprint if is_divided else EMPTY
        return ((charged - self.stays_charged) | had_home).mask


class _Leavers:
    """The writes that vacate CPUs.

    All writes that gain the same CPUs share one object, so that memory does not grow with the square of their number.
    """

    def __init__(self, writes: list[_Write], later: list[_Write] | None = None) -> None:
        """Store the writes; `later` are those that are no shrinks, if the caller has selected them already."""
        self.writes = writes
        self._open = _after_shrinks(writes) if later is None else later

    def without(self, writer: _Writer) -> _Leavers:
        """Return these writes without those of one writer."""
        return _Leavers(_of_others(self.writes, writer), _of_others(self._open, writer))

    def are_in(self, ready: set[_Write]) -> bool:
        """Return whether all of these writes are in `ready`.

        `ready` must contain every shrink and only grow, so that each write is looked up once.
        """
        while self._open and self._open[-1] in ready:
            self._open.pop()
        return not self._open

    def replace(self, write: _Write, by: _Write) -> None:
        """Replace a write by another one, if it is among these writes."""
        self.writes = [by if it is write else it for it in self.writes]
        self._open = _after_shrinks(self.writes)


@dataclass(slots=True, eq=False)
class _Write:
    """An action whose position in the order is not known yet."""

    kind: Kind
    writer: _Writer
    cpus: CPUSet
    leaves: int = 0  # bitmask of CPUs that the container no longer uses after this write
    needs: int = 0  # bitmask of CPUs that all other containers must have left before this write
    home: CPUSet = EMPTY  # CPUs of tasks that the application does not place itself; empty: it uses no pools
    leavers: _Leavers = field(default_factory=lambda: _NO_LEAVERS)
    previous: _Write | None = None  # earlier write of the same container

    def is_free(self, ready: set[_Write]) -> bool:
        """Return whether all writes for which it waits are in `ready`."""
        return (self.previous is None or self.previous in ready) and self.leavers.are_in(ready)

    @property
    def threads(self) -> SandboxSet | None:
        """Target CPUs of a sandbox's threads; intermediate steps keep all threads together."""
        target = self.writer.sandbox
        if target is None or self.cpus == target.cpus:
            return target
        return SandboxSet(EMPTY, self.cpus)


def _of_others(writes: list[_Write], writer: _Writer) -> list[_Write]:
    return [write for write in writes if write.writer is not writer]


def _after_shrinks(writes: list[_Write]) -> list[_Write]:
    return [write for write in writes if write.kind is not Kind.SHRINK]


_NO_LEAVERS: Final[_Leavers] = _Leavers([])  # for writes that wait for no CPUs


def plan_actions(
    observed: Observed,
    before: Ledger,
    run_sets: RunSets,
    sandboxes: Mapping[str, SandboxSet] = NO_SANDBOXES,
) -> tuple[Action, ...]:
    """Return the writes that move every live container to its planned CPUs, in a safe order.

    `before` is the ledger before this plan; `sandboxes` has the planned CPUs of each sandbox's threads.
    """
    shared = run_sets.shared
    unpinned = shared - run_sets.ledger.share
    writers, occupied = _on_host(observed, before, run_sets)
    for seen in observed.sandboxes:
        if seen.is_movable:
            writer = _sandbox(seen, observed, before, run_sets, sandboxes)
            occupied |= writer.current & writer.held
            if not _is_settled(seen, writer):
                writers.append(writer)
    writes: list[_Write] = []
    for writer in writers:
        writes += _of_owner(writer, unpinned) if writer.target.own else _of_sharer(writer, occupied)
    refuge = (shared - occupied) or (run_sets.sets.system - occupied)
    return _numbered(_in_order(writes, refuge), (shared - before.exclusive).mask)


def _on_host(observed: Observed, before: Ledger, run_sets: RunSets) -> tuple[list[_Writer], CPUSet]:
    """Return the containers to move, and the previously held CPUs that their holders still run on."""
    writers, occupied = [], 0
    is_kept = before is run_sets.ledger and not run_sets.starting
    for seen in observed.live_on_host:
        current = seen.cpus or run_sets.sets.universe  # a cpuset that cannot be read may contain any CPU
        had = run_sets.part(seen.owner) if is_kept else part_of(before, seen.owner)
        if had:
            occupied |= current.mask & had.cpus.mask
        target = run_sets.of_seen(seen)
        if current != target.cpus or (seen.is_running and seen.home != target.home):
            writers.append(_container(seen, current, had, target, run_sets.part(seen.owner)))
    return writers, CPUSet.of_mask(occupied)


def _container(
    seen: SeenContainer,
    current: CPUSet,
    had: Assignment | Part | None,
    target: RunSet,
    has: Assignment | Part | None,
) -> _Writer:
    return _Writer(
        seen.id,
        seen.owner,
        target,
        has.footprint if has else EMPTY,
        current,
        had.cpus if had else EMPTY,
        current | had.idle if had else current,
        seen.state is not State.CREATED,  # a created container may start at any moment, on its whole cpuset
    )


def _sandbox(
    seen: SeenSandbox,
    observed: Observed,
    before: Ledger,
    run_sets: RunSets,
    sandboxes: Mapping[str, SandboxSet],
) -> _Writer:
    had, has = holders(seen, observed, before), holders(seen, observed, run_sets.ledger)
    current, target = seen.cpus or run_sets.sets.universe, sandboxes[seen.id]
    charged = current | union(assignment.idle for assignment in had)
    return _Writer(
        id=seen.id,
        owner=Owner(seen.pod_uid, ""),
        target=RunSet(target.own, target.others),
        footprint=union(assignment.footprint for assignment in has),
        current=current,
        held=union(assignment.cpus for assignment in had),
        charged=charged if seen.is_awaited else EMPTY,
        must_wait=True,  # the sandbox's threads run before any of its containers
        sandbox=target,
    )


def _is_settled(seen: SeenSandbox, writer: _Writer) -> bool:
    """Return whether all threads are on their CPUs and the runtime has recorded the cpuset of every container."""
    is_recorded = all(cpus == writer.target.cpus for cpus in seen.sent)
    return (
        is_recorded and writer.sandbox is not None and writer.sandbox.is_reached(writer.current, seen.vcpus)
    )


def _of_owner(writer: _Writer, unpinned: CPUSet) -> Iterator[_Write]:
    """Yield the writes of an owner: leave other owners' CPUs, get its own CPUs, then widen to shared CPUs."""
    target, charged, current = writer.target, writer.charged, writer.current
    if not writer.must_wait:
        left = writer.leaves(charged)
        yield _Write(Kind.GRANT, writer, target.cpus, left, (target.cpus - current).mask)
        return
    if target.cpus <= current and target.own <= writer.held:
        yield _Write(Kind.SHRINK, writer, target.cpus, writer.leaves(charged), home=target.home)
        return
    stays = _kept(writer, unpinned)
    if stays and stays != current:
        still = charged & (unpinned | writer.stays_charged | stays)
        home = stays & writer.held if target.home else EMPTY
        yield _Write(Kind.SHRINK, writer, stays, (charged - still).mask, home=home)
        if stays == target.cpus and not target.home:
            return
        charged = still
        current = stays
    yield from _grants(writer, charged, current)


def _kept(writer: _Writer, unpinned: CPUSet) -> CPUSet:
    """Return the CPUs that an owner may keep until its grant.

    An owner that uses pools also keeps its old own CPUs if it would otherwise keep none of these, because its tasks
    need a home.
    """
    target, current = writer.target, writer.current
    stays = current & (unpinned | target.cpus)
    if target.home and stays.isdisjoint(writer.held):
        return stays | (current & writer.held)
    return stays


def _grants(writer: _Writer, charged: CPUSet, current: CPUSet) -> Iterator[_Write]:
    """Yield the write to its own CPUs, then the one to pools.

    They are separate so that containers that still have to leave the pools delay only the second one.
    """
    target, gains = writer.target, writer.target.others - current
    if writer.sandbox or not (gains and target.own):
        needs = (writer.footprint | gains).mask
        yield _Write(Kind.GRANT, writer, target.cpus, writer.leaves(charged), needs, target.home)
        return
    granted = target.cpus - gains
    left = writer.leaves(charged) | (charged - (writer.footprint | granted)).mask
    if granted != current or not target.own <= writer.held:
        yield _Write(Kind.GRANT, writer, granted, left, writer.footprint.mask, target.home)
        left = 0
    yield _Write(Kind.WIDEN, writer, target.cpus, left, gains.mask, target.home)


def _of_sharer(writer: _Writer, occupied: CPUSet) -> Iterator[_Write]:
    """Yield the writes of a container without own CPUs: first the CPUs it may keep, then the whole shared set."""
    shared, charged, current = writer.target.others, writer.charged, writer.current
    home = writer.target.home if writer.must_wait else EMPTY
    if not current <= shared:
        current = (current & shared) or (shared - occupied) or current
        if current <= shared:
            yield _Write(Kind.SHRINK, writer, current, (charged - current).mask, home=home & current)
            charged = current
            if current == shared:
                return
    yield _Write(Kind.WIDEN, writer, shared, (charged - shared).mask, (shared - current).mask, home)


def _in_order(writes: list[_Write], refuge: CPUSet) -> list[_Write]:
    """Order writes by kind, and each one after the writes that it waits for."""
    _link(writes)
    done = [write for write in writes if write.kind is Kind.SHRINK]
    waiting = [write for kind in (Kind.GRANT, Kind.WIDEN) for write in writes if write.kind is kind]
    ready = set(done)
    while waiting:
        blocked = []
        for write in waiting:
            if write.is_free(ready):
                done.append(write)
                ready.add(write)
            else:
                blocked.append(write)
        if len(blocked) == len(waiting):
            _untie(blocked, done, ready, refuge)
        waiting = blocked
    return done


def _link(writes: list[_Write]) -> None:
    """Make each write wait for the writes that vacate its CPUs, and for the previous write of its container."""
    leaving: dict[int, list[_Write]] = {}
    later: dict[int, list[_Write]] = {}  # writes that are no shrinks: most plans have few
    left_by: dict[str, int] = {}
    for write in writes:
        if write.leaves:
            leaving.setdefault(write.leaves, []).append(write)
            if write.kind is not Kind.SHRINK:
                later.setdefault(write.leaves, []).append(write)
            left_by[write.writer.id] = left_by.get(write.writer.id, 0) | write.leaves
    before: dict[str, _Write] = {}
    leavers: dict[int, _Leavers] = {}
    for write in writes:
        write.previous = before.get(write.writer.id)
        before[write.writer.id] = write
        if write.needs:
            found = leavers.get(write.needs)
            if found is None:
                found = _Leavers(_leaving(leaving, write.needs), _leaving(later, write.needs))
                leavers[write.needs] = found
            is_leaver = left_by.get(write.writer.id, 0) & write.needs
            write.leavers = found.without(write.writer) if is_leaver else found


def _leaving(writes: Mapping[int, list[_Write]], needs: int) -> list[_Write]:
    return [other for mask, others in writes.items() if mask & needs for other in others]


def _untie(blocked: list[_Write], done: list[_Write], ready: set[_Write], refuge: CPUSet) -> None:
    """Break a dependency cycle between containers that wait for each other's CPUs: move one of them aside first.

    Such cycles come from foreign writes, or from a strict reserve, because every shared CPU may then be in use: in that
    case one container moves over the reserved CPUs. Without a free CPU to move to, the write goes ahead at once,
    because a short overlap is better than a deadlock.
    """
    first = _in_circle(blocked[0], ready)
    if not refuge:
        first.leavers = _Leavers([other for other in first.leavers.writes if other in ready])
        first.previous = first.previous if first.previous in ready else None
        return
    aside = _Write(Kind.SHRINK, first.writer, refuge, first.leaves)
    done.append(aside)
    ready.add(aside)
    first.leaves = 0
    for leavers in dict.fromkeys(write.leavers for write in blocked if write.needs & aside.leaves):
        leavers.replace(first, aside)
    first.leavers = _Leavers([*first.leavers.writes, aside])


def _in_circle(write: _Write, ready: set[_Write]) -> _Write:
    """Follow the dependencies of a blocked write until a write repeats; return that write."""
    seen: set[_Write] = set()
    while write not in seen:
        seen.add(write)
        waits = (*write.leavers.writes, write.previous)
        write = next(other for other in waits if other and other not in ready)
    return write


def _numbered(writes: list[_Write], common: int) -> tuple[Action, ...]:
    """Return the actions. CPUs shared before and after need no ordering."""
    at = {write: number for number, write in enumerate(writes)}
    after = {
        leavers: tuple(sorted([at[other] for other in leavers.writes]))
        for leavers in dict.fromkeys(write.leavers for write in writes)
    }
    return tuple(
        Action(
            write.kind,
            write.writer.id,
            write.writer.owner,
            write.cpus,
            after[write.leavers],
            (at[write.previous],) if write.previous else (),
            CPUSet.of_mask(write.leaves & ~common),
            write.threads,
            write.home,
        )
        for write in writes
    )
