"""Claims that grow: kept CPUs count, and the result is as near as possible to the policy's promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.allocation import Placement, place, take_cores
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import CPUSet, union
from pinning.machine.topology import CPUFacts, Topology, assemble
from tests.machines import captured
from tests.pinning.growing import grown
from tests.pinning.machines import CACHES, DUAL, FLAT, FOUR_NODES, machine

if TYPE_CHECKING:
    from pinning.allocation import Sort

cpus = CPUSet.parse
case = pytest.param
PACKED, DISTRIBUTED = NUMAPolicy.PACKED, NUMAPolicy.DISTRIBUTED
SORTS: list[Sort] = ["packed", "spread"]


XEON = captured(
    "xeon-6248-snc2"
)  # 2 sockets of one cache x 2 nodes x 10 cores, numbered crosswise; pairs N,N+40
EPYC = captured("epyc-7742-nps4")  # 2 sockets x 4 nodes x 16 cores, pairs N,N+128
POWER = captured("power9-ac922")  # 2 sockets x 20 cores of 4 neighbouring CPUs
HALVED = machine(40, 2, lambda core: (core // 20, core // 10, core // 20))  # 2 sockets x 2 nodes x 10 cores
QUAD = machine(24, 4, lambda core: (core % 4, core % 4, core % 4))  # 4 sockets x 6 cores of 4 CPUs
THIRTY_TWO = machine(128, 2, lambda core: (core // 64, core // 4, core // 4))  # every last-level cache a node


def per_node(topology: Topology, chosen: CPUSet) -> str:
    """Return the number of CPUs on each NUMA node."""
    return "/".join(str(len(chosen & node)) for node in topology.numa_nodes.values())


def on_node(topology: Topology, node: int, count: int) -> CPUSet:
    """Return whole cores of a node, the last ones, so that its order of cores gives no advantage."""
    cores = [core.cpus for core in topology.cores if core.numa_node == node]
    return union(cores[-count // len(cores[0]) :])


@pytest.mark.parametrize(
    ("start", "held", "count", "split"),
    [
        case(0, 8, 64, "16/16/16/16", id="all-nodes-alike"),
        case(3, 8, 64, "16/16/16/16", id="all-nodes-alike-from-the-last"),
        case(0, 8, 24, "12/12/0/0", id="the-other-node-of-its-socket"),
        case(1, 2, 26, "13/13/0/0", id="its-socket-though-the-other-is-emptier"),
        case(3, 2, 26, "0/0/13/13", id="its-socket-is-the-second"),
        case(0, 2, 18, "18/0/0/0", id="one-node-is-enough"),
        case(0, 2, 62, "16/15/16/15", id="single-cpus-where-most-are-left"),
        case(0, 16, 48, "16/0/16/16", id="it-has-its-share"),
        case(0, 18, 70, "18/17/18/17", id="it-has-its-share-and-one-of-those-left-over"),
        case(0, 20, 48, "20/0/14/14", id="the-others-share-what-its-node-leaves"),
        case(0, 20, 66, "20/15/16/15", id="the-others-share-evenly-what-its-node-leaves"),
    ],
)
def test_distributed_stays_even(start: int, held: int, count: int, split: str) -> None:
    """Growth stays even over NUMA nodes that share a cache, on the container's own sockets first."""
    free = XEON.cpus - XEON.siblings_of(cpus("9"))
    assert (
        per_node(XEON, grown(XEON, on_node(XEON, start, held), count, free, numa_policy=DISTRIBUTED)) == split
    )


@pytest.mark.parametrize(
    ("topology", "free", "keep", "count", "placed"),
    [
        case(DUAL, "0-11", "11", 8, "0-2,5-8,11", id="two-sockets"),
        case(DUAL, "0-7", "0,2,4", 5, "0-2,4,7", id="it-has-all-of-its-share"),
        case(FOUR_NODES, "0-15", "0-1,8-9", 6, "0-2,8-10", id="its-node-is-full"),
        case(FOUR_NODES, "0-1,4-5,8-9,12-13", "4", 6, "0-1,4-5,8,12", id="nodes-without-room-are-left-out"),
        case(HALVED, "0-79", "30,70", 26, "20-26,30-36,60-65,70-75", id="odd-share"),
        case(HALVED, "0-8,10-18,20-39,40-48,50-58,60-79", "0-1", 62,
             "0-7,10-17,20-27,30-37,40-46,50-56,60-67,70-77", id="left-over-ones-from-the-emptiest"),
        case(HALVED, "0-3,10-13,20-23,30-36,40-43,50-53,60-63,70-76", "0-3", 34,
             "0-3,10-13,20-23,30-34,40-43,50-53,60-63,70-74", id="left-over-ones-where-there-is-room"),
        case(HALVED, "2-29,31-39,42-69,71-79", "2-7,42-47", 48,
             "2-9,10-17,20-27,42-49,50-57,60-67", id="its-node-stays-though-it-is-the-fullest"),
        case(HALVED, "0-79", "0-8,40-47", 67,
             "0-8,40-47,10-18,50-57,20-28,60-67,30-37,70-77", id="more-than-its-share-counts"),
    ],
)  # fmt: skip
def test_distributed_counts_what_is_held(
    topology: Topology, free: str, keep: str, count: int, placed: str
) -> None:
    """Every node ends with the same number, whatever the container had there."""
    assert grown(topology, cpus(keep), count, cpus(free), numa_policy=DISTRIBUTED) == cpus(placed)


