"""The CPU sets of a node: CMK's pools, the reserve, and the shared set."""

from __future__ import annotations

import pytest
from hypothesis import given

from pinning.errors import BadContract, PinningError
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import Topology
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import DEFAULT, NodeConfig, StaticPools
from pinning.planning.node_sets import NodeSets, Pools, check_machine, node_sets
from tests.pinning.nodes import smt_machine
from tests.strategies import static_nodes
from tests.tables import table


def cut(topology: Topology, reserved: str, pools: StaticPools | None) -> NodeSets:
    """Return the sets of a machine on which every CPU is online."""
    return node_sets(topology, topology.online, NodeConfig(reserved=CPUSet.parse(reserved), pools=pools))


@table(
    "isolated, reserved, counts, exclusive, shared, infra",
    {
        "two exclusive, one shared": ("", "3,7", (2, 1), "0-1,4-5", "2,6", "3,7"),
        "one exclusive, two shared": ("", "3,7", (1, 2), "0,4", "1-2,5-6", "3,7"),
        "isolcpus": ("1,2,3,5,6,7", "0,4", (2, 1), "1-2,5-6", "3,7", "0,4"),
        "only isolated cores are taken where some are": ("1,5", "0,4", (1, 0), "1,5", "", "0,2-4,6-7"),
        "a core isolated in part is none": ("1,2,6", "0,4", (1, 0), "2,6", "", "0,3-5,7"),
    },
)
def test_cmk_cuts_a_quad_core_like_this(
    isolated: str, reserved: str, counts: tuple[int, int], exclusive: str, shared: str, infra: str
) -> None:
    """The pools of CMK's own test machine are as in CMK's tests, and its infra pool is the rest."""
    sets = cut(smt_machine(4, isolated=isolated), reserved, StaticPools(*counts))
    assert str(sets.pools.exclusive) == exclusive
    assert str(sets.pools.set_aside) == shared
    assert str(sets.shared(Ledger())) == infra


@pytest.mark.parametrize(
    ("mode", "exclusive"), [("packed", "2-3,12-13"), ("spread", "2,5,12,15")], ids=["packed", "spread"]
)
def test_modes(mode: str, exclusive: str) -> None:
    """Mode packed takes exclusive cores socket by socket, and mode spread takes them from the sockets in turn."""
    pools = StaticPools(exclusive_cores=2, exclusive_mode=mode)  # type: ignore[arg-type]
    assert str(cut(smt_machine(10, sockets=2), "0-1", pools).pools.exclusive) == exclusive


def test_non_isolcpus_cores_are_the_listed_ones() -> None:
    """A CPU in the list of non-isolcpus cores adds its whole core to that pool, and no other pool takes the core."""
    pools = StaticPools(1, 0, CPUSet.parse("0,3-5"))
    sets = cut(smt_machine(8, isolated="1,2,9,10"), "7", pools)
    assert str(sets.pools.non_isolcpus) == "0,3-5,8,11-13"
    assert str(sets.pools.exclusive) == "1,9"
    assert str(cut(smt_machine(8), "7", pools).pools.exclusive) == "1,9"


def test_without_static_pools_everything_allocatable_can_be_exclusive() -> None:
    """With dynamic pools every allocatable CPU can be exclusive; the non-isolcpus resource excludes isolated cores."""
    sets = cut(smt_machine(4, isolated="1,5"), "0", None)
    assert (str(sets.pools.exclusive), str(sets.pools.non_isolcpus)) == ("1-3,5-7", "2-3,6-7")
    assert sets.pools.set_aside == EMPTY


