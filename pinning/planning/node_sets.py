"""CPU sets of one node: reserved, allocatable, the pools for claims, and the shared set.

CMK's pools divide the allocatable cores; without pools every allocatable core can be exclusive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from pinning.contract import EXCLUSIVE_NON_ISOLCPUS_CORES, CPUPolicy, ReserveSource
from pinning.errors import BadContract, PinningError
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pinning.allocation.packed import Sort
    from pinning.machine.topology import Core, Topology
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_config import NodeConfig, StaticPools
    from pinning.pods.claims import Claim


@dataclass(frozen=True, slots=True)
class Pools:
    """CPUs that claims may take: whole cores; static pools are disjoint."""

    exclusive: CPUSet
    non_isolcpus: CPUSet
    set_aside: CPUSet = EMPTY  # cores of CMK's pool `shared`, only for containers that ask for it
    is_static: bool = False  # the pools have fixed sizes; free CPUs of the exclusive pools stay idle


@dataclass(frozen=True)
class NodeSets:
    """The sets of a node that do not depend on the ledger."""

    topology: Topology  # CPUs outside the universe are marked offline
    universe: CPUSet
    reserved: CPUSet
    pools: Pools
    reserve_source: ReserveSource = ReserveSource.DEFAULT
    is_strict: bool = False  # no container runs on the reserved CPUs
    align_uncore: bool = False  # a claim gets CPUs of one last-level cache, if one has enough free
    system_namespaces: tuple[str, ...] = ()  # globs of namespaces whose containers run on the reserved CPUs

    @cached_property
    def allocatable(self) -> CPUSet:
        """CPUs that containers can own: the universe without the reserve."""
        return self.universe - self.reserved - self.pools.set_aside

    @property
    def unpooled(self) -> CPUSet:
        """CPUs in no pool, which are CMK's `infra` pool while no CPU is claimed."""
        return self.universe - self.pools.exclusive - self.pools.non_isolcpus - self.pools.set_aside

    @property
    def static_exclusive(self) -> CPUSet:
        """CPUs of static exclusive pools, which the shared set uses only if no other CPU is left."""
        return self.pools.exclusive | self.pools.non_isolcpus if self.pools.is_static else EMPTY

    @property
    def isolated(self) -> CPUSet:
        """CPUs excluded from the kernel's scheduler domains (isolcpus)."""
        return self.topology.isolated

    def shared(self, ledger: Ledger) -> CPUSet:
        """Return the shared set: CPUs for all containers without an assignment."""
        return self.common - ledger.exclusive

    @cached_property
    def common(self) -> CPUSet:
        """The shared set without any assignment: with static pools the reserve and the cores in no pool.

        If these are empty, isolated CPUs are used, then the `shared` pool, then the exclusive pools, because an
        empty cpuset would mean every CPU. A strict reserve is used last of all.
        """
        usable = self.universe - self.reserved if self.is_strict else self.universe
        unowned = usable - self.static_exclusive
        pooled = unowned - self.pools.set_aside
        return (pooled - self.isolated) or pooled or unowned or usable or self.universe

    @property
    def system(self) -> CPUSet:
        """CPUs of containers in system namespaces: the reserved ones that are online."""
        return self.reserved & self.universe

    def is_system(self, namespace: str) -> bool:
        """Return whether containers of a namespace run on the reserved CPUs."""
        return any(fnmatchcase(namespace, glob) for glob in self.system_namespaces)

    def set_aside(self, socket: int | None = None) -> CPUSet:
        """Return the online CPUs of CMK's shared pool, of one socket or all."""
        cores = self.topology.cores_of(self.pools.set_aside & self.universe)
        return self.universe & union(core.cpus for core in cores if socket in (None, core.package))

    def source(self, claim: Claim) -> CPUSet:
        """Return the CPUs that a claim may take, held by others or not."""
        named = (
            self.pools.non_isolcpus
            if claim.resource == EXCLUSIVE_NON_ISOLCPUS_CORES
            else self.pools.exclusive
        )
        allowed = named & self.allocatable
        return allowed - self.isolated if claim.policy is CPUPolicy.SHARE else allowed


def node_sets(topology: Topology, universe: CPUSet, config: NodeConfig) -> NodeSets:
    """Divide a node's CPUs as its configuration says.

    The division does not depend on hotplug: offline cores are assigned to pools as if they were online.
    """
    if not universe:
        raise PinningError(
            "the node has no usable CPU: the effective cpuset of the kubelet's pod root is empty"
        )
    known = known_cpus(topology, universe)
    reserved, source = _reserved(topology, known, config)
    pools = _pools(topology, known - reserved, config.pools)
    usable = topology if topology.online == universe else topology.with_online(universe)
    is_strict = bool(config.strict_reserved)
    align = topology.has_even_caches if config.align_uncore is None else config.align_uncore
    return NodeSets(usable, universe, reserved, pools, source, is_strict, align, config.system_namespaces)


def known_cpus(topology: Topology, universe: CPUSet) -> CPUSet:
    """Return the CPUs of pods, including offline ones."""
    return universe | (topology.cpus - topology.online)


def check_machine(topology: Topology, universe: CPUSet, config: NodeConfig) -> None:
    """Raise BadContract if the configuration does not fit the machine; called once, at start."""
    named = {"reserved": config.reserved or EMPTY}
    if config.pools:
        named["pools.exclusive_non_isolcpus"] = config.pools.exclusive_non_isolcpus
    for key, cpus in named.items():
        if not cpus <= topology.cpus:
            problem = f"{key}: CPUs {cpus - topology.cpus} do not exist"
            raise BadContract(f"{problem}; name CPUs of this machine, which has {topology.cpus}")
    sets = node_sets(topology, universe, config)
    if not sets.allocatable:
        raise BadContract(_nothing_to_give(sets))
    if sets.is_strict and sets.pools.is_static and not sets.unpooled - sets.reserved:
        raise BadContract(_nothing_to_share(sets))


