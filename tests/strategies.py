"""Generated values for property tests: machines of every kind, as small as they can be to show the kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.topology import EFFICIENCY, PERFORMANCE, CPUFacts, Topology, assemble
from pinning.planning.node_config import DEFAULT, NodeConfig, StaticPools
from pinning.planning.node_sets import NodeSets, known_cpus, node_sets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import DrawFn, SearchStrategy

# package > NUMA node > last-level cache > cores, each core being its number of siblings
Shape = list[list[list[list[int]]]]


def cpu_sets(of: CPUSet) -> SearchStrategy[CPUSet]:
    """Any subset of a set of CPUs."""
    return st.integers(0, 2 ** len(of) - 1).map(lambda bits: _picked(of, bits))


def _picked(of: CPUSet, bits: int) -> CPUSet:
    return CPUSet(cpu for place, cpu in enumerate(of) if bits >> place & 1)


@st.composite
def topologies(draw: DrawFn, *, offline: bool = True, max_cores_per_cache: int = 4) -> Topology:
    """Return a machine: SMT 1 to 8 or asymmetric, split, adjacent or mixed numbering, gaps, SNC, hybrid, offline.

    At least one CPU is online. Caches without a level 3, NUMA nodes with gaps in their numbers and nodes that
    span packages are among them.
    """
    numbered = list(_cores(draw(_shapes(max_cores_per_cache))))
    threads = draw(_numberings([width for *_, width in numbered]))
    node_stride = draw(st.sampled_from([1, 1, 1, 0, 8]))  # 0: one node for the whole machine
    shares_l2, hybrid, has_llc = draw(st.sampled_from([1, 1, 1, 2, 4])), draw(_SELDOM), not draw(_SELDOM)
    facts = [
        CPUFacts(
            cpu,
            core=core,
            package=package,
            numa_node=node * node_stride,
            uncore_cache=cache if has_llc else None,
            l2=(cache, core // shares_l2),
            core_type=(PERFORMANCE if width > 1 else EFFICIENCY) if hybrid else None,
        )
        for (core, package, node, cache, width), cpus in zip(numbered, threads, strict=True)
        for cpu in cpus
    ]
    every = CPUSet(fact.cpu for fact in facts)
    gone = draw(cpu_sets(every)) if offline and draw(_SELDOM) else EMPTY
    isolated = draw(cpu_sets(every)) if draw(_SELDOM) else EMPTY
    nodes = CPUSet(fact.numa_node for fact in facts)
    told = draw(st.none() | st.just(nodes | CPUSet([99])) | cpu_sets(nodes)) if draw(_SELDOM) else None
    topology = replace(assemble(facts, (every - gone) or every, isolated), known_memory_nodes=told)
    return replace(topology, distances=draw(_distances(nodes | CPUSet([99])))) if draw(_SELDOM) else topology


@st.composite
def _distances(draw: DrawFn, nodes: CPUSet) -> dict[int, dict[int, int]]:
    """Return the distance from each node to each; few different ones, so that some are equal."""
    far = st.sampled_from([11, 12, 20, 21, 32, 40, 255])
    return {node: {other: 10 if node == other else draw(far) for other in nodes} for node in nodes}


_SELDOM = st.sampled_from([False, False, False, True])


@st.composite
def static_nodes(draw: DrawFn) -> NodeSets:
    """Return the sets of a node that is cut into any static pools that fit, whatever is offline or not for pods."""
    topology = draw(topologies())
    universe = draw(cpu_sets(topology.online)) or topology.online
    reserved = node_sets(topology, universe, DEFAULT).reserved
    cpus = known_cpus(topology, universe) - reserved
    cores = [core for core in topology.cores if core.cpus <= cpus]
    listed = draw(cpu_sets(union(core.cpus for core in cores if core.cpus.isdisjoint(topology.isolated))))
    others = [core for core in cores if core.cpus.isdisjoint(listed)]
    left = len([core for core in others if core.cpus <= topology.isolated] or others)
    exclusive = draw(st.integers(0, left))
    pools = StaticPools(exclusive, draw(st.integers(0, left - exclusive)), listed)
    return node_sets(topology, universe, NodeConfig(reserved=reserved, pools=pools))


def _shapes(max_cores: int) -> SearchStrategy[Shape]:
    uniform = st.sampled_from([2, 1, 2, 4, 8]).map(st.just)
    widths = st.one_of(uniform, uniform, st.just(st.integers(1, 8)), st.just(st.sampled_from([1, 2])))

    def shape(width: SearchStrategy[int]) -> SearchStrategy[Shape]:
        cores = st.lists(width, min_size=1, max_size=max_cores)
        caches = st.lists(cores, min_size=1, max_size=3)
        nodes = st.lists(caches, min_size=1, max_size=2)
        return st.lists(nodes, min_size=1, max_size=2)

    return widths.flatmap(shape)


def _cores(shape: Shape) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield core, package, node, cache, width of every core, each numbered over the whole machine."""
    core, node, cache = count(), count(), count()
    for package, nodes in enumerate(shape):
        for caches in nodes:
            this_node = next(node)
            for widths in caches:
                this_cache = next(cache)
                for width in widths:
                    yield next(core), package, this_node, this_cache, width


@st.composite
def _numberings(draw: DrawFn, widths: list[int]) -> list[list[int]]:
    """Return the CPU numbers of each core: siblings adjacent, split (n, n + cores) or anyhow; maybe with gaps."""
    total = sum(widths)
    order = draw(st.sampled_from(["split", "adjacent", "mixed"]))
    places = [(core, thread) for core, width in enumerate(widths) for thread in range(width)]
    if order == "split":
        places.sort(key=lambda place: (place[1], place[0]))
    if order == "mixed":
        places = draw(st.permutations(places))
    gaps = draw(st.lists(st.integers(0, 3), min_size=total, max_size=total)) if draw(_SELDOM) else [0] * total
    cpus: list[list[int]] = [[] for _ in widths]
    number = -1
    for (core, _), gap in zip(places, gaps, strict=True):
        number += 1 + gap
        cpus[core].append(number)
    return cpus