@table(
    "pools, message",
    {
        "exclusive": (StaticPools(4), "pools.exclusive_cores: 4 cores are wanted, 3 are left"),
        "shared": (StaticPools(3, 1), "pools.shared_cores: 1 cores are wanted, 0 are left"),
        "reserved": (StaticPools(1, 0, CPUSet.parse("0-3")), "CPUs 0,4 are reserved or cannot be used"),
        "isolated": (StaticPools(1, 0, CPUSet([1])), "CPUs 1,5 are in isolcpus"),
        "no such CPU": (StaticPools(1, 0, CPUSet([77])), "exclusive_non_isolcpus: CPUs 77 do not exist"),
    },
)
def test_pools_that_do_not_fit(pools: StaticPools, message: str) -> None:
    """If the machine has too few cores for the pools, the configuration is refused at start, with the machine's CPUs."""
    isolated = "1,5" if "isolcpus" in message else ""
    topology = smt_machine(4, isolated=isolated)
    with pytest.raises(BadContract, match=message):
        check_machine(topology, topology.online, NodeConfig(pools=pools))


@table(
    "isolated, pools, shared",
    {
        "no pools": ("", None, "1-3,5-7"),
        "isolated CPUs": ("2,6", None, "1,3,5,7"),
        "all others are isolated": ("1-3,5-7", None, "1-3,5-7"),
        "cores in no pool": ("", StaticPools(1), "2-3,6-7"),
        "and none set aside": ("", StaticPools(1, 1), "3,7"),
    },
)
def test_strict_reserve_is_not_shared(isolated: str, pools: StaticPools | None, shared: str) -> None:
    """With `strictReserved` the shared set does not contain the reserved CPUs."""
    topology = smt_machine(4, isolated=isolated)
    config = NodeConfig(reserved=CPUSet([0]), strict_reserved=True, pools=pools)
    sets = node_sets(topology, topology.online, config)
    assert str(sets.shared(Ledger())) == shared
    check_machine(topology, topology.online, config)


def test_strict_reserve_needs_a_cpu_beside_pools_and_reserve() -> None:
    """Pools that take all other cores are refused with the numbers, and later hotplug never leaves the shared set empty."""
    topology = smt_machine(4)
    config = NodeConfig(reserved=CPUSet([0]), strict_reserved=True, pools=StaticPools(2, 1))
    numbers = (
        r"strictReserved: 6 CPUs \(1-3,5-7\) are in pools and 2 \(0,4\) are reserved, which leaves none of 8"
    )
    with pytest.raises(BadContract, match=numbers):
        check_machine(topology, topology.online, config)
    left = CPUSet([0])
    assert node_sets(topology.with_online(left), left, config).shared(Ledger()) == left


def test_reserved_must_exist_and_leave_something() -> None:
    """Reserved CPUs are refused if they do not exist, or if they are all CPUs of the machine."""
    topology = smt_machine(2)
    for reserved, message in (
        ("9", "reserved: CPUs 9 do not exist; name CPUs of this machine, which has 0-3"),
        ("0-1", "leaves no CPU"),
    ):
        with pytest.raises(BadContract, match=message):
            check_machine(topology, topology.online, NodeConfig(reserved=CPUSet.parse(reserved)))
    check_machine(topology, topology.online, DEFAULT)


@pytest.mark.parametrize(("cores", "universe", "message"), [(1, "0-1", "CPUs 0-1"), (4, "2", "CPUs 2")])
def test_a_machine_of_one_core_is_refused(cores: int, universe: str, message: str) -> None:
    """A machine with only one usable core is refused, with the remedy to use a larger one."""
    topology = smt_machine(cores)
    for reserved in (None, CPUSet.parse(universe)):
        with pytest.raises(BadContract, match=rf"only one core .*{message}.* two cores or more") as refused:
            check_machine(topology, CPUSet.parse(universe), NodeConfig(reserved=reserved))
        assert "fewer" not in str(refused.value)


def test_reserved_is_whole_cores_and_stays_when_cpus_go_offline() -> None:
    """The default reserve is the core of the lowest CPU, online or not, and a configured CPU reserves its whole core."""
    topology = smt_machine(4)
    online = topology.online - CPUSet([0])
    assert str(node_sets(topology, topology.online, DEFAULT).reserved) == "0,4"
    assert str(node_sets(topology.with_online(online), online, DEFAULT).reserved) == "0,4"
    assert str(cut(topology, "6", None).reserved) == "2,6"