def test_distributed_in_whole_cores_stays_even() -> None:
    """Under require and distributed each NUMA node ends with equally many cores, and half-used ones are completed."""
    placed = place(
        HALVED,
        HALVED.cpus - cpus("0-1"),
        62,
        smt=SMTPolicy.REQUIRE,
        numa_policy=DISTRIBUTED,
        keep=Placement(cpus("0-1")),
    )
    assert placed.cpus == cpus("0-7,10-17,20-27,30-36,40-47,50-57,60-67,70-76")


def test_distributed_over_very_many_nodes_ends() -> None:
    """Distribution over 32 NUMA nodes finishes, because it does not compare half a billion sets of nodes."""
    every = place(THIRTY_TWO, THIRTY_TWO.cpus, 130, numa_policy=DISTRIBUTED).cpus
    assert per_node(THIRTY_TWO, every).count("8") + per_node(THIRTY_TWO, every).count("7") == 17
    more = grown(THIRTY_TWO, every, 200, numa_policy=DISTRIBUTED)
    assert per_node(THIRTY_TWO, more).count("8") == 25
    assert every <= more


@pytest.mark.parametrize(
    ("topology", "free", "keep", "count", "placed"),
    [
        case(FLAT, "0-1,3,5-7", "0", 2, "0,6", id="a-used-core-when-its-own-is-taken"),
        case(FLAT, "0-1,3,5-7", "0", 3, "0-1,5", id="a-whole-core-when-its-own-is-taken"),
        case(DUAL, "0-11", "11", 6, "1,3,5,7,9,11", id="the-rest-of-its-node"),
        case(DUAL, "0-11", "11", 8, "0-1,3,5-7,9,11", id="the-rest-of-its-node-and-a-core"),
        case(HALVED, "0-79", "39", 20, "30-39,70-79", id="the-rest-of-its-node-though-the-cache-is-larger"),
        case(HALVED, "0-79", "39", 40, "20-39,60-79", id="the-rest-of-its-socket"),
        case(HALVED, "0-79", "39,59", 60, "0-19,30-59,70-79", id="a-socket-and-a-node"),
        case(HALVED, "0-69", "39", 40, "0-8,20-30,39-48,60-69", id="whole-cores-before-threads-of-used-ones"),
        case(HALVED, "0-69", "39", 41, "0-19,39-59", id="a-whole-socket-beside-it"),
        case(EPYC, "0-255", "127", 32, "112-127,240-255", id="epyc-the-rest-of-its-node"),
        case(EPYC, "0-255", "127", 128, "64-127,192-255", id="epyc-the-rest-of-its-socket"),
        case(EPYC, "0-255", "2", 6, "0-2,128-130", id="epyc-its-cache"),
    ],
)  # fmt: skip
def test_packed_fills_what_it_has_begun(
    topology: Topology, free: str, keep: str, count: int, placed: str
) -> None:
    """A claim grows first in units where it has CPUs, into whole units if no other claim has a part of them."""
    assert grown(topology, cpus(keep), count, cpus(free)) == cpus(placed)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_packed_stays_on_its_node_where_nodes_share_a_cache(sort: Sort, align: bool) -> None:
    """With 16 CPUs free on its node, a container does not leave it for a neighbour that shares the cache."""
    home, beside, *_ = XEON.numa_nodes.values()
    neighbour = beside - XEON.cores_of(beside)[-1].cpus
    for core in XEON.cores_of(home):
        keep = core.cpus
        assert grown(XEON, keep, 4, XEON.cpus - neighbour, sort=sort, align_uncore=align) <= home


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("numa", NUMAPolicy)
@pytest.mark.parametrize("smt", SMTPolicy)
def test_a_replacement_stays_on_its_node_where_nodes_share_a_cache(
    smt: SMTPolicy, numa: NUMAPolicy, sort: Sort
) -> None:
    """An offline CPU is replaced on its own node as long as that has room."""
    home, beside, *_ = XEON.numa_nodes.values()
    placed = place(XEON, home, 4, smt=smt, numa_policy=numa, sort=sort)
    free = XEON.cpus - placed.owned - (beside - XEON.cores_of(beside)[-1].cpus)
    for lost in placed.cpus:
        now = XEON.with_online(XEON.online - XEON.siblings_of(CPUSet((lost,))))
        again = place(now, free, 4, smt=smt, numa_policy=numa, sort=sort, keep=placed)
        assert again.cpus <= home


