"""The fast algorithms agree with a plain model of the kubelet's rules, on machines of every shape."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from pinning.allocation import take_cpus
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble
from tests.pinning.kubelet_model import Model
from tests.strategies import cpu_sets

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn


@st.composite
def even_machines(draw: DrawFn) -> Topology:
    """Return a machine whose cores, caches, nodes and packages are all alike, siblings split or adjacent."""
    sizes = st.integers(1, 3)
    packages, nodes, caches, cores, threads = draw(
        st.tuples(sizes, sizes, sizes, sizes, st.sampled_from([1, 2, 4]))
    )
    nodes_span_packages = draw(st.sampled_from([False, False, True]))
    total = packages * nodes * caches * cores
    split = draw(st.booleans())
    facts = [
        CPUFacts(
            core + thread * total if split else core * threads + thread,
            core,
            core // cores // caches // nodes,
            0 if nodes_span_packages else core // cores // caches,
            core // cores,
        )
        for core in range(total)
        for thread in range(threads)
    ]
    return assemble(facts, CPUSet(range(total * threads)))


@st.composite
def requests(draw: DrawFn) -> tuple[Topology, CPUSet, int]:
    """Return a machine, what is free of it, and a count that fits."""
    topology = draw(even_machines())
    free = draw(cpu_sets(topology.cpus)) | draw(cpu_sets(topology.cpus))
    return topology, free, draw(st.integers(0, len(free)))


@settings(max_examples=300, deadline=None)
@given(requests(), st.booleans(), st.booleans())
def test_packed_and_spread_agree_with_the_rules(
    request: tuple[Topology, CPUSet, int], spread: bool, caches: bool
) -> None:
    """Packed, spread and cache-aligned placement equal those of the plain model."""
    topology, free, count = request
    taken = take_cpus(topology, free, count, sort="spread" if spread else "packed", align_uncore=caches)
    assert set(taken) == Model(topology).packed(frozenset(free), count, spread=spread, caches=caches)


@settings(max_examples=300, deadline=None)
@given(requests(), st.sampled_from([1, 2, 4]))
def test_distributed_agrees_with_the_rules(request: tuple[Topology, CPUSet, int], group: int) -> None:
    """Distributed placement equals the plain model's, although it compares far fewer combinations."""
    topology, free, count = request
    taken = take_cpus(topology, free, count, distribute=True, group_size=group)
    assert set(taken) == Model(topology).distributed(frozenset(free), count, group)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=2, max_size=5), st.sampled_from([1, 2]), st.data())
def test_distributed_agrees_however_full_the_nodes_are(
    room: list[int], group: int, data: st.DataObject
) -> None:
    """On nodes of eight CPUs distributed placement equals the plain model's for any number of free CPUs."""
    facts = [CPUFacts(cpu, cpu, cpu // 8, cpu // 8) for cpu in range(8 * len(room))]
    topology = assemble(facts, CPUSet(range(8 * len(room))))
    free = CPUSet(8 * node + cpu for node, number in enumerate(room) for cpu in range(number))
    count = len(free) - data.draw(st.integers(0, len(free)))
    taken = take_cpus(topology, free, count, distribute=True, group_size=group)
    assert set(taken) == Model(topology).distributed(frozenset(free), count, group)