def test_a_pod_root_that_is_narrower_is_the_machine() -> None:
    """CPUs outside of the kubelet's pod root count as offline, and the lowest core inside is reserved."""
    topology = smt_machine(4)
    sets = node_sets(topology, CPUSet.parse("1-3,5-7"), DEFAULT)
    assert (str(sets.reserved), str(sets.allocatable), str(sets.topology.online)) == (
        "1,5",
        "2-3,6-7",
        "1-3,5-7",
    )
    with pytest.raises(PinningError, match="no usable CPU"):
        node_sets(topology, EMPTY, DEFAULT)


@table(
    "isolated, shared",
    {
        "isolated and set aside are left out": ("2,3,6,7", "0,4"),
        "all isolated: they serve, the pool set aside does not": ("0-7", "0,2-4,6-7"),
    },
)
def test_the_shared_set(isolated: str, shared: str) -> None:
    """The shared set contains no isolated CPUs and none of CMK's shared pool, if other CPUs remain."""
    topology = smt_machine(4, isolated=isolated)
    sets = NodeSets(topology, topology.online, EMPTY, Pools(EMPTY, EMPTY, CPUSet.parse("1,5")))
    assert str(sets.shared(Ledger())) == shared


@table(
    "isolated, universe, shared",
    {
        "the reserve, and the cores in no pool": ("", "0-11", "0,4-6,10-11"),
        "isolated cores in no pool stay empty": ("1-5,7-11", "0-11", "0,6"),
        "all isolated: those in no pool serve": ("0-11", "0-11", "0,4-6,10-11"),
        "nothing else runs: the pool set aside": ("", "1-3,7-9", "3,9"),
        "not even that: the exclusive pool": ("", "1-2,7", "1-2,7"),
    },
)
def test_shared_set_of_static_pools(isolated: str, universe: str, shared: str) -> None:
    """The shared set contains idle cores of the exclusive pools only if no other CPU remains for it."""
    topology = smt_machine(6, isolated=isolated)
    config = NodeConfig(reserved=CPUSet([0]), pools=StaticPools(exclusive_cores=2, shared_cores=1))
    online = CPUSet.parse(universe)
    sets = node_sets(topology.with_online(online), online, config)
    assert (str(sets.pools.exclusive), str(sets.pools.set_aside)) == ("1-2,7-8", "3,9")
    assert str(sets.shared(Ledger())) == shared


def test_listed_cores_are_no_shared_ones() -> None:
    """Cores of the exclusive-non-isolcpus pool are not in the shared set, even if no container owns them."""
    pools = StaticPools(exclusive_non_isolcpus=CPUSet([2]))
    assert str(cut(smt_machine(4), "0", pools).shared(Ledger())) == "0-1,3-5,7"


@given(static_nodes())
def test_static_pools_and_shared_set_are_disjoint(sets: NodeSets) -> None:
    """The shared set is never empty, and contains no CPU of the pools while a CPU outside of them is online."""
    shared = sets.shared(Ledger())
    assert shared
    assert shared <= sets.universe
    assert sets.static_exclusive.isdisjoint(sets.pools.set_aside)
    assert shared <= sets.unpooled or not sets.unpooled
    assert shared.isdisjoint(sets.static_exclusive) or sets.universe <= sets.static_exclusive


def test_the_pool_set_aside_serves_at_last() -> None:
    """If only CMK's shared pool has CPUs the shared set is that pool, because an empty cpuset means every CPU."""
    topology = smt_machine(2)
    aside = Pools(EMPTY, EMPTY, topology.online)
    assert NodeSets(topology, topology.online, EMPTY, aside).common == topology.online


def test_set_aside_cores_are_known_by_socket() -> None:
    """CMK's shared pool on one socket is the part of the pool on that package."""
    pools = StaticPools(exclusive_cores=0, shared_cores=2, shared_mode="spread")
    sets = cut(smt_machine(6, sockets=2), "0", pools)
    assert [str(sets.set_aside(socket)) for socket in (None, 0, 1)] == ["1,3,7,9", "1,7", "3,9"]