@pytest.mark.parametrize(
    ("align", "keep", "free", "count", "placed"),
    [
        case(True, "8-9", "2-15", 8, "4-11", id="its-cache-then-another-whole-one"),
        case(True, "0", "0-15", 3, "0-2", id="the-rest-in-its-cache"),
        case(True, "9", "0-15", 7, "0-2,8-11", id="its-cache-and-the-rest-in-one"),
        case(False, "9", "0-15", 5, "0,8-11", id="its-cache-without-being-told"),
    ],
)
def test_caches_that_are_begun_come_first(align: bool, keep: str, free: str, count: int, placed: str) -> None:
    """A cache with CPUs of its own is filled before another one."""
    topology = machine(16, 1, lambda core: (0, 0, core // 4))
    assert grown(topology, cpus(keep), count, cpus(free), align_uncore=align) == cpus(placed)


def test_cores_that_are_begun_come_first_in_a_cache() -> None:
    """Half-used cores of the container are completed before the lowest cores of their cache."""
    assert grown(CACHES, cpus("3"), 2, align_uncore=True) == cpus("3,11")


@pytest.mark.parametrize(
    ("topology", "keep", "count", "placed"),
    [
        case(FLAT, "7", 3, "0-1,7", id="other-cores-by-number"),
        case(FLAT, "4", 2, "1,4", id="never-its-own-sibling-first"),
        case(FLAT, "4", 5, "0-4", id="its-own-sibling-when-all-cores-are-used"),
        case(DUAL, "11", 3, "1,3,11", id="its-own-socket"),
        case(DUAL, "11", 8, "0-3,5,7,9,11", id="the-rest-of-its-node-and-two-cores"),
        case(QUAD, "62", 4, "2,6,10,62", id="four-cores-of-its-socket"),
        case(HALVED, "39", 8, "30-36,39", id="its-own-node"),
        case(POWER, "0", 4, "0,4,8,12", id="where-siblings-are-neighbours"),
    ],
)
def test_spread_stays_spread(topology: Topology, keep: str, count: int, placed: str) -> None:
    """With spread sorting new threads go to the cores with the container's fewest threads."""
    assert grown(topology, cpus(keep), count, sort="spread") == cpus(placed)


def test_spread_replaces_on_a_core_of_its_own() -> None:
    """The lost CPU is replaced by one on a free core, since the sibling of any other would share a core."""
    now = FLAT.with_online(FLAT.cpus - cpus("3"))
    assert place(now, cpus("4-7"), 4, sort="spread", keep=Placement(cpus("0-3"))).cpus == cpus("0-2,7")


@pytest.mark.parametrize(
    ("keep", "count", "taken"),
    [
        case("0-1", 2, "0-1,8-9", id="the-other-socket-has-its-turn"),
        case("0-3", 3, "0-3,8-9", id="it-has-had-two-turns"),
        case("0-3", 5, "0-5,8-11", id="then-in-turns"),
        case("8-9", 2, "0-1,8-9", id="the-first-socket-has-its-turn"),
        case("0-3,8-11", 2, "0-1,8-9", id="fewer-are-spread-too"),
        case("0-5,8-9", 3, "0-3,8-9", id="what-can-stay-stays"),
    ],
)
def test_cores_of_cmk_go_on_in_turns(keep: str, count: int, taken: str) -> None:
    """In mode spread a growing claim takes cores from the sockets in turns, counting those it has."""
    topology = assemble([CPUFacts(cpu, cpu // 2, cpu // 8, 0) for cpu in range(16)], cpus("0-15"))
    assert take_cores(topology, topology.cpus, count, mode="spread", keep=cpus(keep)) == cpus(taken)
