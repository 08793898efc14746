"""Topology: cores, groups, offline CPUs, and the record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.errors import UnknownCPU
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import BadTopology, CPUFacts, Topology, assemble, distances_of
from tests.pinning.nodes import SNC
from tests.strategies import cpu_sets, topologies
from tests.tables import table


@given(topologies())
def test_cores_partition_the_cpus(topology: Topology) -> None:
    """Every CPU is in exactly one core, whose id is its lowest CPU, and cores are sorted by id."""
    ids = [core.id for core in topology.cores]

    assert sum(len(core.cpus) for core in topology.cores) == len(topology.cpus)
    assert [core.cpus.lowest() for core in topology.cores] == ids == sorted(ids)
    assert topology.online <= topology.cpus


@given(topologies())
def test_groups_partition_the_cpus(topology: Topology) -> None:
    """Packages, NUMA nodes and caches each hold every CPU once, keys ascending."""
    for groups in (topology.packages, topology.numa_nodes, topology.uncore_caches, topology.l2_caches):
        assert union(groups.values()) == topology.cpus
        assert sum(map(len, groups.values())) == len(topology.cpus)
        assert list(groups) == sorted(groups)


@given(topologies())
def test_a_record_restores_the_machine(topology: Topology) -> None:
    """A topology survives to_dict, JSON and from_dict."""
    restored = Topology.from_dict(json.loads(json.dumps(topology.to_dict())))

    assert (restored, restored.distances) == (topology, topology.distances)


@given(st.data())
def test_siblings_of_are_the_whole_cores_touched(data: st.DataObject) -> None:
    """siblings_of is the union of the cores of its CPUs, cores_of are those cores."""
    topology = data.draw(topologies())
    cpus = data.draw(cpu_sets(topology.cpus))

    touched = union(topology.siblings(cpu) for cpu in cpus)

    assert topology.siblings_of(cpus) == touched
    assert union(core.cpus for core in topology.cores_of(cpus)) == touched


@given(st.data())
def test_an_offline_cpu_is_remembered(data: st.DataObject) -> None:
    """Facts of an offline CPU are kept from the last reading, because the kernel hides them."""
    before = data.draw(topologies(offline=False))
    online = data.draw(cpu_sets(before.cpus).filter(bool))
    facts = [
        CPUFacts(cpu, core.id, core.package, core.numa_node, core.uncore_cache, core.l2, core.core_type)
        for core in before.cores
        for cpu in core.cpus & online
    ]
    now = assemble(facts, online, before.isolated & online)

    remembered = now.remembering(before)

    assert remembered.cores == before.with_online(online).cores
    assert remembered.online == online


@given(topologies())
def test_nothing_forgotten_changes_nothing(topology: Topology) -> None:
    """A reading that has every CPU is not changed by an earlier one."""
    assert topology.remembering(topology) is topology


def test_a_core_wider_than_two_is_one_core() -> None:
    """Four siblings of one core are one core, and smt is the widest core."""
    facts = [CPUFacts(cpu, core=0, package=0, numa_node=0) for cpu in range(4)]
    facts += [CPUFacts(9, core=1, package=0, numa_node=0)]

    topology = assemble(facts, CPUSet.parse("0-2,9"))

    assert [str(core.cpus) for core in topology.cores] == ["0-3", "9"]
    assert topology.smt == 4
    assert topology.online_cpus_of(topology.cores[0]) == CPUSet.parse("0-2")


def test_online_and_isolated_leave_out_unknown_cpus() -> None:
    """CPUs without facts are not part of the machine, even if the lists of online or isolated CPUs have them."""
    topology = assemble([CPUFacts(1, 0, 0, 0)], CPUSet.parse("0-3"), CPUSet.parse("1-9"))

    assert (topology.online, topology.isolated) == (CPUSet([1]), CPUSet([1]))
    assert topology.with_online(CPUSet.parse("0-1")).online == CPUSet([1])


def test_an_unknown_cpu_is_refused() -> None:
    """Asking for the core of an unknown CPU is an error that names the CPU and the known ones."""
    topology = assemble([CPUFacts(cpu, cpu, 0, 0) for cpu in (0, 1)], CPUSet([0, 1]))

    with pytest.raises(UnknownCPU, match=r"CPU 7 is none of this machine's CPUs 0-1"):
        topology.core_of(7)
    with pytest.raises(UnknownCPU, match="CPU 7 is none"):
        topology.siblings_of(CPUSet([1, 7]))


def test_siblings_on_two_nodes_are_refused() -> None:
    """A core that lies on two NUMA nodes is a contradiction that names both CPUs."""
    facts = [CPUFacts(0, 0, 0, numa_node=0), CPUFacts(8, 0, 0, numa_node=1)]

    with pytest.raises(BadTopology, match=r"CPUs 0 and 8 are siblings .* NUMA nodes 0 and 1"):
        assemble(facts, CPUSet([0, 8]))


def test_a_machine_without_cpus_is_refused() -> None:
    """A reading without any core is no machine."""
    with pytest.raises(BadTopology, match="no CPU has a known core"):
        assemble([], CPUSet())


@pytest.mark.parametrize("damage", ["cores", "packages", "coreTypes", "online", "distances"])
@pytest.mark.parametrize("value", [None, ["x"], {"0-1": "x"}, 7, [""]])
def test_a_damaged_record_is_refused(damage: str, value: object) -> None:
    """Any damage of a saved topology raises BadTopology."""
    saved = assemble([CPUFacts(0, 0, 0, 0)], CPUSet([0])).to_dict() | {damage: value}

    with pytest.raises(BadTopology, match="saved topology is damaged"):
        Topology.from_dict(saved)


def test_offline_cpus_keep_their_core_and_groups() -> None:
    """A sibling is matched by its core, whatever numbers that has now; a core of which no CPU is left keeps its own."""
    facts = [CPUFacts(cpu, cpu % 2, cpu % 2, cpu % 2, uncore_cache=cpu % 2) for cpu in range(4)]
    distances = {0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}}
    before = replace(assemble(facts, CPUSet(range(4))), distances=distances)
    now = assemble([CPUFacts(0, core=7, package=5, numa_node=0, uncore_cache=9)], CPUSet([0]))

    remembered = now.remembering(before)

    assert remembered == before.with_online(CPUSet([0]))
    assert remembered.distances == distances
    assert before.remembering(now) is before


def test_distances_survive_a_record() -> None:
    """A topology with distances is restored from JSON."""
    restored = Topology.from_dict(json.loads(json.dumps(SNC.to_dict())))
    assert (restored, restored.distances) == (SNC, SNC.distances)


@table(
    "rows, distances",
    {
        "two nodes": ({1: "21 10", 0: "10 21\n"}, {0: {0: 10, 1: 21}, 1: {0: 21, 1: 10}}),
        "a row is short": ({0: "10 21", 1: "21"}, {}),
        "a row is long": ({0: "10 21"}, {}),
        "no number": ({0: "x"}, {}),
        "more than a byte": ({0: "1000"}, {}),
        "no rows": ({}, {}),
    },
)
def test_rows_of_distances_are_read(rows: Mapping[int, str], distances: object) -> None:
    """Incomplete rows of distances, as while a node goes offline, are read as no distances."""
    assert distances_of(rows) == distances
