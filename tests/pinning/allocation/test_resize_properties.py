"""Properties of resized claims on every machine: one result, and no better one is missed."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from pinning.allocation import Placement, place, take_cores
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.topology import CPUFacts, Topology, assemble
from tests.pinning.growing import grown
from tests.pinning.machines import machine
from tests.strategies import cpu_sets, topologies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.allocation import Sort

PACKED, DISTRIBUTED = NUMAPolicy.PACKED, NUMAPolicy.DISTRIBUTED
SORTS: list[Sort] = ["packed", "spread"]


def outcome(
    topology: Topology, free: CPUSet, count: int, keep: Placement | None, **options: object
) -> object:
    """Return a placement, or what a refusal says."""
    try:
        return place(topology, free, count, keep=keep, **options)  # type: ignore[arg-type]
    except NotEnoughCPUs as refused:
        return str(refused)


@settings(deadline=None)
@given(
    topologies(),
    st.integers(0, 16),
    st.fixed_dictionaries(
        {
            "smt": st.sampled_from(SMTPolicy),
            "numa_policy": st.sampled_from(NUMAPolicy),
            "sort": st.sampled_from(SORTS),
            "distribute": st.booleans(),
            "align_uncore": st.booleans(),
        }
    ),
    st.data(),
)
def test_growing_from_nothing_is_a_fresh_claim(
    topology: Topology, count: int, options: dict[str, object], data: st.DataObject
) -> None:
    """There is one way to choose: with nothing held, more CPUs are what a new container would get."""
    free = data.draw(cpu_sets(topology.online))
    fresh = outcome(topology, free, count, None, **options)
    assert outcome(topology, free, count, Placement(EMPTY), **options) == fresh


def supersets(topology: Topology, held: CPUSet, usable: CPUSet, count: int) -> Iterator[CPUSet]:
    """Yield the CPUs of each set of NUMA nodes on which a container could have so many, its own among them."""
    nodes = list(topology.numa_nodes.values())
    for width in range(len(nodes) + 1):
        for chosen in combinations(nodes, width):
            inside = union(chosen)
            if held <= inside and len(inside & usable) >= count:
                yield inside


def spans(topology: Topology, chosen: CPUSet) -> tuple[int, int]:
    """Return on how many NUMA nodes and packages the CPUs lie."""
    nodes = [cpus for cpus in topology.numa_nodes.values() if cpus & chosen]
    return len(nodes), sum(1 for package in topology.packages.values() if package & chosen)


@settings(deadline=None)
@given(topologies(offline=False), st.sampled_from(SORTS), st.booleans(), st.data())
def test_packed_grows_onto_the_fewest_nodes_and_sockets(
    topology: Topology, sort: Sort, align: bool, data: st.DataObject
) -> None:
    """No other choice for growth has fewer NUMA nodes, or sockets at equal nodes; the held CPUs stay."""
    held = data.draw(cpu_sets(topology.cpus).filter(bool))
    usable = held | data.draw(cpu_sets(topology.cpus))
    count = data.draw(st.integers(len(held), len(usable)))
    chosen = grown(topology, held, count, usable, sort=sort, align_uncore=align)
    least = min(
        spans(topology, inside & (held | usable)) for inside in supersets(topology, held, usable, count)
    )
    assert spans(topology, chosen) <= least
    assert held <= chosen <= usable


@settings(deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.sampled_from([1, 2]),
    st.lists(st.integers(0, 6), min_size=4),
    st.data(),
)
def test_distributed_is_as_even_as_what_is_held_allows(
    nodes: int, cores: int, packages: int, held: list[int], data: st.DataObject
) -> None:
    """On an empty machine of equal nodes no other split over the fewest nodes is more even."""
    total = nodes * packages
    topology = machine(total * cores, 2, lambda core: (core // cores // nodes, core // cores, core // cores))
    own = [min(number, 2 * cores) for number in (held + [0] * total)[:total]]
    keep = CPUSet(
        cpu
        for number, node in zip(own, topology.numa_nodes.values(), strict=True)
        for cpu in list(node)[:number]
    )
    count = data.draw(st.integers(max(1, len(keep)), len(topology.cpus)))
    chosen = grown(topology, keep, count, numa_policy=DISTRIBUTED)
    has = [len(chosen & node) for node in topology.numa_nodes.values()]
    used = [number for number in has if number]
    fewest = max(sum(1 for number in own if number), -(-count // (2 * cores)))
    assert len(used) == fewest
    assert max(used) - min(used) <= least_spread([number for number in own if number], fewest, count)
    assert keep <= chosen


def least_spread(held: list[int], nodes: int, count: int) -> int:
    """Return the difference between the fullest and the emptiest node when each CPU goes to the emptiest one."""
    has = held + [0] * (nodes - len(held))
    for _ in range(count - sum(held)):
        has[has.index(min(has))] += 1
    return max(has) - min(has)


@settings(deadline=None)
@given(st.integers(2, 8), st.sampled_from([2, 4]), st.booleans(), st.data())
def test_spread_uses_as_many_cores_as_there_are(
    cores: int, threads: int, adjacent: bool, data: st.DataObject
) -> None:
    """However siblings are numbered, a container that grows shares a core with itself only when all are used."""
    facts = [
        CPUFacts(core * threads + thread if adjacent else core + thread * cores, core, 0, 0)
        for core in range(cores)
        for thread in range(threads)
    ]
    topology = assemble(facts, CPUSet(range(cores * threads)))
    held = data.draw(cpu_sets(topology.cpus).filter(bool))
    count = data.draw(st.integers(len(held), len(topology.cpus)))
    chosen = grown(topology, held, count, sort="spread")
    touched = len(topology.cores_of(held))
    assert len(topology.cores_of(chosen)) == min(cores, touched + count - len(held))


@settings(deadline=None)
@given(topologies(offline=False), st.sampled_from([PACKED, DISTRIBUTED]), st.sampled_from(SORTS), st.data())
def test_what_goes_offline_is_replaced_on_its_node(
    topology: Topology, numa: NUMAPolicy, sort: Sort, data: st.DataObject
) -> None:
    """After CPUs went offline each NUMA node again has as many CPUs of the container, as far as it has free ones."""
    held = data.draw(cpu_sets(topology.cpus).filter(bool))
    usable = held | data.draw(cpu_sets(topology.cpus))
    lost = data.draw(cpu_sets(held))
    now = topology.with_online(topology.cpus - lost)
    if len(held) > len(usable - lost):
        return
    again = place(now, usable - held, len(held), numa_policy=numa, sort=sort, keep=Placement(held)).cpus
    assert held - lost <= again <= usable - lost
    for node in topology.numa_nodes.values():
        assert len(again & node) >= min(len(held & node), len((usable - lost) & node))


@settings(deadline=None)
@given(
    topologies(offline=False),
    st.sampled_from([PACKED, DISTRIBUTED]),
    st.sampled_from(SORTS),
    st.booleans(),
    st.data(),
)
def test_shrinking_is_a_fresh_claim_on_what_is_held(
    topology: Topology, numa: NUMAPolicy, sort: Sort, align: bool, data: st.DataObject
) -> None:
    """A container that shrinks keeps the CPUs that a new one would get out of the held ones; so does a CMK claim."""
    held = data.draw(cpu_sets(topology.cpus))
    count = data.draw(st.integers(0, len(held)))
    options = {"numa_policy": numa, "sort": sort, "align_uncore": align}
    if 0 < count < len(held):
        fresh = outcome(topology, held, count, None, **options)
        assert outcome(topology, topology.cpus - held, count, Placement(held), **options) == fresh
    whole = CPUSet(cpu for core in topology.cores_of(held) for cpu in core.cpus)
    fewer = count % (len(topology.cores_of(held)) + 1)
    assert take_cores(topology, EMPTY, fewer, mode=sort, keep=whole) == take_cores(
        topology, whole, fewer, mode=sort
    )