def _nothing_to_give(sets: NodeSets) -> str:
    """Return the error for a node without allocatable CPUs; a smaller reserve does not help on one core."""
    usable = sets.universe
    if usable <= sets.topology.siblings_of(CPUSet([usable.lowest()])):
        problem = f"only one core can be used here (CPUs {usable}), and it stays reserved for the system"
        return f"{problem}: use a machine with two cores or more"
    return f"reserved: {sets.reserved} leaves no CPU of {usable} for containers; reserve fewer cores"


def _nothing_to_share(sets: NodeSets) -> str:
    """Return the error for static pools that, together with a strict reserve, leave no CPU for other containers."""
    pooled = sets.universe - sets.unpooled
    problem = f"strictReserved: {len(pooled)} CPUs ({pooled}) are in pools and {len(sets.reserved)} ({sets.reserved})"
    return (
        f"{problem} are reserved, which leaves none of {len(sets.universe)} for containers without CPUs of their own:"
        " make the pools smaller, or write strictReserved: false"
    )


def _reserved(topology: Topology, known: CPUSet, config: NodeConfig) -> tuple[CPUSet, ReserveSource]:
    """Return the reserve and its source.

    A kept reserve that shares no CPU with the pods' CPUs is replaced by the default.
    """
    listed = config.pools.exclusive_non_isolcpus if config.pools else EMPTY
    default = default_reserve(topology, known, listed)
    named, source = (config.reserved or EMPTY) & topology.cpus, config.reserve_source
    if source is ReserveSource.KEPT:
        named &= known
    whole = topology.siblings_of(named)
    if not whole or (source is ReserveSource.KEPT and whole == default):
        return default, ReserveSource.DEFAULT
    return whole, source


def _pools(topology: Topology, cpus: CPUSet, wanted: StaticPools | None) -> Pools:
    cores = [core for core in topology.cores if core.cpus <= cpus] if wanted else []
    if wanted is None:
        return Pools(exclusive=cpus, non_isolcpus=cpus - topology.siblings_of(topology.isolated))
    listed = topology.siblings_of(wanted.exclusive_non_isolcpus & topology.cpus)
    _refuse_listed(listed, cpus, topology.isolated)
    others = [core for core in cores if core.cpus.isdisjoint(listed)]
    isolated = [core for core in others if core.cpus <= topology.isolated]
    exclusive = _take("exclusive_cores", isolated or others, wanted.exclusive_cores, wanted.exclusive_mode)
    rest = [core for core in isolated or others if core not in exclusive]
    set_aside = _take("shared_cores", rest, wanted.shared_cores, wanted.shared_mode)
    return Pools(_cpus(exclusive), listed, _cpus(set_aside), is_static=True)


def _refuse_listed(listed: CPUSet, cpus: CPUSet, isolated: CPUSet) -> None:
    for wrong, why in (
        (listed - cpus, "are reserved or cannot be used"),
        (listed & isolated, "are in isolcpus"),
    ):
        if wrong:
            problem = f"pools.exclusive_non_isolcpus: the cores of CPUs {wrong} {why}"
            raise BadContract(f"{problem}; list cores outside of both")


def _take(key: str, cores: list[Core], count: int, mode: Sort) -> list[Core]:
    """Take cores in CMK's modes: packed fills one socket after the other, spread alternates between sockets."""
    if len(cores) < count:
        problem = (
            f"pools.{key}: {count} cores are wanted, {len(cores)} are left"
            " (only isolcpus cores count, if there are any)"
        )
        raise BadContract(f"{problem}; write {len(cores)} or fewer")
    packed = sorted(cores, key=lambda core: (core.package, core.id))
    return (_in_turns(packed) if mode == "spread" else packed)[:count]


def _in_turns(cores: list[Core]) -> list[Core]:
    """Order cores round robin over the sockets."""
    turns: Counter[int] = Counter()
    placed = []
    for core in cores:
        placed.append((turns[core.package], core.package, core.id, core))
        turns[core.package] += 1
    return [core for *_, core in sorted(placed, key=lambda place: place[:3])]


def _cpus(cores: Iterable[Core]) -> CPUSet:
    return union(core.cpus for core in cores)


def default_reserve(topology: Topology, known: CPUSet, listed: CPUSet = EMPTY) -> CPUSet:
    """Return the core of the lowest CPU among cores without isolated CPUs, else among partly isolated cores.

    The kernel keeps system work off isolated CPUs, so reserving them would waste them. Cores that a pool lists come
    last, because a pool cannot have a reserved core. `known` has the CPUs of pods, including offline ones.
    """

    def preference(core: Core) -> tuple[bool, bool, bool, int]:
        usable = core.cpus & known
        return (
            not core.cpus.isdisjoint(listed),
            not core.cpus.isdisjoint(topology.isolated),
            usable <= topology.isolated,
            usable.lowest(),
        )

    return min(topology.cores_of(known), key=preference).cpus


def lowest_core(topology: Topology, known: CPUSet) -> CPUSet:
    """Return the core of the lowest CPU, which is the default reserve of agents whose checkpoints do not name it."""
    return topology.siblings_of(CPUSet([known.lowest()]))
