"""The default reserve: a whole core, if possible one that is not isolated, whatever is offline."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.contract import ReserveSource
from pinning.errors import BadContract
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import Topology
from pinning.planning.node_config import DEFAULT, NodeConfig, StaticPools
from pinning.planning.node_sets import (
    NodeSets,
    check_machine,
    default_reserve,
    known_cpus,
    lowest_core,
    node_sets,
)
from tests.pinning.nodes import smt_machine
from tests.strategies import cpu_sets, topologies


def cut(topology: Topology, reserved: str, source: ReserveSource) -> NodeSets:
    """Return the CPU sets of a machine whose reserve has this source."""
    config = NodeConfig(reserved=CPUSet.parse(reserved), reserve_source=source)
    return node_sets(topology, topology.online, config)


@pytest.mark.parametrize(
    ("isolated", "reserved"),
    [
        pytest.param("", "0,4", id="none is isolated"),
        pytest.param("3,7", "0,4", id="the lowest is not isolated"),
        pytest.param("0-1,4-5", "2,6", id="the lowest two cores are isolated"),
        pytest.param("0-1,5", "2,6", id="a core isolated in part counts after those that are not"),
        pytest.param("0-2,4-5,7", "2,6", id="every core has isolated CPUs, two have others too"),
        pytest.param("0-7", "0,4", id="every CPU is isolated"),
    ],
)
def test_default_is_a_core_on_which_the_kernel_runs(isolated: str, reserved: str) -> None:
    """The default reserve prefers cores without isolated CPUs, then partly isolated ones, then the one with the lowest CPU."""
    topology = smt_machine(4, isolated=isolated)
    sets = node_sets(topology, topology.online, DEFAULT)
    assert (str(sets.reserved), sets.reserve_source) == (reserved, ReserveSource.DEFAULT)


def test_machine_of_cmks_manual() -> None:
    """With 8 cores, `isolcpus=0-4,8-12`, 4 exclusive cores and 1 shared, all five isolated cores are in pools, as in CMK."""
    topology = smt_machine(8, isolated="0-4,8-12")
    config = NodeConfig(pools=StaticPools(exclusive_cores=4, shared_cores=1))
    check_machine(topology, topology.online, config)
    sets = node_sets(topology, topology.online, config)
    assert str(sets.reserved) == "5,13"
    assert str(sets.pools.exclusive) == "0-3,8-11"
    assert str(sets.pools.set_aside) == "4,12"
    assert str(sets.unpooled) == "5-7,13-15"


def test_default_avoids_cores_that_a_pool_lists() -> None:
    """The default reserve is a core that no pool lists; if a pool lists every core the configuration is refused."""
    topology = smt_machine(8, isolated="0-4,8-12")
    pools = StaticPools(exclusive_cores=4, exclusive_non_isolcpus=CPUSet([5]))
    assert str(node_sets(topology, topology.online, NodeConfig(pools=pools)).reserved) == "6,14"
    machine = smt_machine(4)
    every = NodeConfig(pools=StaticPools(0, 0, exclusive_non_isolcpus=CPUSet(range(4))))
    with pytest.raises(BadContract, match="CPUs 0,4 are reserved"):
        check_machine(machine, machine.online, every)


def test_sources_come_in_their_order() -> None:
    """A configured, reported or saved reserve is used even if it is isolated; a saved one may equal the default."""
    topology = smt_machine(4, isolated="0,4")
    for source in (ReserveSource.CONFIGURED, ReserveSource.KUBELET, ReserveSource.KEPT):
        sets = cut(topology, "4", source)
        assert (str(sets.reserved), sets.reserve_source) == ("0,4", source)
    assert cut(topology, "1,5", ReserveSource.KEPT).reserve_source is ReserveSource.DEFAULT


def test_kept_reserve_without_cpus_of_pods_gives_way() -> None:
    """If the pod root no longer contains a reserved CPU, the default reserve is used."""
    topology = smt_machine(4)
    config = NodeConfig(reserved=CPUSet.parse("0,4"), reserve_source=ReserveSource.KEPT)
    assert str(node_sets(topology, CPUSet.parse("2-3,6-7"), config).reserved) == "2,6"


def test_earlier_default_is_the_core_of_the_lowest_cpu() -> None:
    """The default of agents that saved no reserve was the core of the lowest CPU, even if it was isolated."""
    assert str(lowest_core(smt_machine(4, isolated="0,4"), CPUSet.parse("0-7"))) == "0,4"


@given(topologies(), st.data())
def test_default_is_one_whole_core(topology: Topology, data: st.DataObject) -> None:
    """The default reserve is exactly one whole core that has a CPU of the pod root."""
    universe = data.draw(cpu_sets(topology.online)) or topology.online
    known = known_cpus(topology, universe)
    reserved = default_reserve(topology, known, data.draw(cpu_sets(topology.cpus)))
    assert reserved in [core.cpus for core in topology.cores]
    assert reserved & known


@given(topologies(), st.data())
def test_default_is_isolated_only_where_all_is(topology: Topology, data: st.DataObject) -> None:
    """The default reserve contains an isolated CPU only if each core has one, and is isolated only if all CPUs are."""
    isolated = data.draw(cpu_sets(topology.cpus))
    machine = replace(topology, isolated=isolated)
    reserved = default_reserve(machine, machine.cpus)
    if reserved & isolated:
        assert all(core.cpus & isolated for core in machine.cores)
    assert reserved - isolated or isolated == machine.cpus


@given(topologies(offline=False), st.data())
def test_default_stays_when_cpus_go_offline(topology: Topology, data: st.DataObject) -> None:
    """The default reserve does not depend on which CPUs are offline, and on two cores leaves one for containers."""
    isolated = data.draw(cpu_sets(topology.cpus))
    machine = replace(topology, isolated=isolated)
    before = node_sets(machine, machine.online, DEFAULT)
    online = data.draw(cpu_sets(machine.online)) or machine.online
    assert node_sets(machine.with_online(online), online, DEFAULT).reserved == before.reserved
    assert len(machine.cores) == 1 or before.allocatable != EMPTY
