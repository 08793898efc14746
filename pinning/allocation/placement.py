"""SMT and NUMA policies on top of the kubelet's algorithms: CPUs that a container runs on, and idle siblings."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from pinning.allocation.numa import Picker
from pinning.allocation.packed import tables_of, tables_without_smt
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.allocation.packed import Sort
    from pinning.machine.topology import Core, Topology


_WANTED: Final = {
    SMTPolicy.PREFER: "free CPUs",
    SMTPolicy.REQUIRE: "CPUs on wholly free cores",
    SMTPolicy.ISOLATE: "wholly free cores",
}


@dataclass(frozen=True, slots=True)
class Placement:
    """The CPUs that a container runs on, and the idle siblings of its whole cores.

    Offline siblings of its whole cores are in `idle` too, so that no other container gets them when they come back.
    """

    cpus: CPUSet
    idle: CPUSet = EMPTY

    @property
    def owned(self) -> CPUSet:
        """Every CPU that is charged to the container."""
        return self.cpus | self.idle


def place(
    topology: Topology,
    free: CPUSet,
    count: int,
    *,
    smt: SMTPolicy = SMTPolicy.PREFER,
    numa_policy: NUMAPolicy = NUMAPolicy.PACKED,
    sort: Sort = "packed",
    distribute: bool = False,
    align_uncore: bool = False,
    reusable: CPUSet = EMPTY,
    keep: Placement | None = None,
    held: Placement | None = None,
) -> Placement:
    """Return the CPUs for `count` threads; raise NotEnoughCPUs with the largest possible count and the remedy.

    `free` are CPUs without an owner; CPUs of `keep`, `held` and `reusable` may be used too. `keep` is a placement under
    the same policies: it grows by the nearest CPUs, shrinks to a packed subset, and gets the nearest replacement for an
    offline CPU. `held` is a placement under other policies: the container is placed again, on as many of these
    CPUs as the new policies allow. `reusable` are an init container's CPUs, used first. `distribute` is the
    kubelet's node-wide option: it makes the policy `packed` distribute.
    """
    if count < 0:
        raise ValueError(f"count {count} must be 0 or more")
    owned = free | reusable | (keep.owned if keep else EMPTY) | (held.owned if held else EMPTY)
    evenly = numa_policy is NUMAPolicy.DISTRIBUTED or (distribute and numa_policy is NUMAPolicy.PACKED)
    policy = NUMAPolicy.DISTRIBUTED if evenly else numa_policy
    claim = _Claim(topology, owned & topology.online, count, smt, policy, sort, align_uncore)
    if keep:
        return claim.resized(keep.cpus)
    return claim.moved(held.cpus) if held else claim.fresh(reusable)


@dataclass(frozen=True, slots=True)
class _Claim:
    """One claim and the CPUs it may get. Tiers are bitmasks of CPUs, most preferred first."""

    topology: Topology
    usable: CPUSet
    count: int
    smt: SMTPolicy
    policy: NUMAPolicy
    sort: Sort
    align_uncore: bool

    def fresh(self, reusable: CPUSet) -> Placement:
        """Place a container for the first time."""
        tiers = self._fitting(self._tiers(self._pool(), reusable))
        return self._settled(_filled(self._picker(), tiers, self.count), reusable)

    def moved(self, held: CPUSet) -> Placement:
        """Place the container again, on as many held CPUs as the policies allow."""
        tiers = self._fitting(self._tiers(self._pool(), held))
        picker, taken = self._picker(), 0
        for region, count in self._regions(tiers):
            taken |= _filled(picker, [tier & region for tier in tiers], count)
        return self._settled(taken, held)

    def resized(self, keep: CPUSet) -> Placement:
        """Place the container with the least change: on a subset of its CPUs, or on all of them and additional ones."""
        kept = self._staying(keep)
        kept, room = self._fitting([kept, self._beside(kept, self._home(kept) & self._pool())])
        if kept.bit_count() >= self.count:
            chosen = replace(self._picker(), tables=tables_of(self.topology)).pick(kept, self.count)
            return self._settled(chosen, CPUSet.of_mask(kept))
        lost, own = keep - self.topology.online, self._counted(kept)
        for cpu in lost:
            own = self._counted(own | self._replacement(1 << cpu, own, room))
        missing = self.count - own.bit_count()
        taken = own | _filled(self._picker(), self._tiers_beside(own, room), missing, own or lost.mask)
        return self._settled(taken, CPUSet.of_mask(kept))

    def _replacement(self, lost: int, own: int, room: int) -> int:
        """Return the CPU nearest to a lost one on its NUMA node; none if nothing is missing or free there."""
        picker = replace(self._picker(), evenly=False)
        node = sum(node.mask for node in tables_of(self.topology).nodes_of(lost))
        # `spread` prefers CPUs far from the container's own cores.
        near = own if picker.sort == "spread" else lost
        missing = self.count - own.bit_count()
        return _filled(picker, self._tiers_beside(own, room & node), min(1, missing), near)

    def _tiers_beside(self, own: int, room: int) -> list[int]:
        """Return the tiers for growing: CPUs of a region that the container does not have, isolated cores first."""
        return self._tiers(self._beside(own, room) & ~own, EMPTY)

    def _counted(self, cpus: int) -> int:
        """Return the charged CPUs that the picker counts: one of each core under `isolate`."""
        return self._charged(cpus) & self._picker().tables.online

    def _picker(self) -> Picker:
        evenly = self.policy is NUMAPolicy.DISTRIBUTED
        if self.smt is SMTPolicy.PREFER:
            return Picker(tables_of(self.topology), self.sort, self.align_uncore, evenly, group=1)
        if self.smt is SMTPolicy.REQUIRE:
            group = self.topology.smt
            return Picker(tables_of(self.topology), "packed", self.align_uncore, evenly, group)
        return Picker(tables_without_smt(self.topology), "packed", self.align_uncore, evenly, group=1)

    def _pool(self) -> int:
        """Return the candidate CPUs: all usable ones, those of fully usable cores, or one per such core."""
        if self.smt is SMTPolicy.PREFER:
            return self.usable.mask
        whole = [core.mask for core in tables_of(self.topology).cores if not core.mask & ~self.usable.mask]
        if self.smt is SMTPolicy.REQUIRE:
            return sum(whole)
        return sum(mask & -mask for mask in whole)

    def _staying(self, keep: CPUSet) -> int:
        """Return the CPUs of a placement that may be kept."""
        pool, online = self._pool(), keep.mask & self.topology.online.mask
        if self.smt is SMTPolicy.ISOLATE:
            cores = [core.mask for core in tables_of(self.topology).cores if core.mask & pool]
            inside = [mask & online for mask in cores]
            return sum(mask & -mask for mask in inside)
        return online & pool

    def _charged(self, cpus: int) -> int:
        """Return the CPUs, with all their siblings if the policy owns whole cores."""
        if self.smt is SMTPolicy.PREFER:
            return cpus
        return self.topology.siblings_of(CPUSet.of_mask(cpus)).mask

    def _home(self, kept: int) -> int:
        """Return the CPUs within which a placement may grow."""
        nodes = tables_of(self.topology).nodes_of(kept)
        if self.policy is NUMAPolicy.SINGLE and len(nodes) == 1:
            return nodes[0].mask
        return self.topology.online.mask

    def _beside(self, taken: int, room: int) -> int:
        """Return the CPUs of a room that can be added to the taken ones."""
        return room & ~(self._charged(taken) if self.smt is SMTPolicy.ISOLATE else taken)

    def _tiers(self, pool: int, first: CPUSet) -> list[int]:
        """Return the pool in tiers: preferred CPUs (one tier or more), fully isolated cores, and all others."""
        preferred = [pool & cpus for cpus in self._preferred(first)]
        left = pool & ~sum(preferred)
        isolated = left & self._isolated()
        return [*preferred, isolated, left & ~isolated]

    def _preferred(self, first: CPUSet) -> list[int]:
        """Return the CPUs to prefer: those of `first`, or their cores, those with most of these CPUs first."""
        if self.smt is SMTPolicy.PREFER:
            return [first.mask]
        touched: defaultdict[int, int] = defaultdict(int)
        for core in self.topology.cores_of(first):
            touched[len(core.cpus & first)] |= core.cpus.mask
        return [touched[number] for number in sorted(touched, reverse=True)]

    def _isolated(self) -> int:
        """Return the cores that are fully isolated from the kernel's scheduler; only whole-core claims prefer them."""
        away = self.topology.isolated.mask
        if self.smt is SMTPolicy.PREFER or not away:
            return 0
        return sum(core.mask for core in tables_of(self.topology).cores if not core.mask & ~away)

    def _fitting(self, tiers: list[int]) -> list[int]:
        """Return the tiers, under `single` only their CPUs on the best NUMA node; raise NotEnoughCPUs if too few."""
        found = self._most(sum(tiers))
        if found < self.count:
            raise self._refusal(found)
        if self.policy is not NUMAPolicy.SINGLE:
            return tiers
        region = self._narrowest(tiers)
        return [tier & region for tier in tiers]

    def _most(self, cpus: int) -> int:
        """Return the largest count that the NUMA policy allows on these CPUs."""
        if self.policy is not NUMAPolicy.SINGLE:
            return cpus.bit_count()
        nodes = tables_of(self.topology).numa_nodes
        return max(((node.mask & cpus).bit_count() for node in nodes), default=0)

    def _narrowest(self, tiers: list[int]) -> int:
        return replace(self._picker(), tables=tables_of(self.topology)).narrowest(tiers, self.count)

    def _regions(self, tiers: list[int]) -> Iterator[tuple[int, int]]:
        """Yield the CPU sets of the NUMA policy, with the count for each."""
        if self.policy is not NUMAPolicy.DISTRIBUTED:
            yield self._narrowest(tiers), self.count
            return
        picker = self._picker()
        even = picker.pick(sum(tiers), self.count)
        for node in picker.tables.nodes_of(even):
            yield node.mask, (node.mask & even).bit_count()

    def _settled(self, taken: int, first: CPUSet) -> Placement:
        """Return the placement on the taken cores; CPUs of `first` run, and their siblings idle."""
        cpus = CPUSet.of_mask(taken)
        if self.smt is SMTPolicy.PREFER:
            return Placement(cpus)
        cores = [self._run_order(core, first) for core in self.topology.cores_of(cpus)]
        if self.smt is SMTPolicy.ISOLATE:
            chosen = [order[0] for order in cores]
        else:
            cores.sort(key=lambda order: sum(cpu not in cpus for cpu in order))
            chosen = sorted(chain.from_iterable(cores), key=lambda cpu: cpu not in first)[: self.count]
        running = CPUSet(chosen)
        return Placement(running, self.topology.siblings_of(running) - running)

    def _run_order(self, core: Core, first: CPUSet) -> list[int]:
        """Return the online CPUs of a core in order of preference for running."""
        return sorted(self.topology.online_cpus_of(core), key=lambda cpu: cpu not in first)

    def _refusal(self, found: int) -> NotEnoughCPUs:
        """Return the error with the wanted count, the found count and the remedies."""
        where = " on one NUMA node" if self.policy is NUMAPolicy.SINGLE else ""
        beside = len(self.usable) - self._charged(self._pool()).bit_count()
        busy = f", and {beside} with busy siblings" if beside > 0 else ""
        remedies = [f"ask for at most {found}"] if found else []
        if where and self._pool().bit_count() >= self.count:
            remedies.append(f"choose numa-policy {NUMAPolicy.PACKED}")
        if self.smt is not SMTPolicy.PREFER and self._most(self.usable.mask) >= self.count:
            remedies.append(f"choose smt-policy {SMTPolicy.PREFER}")
        detail = f"wanted {self.count} {_WANTED[self.smt]}{where}, found {found}{busy}"
        return NotEnoughCPUs(self.count, found, detail, tuple(remedies))


def _filled(picker: Picker, tiers: list[int], count: int, own: int = 0) -> int:
    """Return `count` CPUs to add to the own ones, using up each tier before the next."""
    taken = 0
    for tier in tiers:
        missing = count - taken.bit_count()
        if tier.bit_count() <= missing:
            taken |= tier
        elif missing > 0:
            taken |= picker.pick(tier, missing, own | taken)
    return taken
