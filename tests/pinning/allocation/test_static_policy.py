"""The kubelet's choices: its own worked examples, and cases derived by hand from its rules.

Every expected value was worked out on paper from the rules that the test id names; sizes of units are counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.allocation import take_cpus
from pinning.allocation.packed import tables_of
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.pinning.machines import (
    CACHES,
    DUAL,
    FLAT,
    FOUR_NODES,
    FOUR_WAY,
    GLUED,
    HYBRID,
    OCTETS,
    ONE_OFFLINE,
    SNC,
    WIDE,
    machine,
)

if TYPE_CHECKING:
    from pinning.machine.topology import Topology

cpus = CPUSet.parse
case = pytest.param
ALL = "0-63"


def but(out: str) -> str:
    """Return every CPU but these."""
    return str(cpus(ALL) - cpus(out))


@pytest.mark.parametrize(
    ("topology", "free", "count", "taken"),
    [
        case(FLAT, ALL, 0, "", id="nothing-asked-nothing-taken"),
        case(FLAT, ALL, 8, "0-7", id="a-whole-free-node-is-taken-whole"),
        case(FLAT, ALL, 1, "0", id="one-cpu-of-equal-cores-lowest-core"),
        case(FLAT, ALL, 2, "0,4", id="kubelet-example-reserves-a-whole-core"),
        case(FLAT, ALL, 4, "0-1,4-5", id="kubelet-example-init-container-of-four"),
        case(FLAT, ALL, 3, "0-1,4", id="odd-count-whole-core-then-a-thread"),
        case(FLAT, ALL, 5, "0-2,4-5", id="two-cores-then-a-thread"),
        case(FLAT, ALL, 7, "0-6", id="all-but-one"),
        case(FLAT, "1,3,5-7", 1, "6", id="kubelet-example-single-cpu-completes-a-used-core"),
        case(FLAT, "1,3,5-7", 2, "1,5", id="whole-core-before-threads"),
        case(FLAT, "1,3,5-7", 3, "1,5-6", id="whole-core-then-the-most-used-core"),
        case(FLAT, "1,3,5-7", 4, "1,3,5,7", id="whole-cores-as-long-as-they-fit"),
        case(FLAT, "1,3,5-7", 5, "1,3,5-7", id="everything-that-is-free"),
        case(FLAT, "0-3", 2, "0-1", id="no-whole-core-left-threads-by-core"),
        case(FLAT, "0-2,6", 1, "0", id="most-used-core-first-lowest-id-of-equals"),
        case(FLAT, "0-2,6", 2, "2,6", id="whole-core-though-its-id-is-higher"),
        case(FLAT, "0-2,6", 3, "0,2,6", id="whole-core-then-lowest-of-the-used"),
        case(FLAT, "1,4-5", 1, "4", id="free-cpus-of-the-core-decide-not-cpu-numbers"),
        case(DUAL, ALL, 8, "0-2,4,6-8,10", id="kubelet-example-dual-socket-eight"),
        case(DUAL, ALL, 6, "0,2,4,6,8,10", id="a-whole-socket-fits"),
        case(DUAL, ALL, 9, "0-4,6-8,10", id="socket-then-core-then-thread"),
        case(DUAL, ALL, 12, "0-11", id="both-sockets"),
        case(DUAL, but("0"), 6, "1,3,5,7,9,11", id="only-a-wholly-free-node-is-taken-whole"),
        case(DUAL, but("0"), 2, "2,8", id="core-from-the-fullest-node"),
        case(DUAL, but("0"), 1, "6", id="thread-from-the-fullest-node-and-core"),
        case(DUAL, but("0"), 7, "1,3,5-7,9,11", id="node-whole-then-thread-from-the-other"),
        case(DUAL, but("0,2,6,8"), 4, "1,4,7,10", id="best-fit-by-node-may-cross-nodes"),
        case(DUAL, "0-4", 4, "0-3", id="threads-from-the-node-with-fewest-free"),
        case(SNC, ALL, 8, "0-3,8-11", id="sockets-first-when-nodes-are-smaller"),
        case(SNC, ALL, 4, "0-1,8-9", id="node-when-a-socket-is-too-large"),
        case(SNC, ALL, 10, "0-4,8-12", id="socket-then-core"),
        case(SNC, ALL, 12, "0-5,8-13", id="socket-then-node"),
        case(SNC, but("0"), 8, "4-7,12-15", id="the-other-socket-is-whole"),
        case(SNC, but("0"), 4, "2-3,10-11", id="whole-node-within-the-fullest-socket"),
        case(SNC, but("0"), 2, "1,9", id="core-within-fullest-socket-and-node"),
        case(SNC, but("0"), 1, "8", id="thread-within-fullest-socket-node-and-core"),
        case(SNC, but("4"), 2, "5,13", id="fullest-socket-before-lower-ids"),
        case(SNC, "3-15", 2, "3,11", id="fullest-node-of-the-fullest-socket-has-no-core"),
        case(SNC, "3-15", 6, "4-6,12-14", id="orders-are-made-anew-for-each-step"),
        case(GLUED, ALL, 4, "0-3", id="nodes-first-when-they-hold-sockets"),
        case(GLUED, ALL, 2, "0-1", id="socket-when-a-node-is-too-large"),
        case(GLUED, ALL, 6, "0-5", id="node-then-socket"),
        case(GLUED, but("0"), 2, "2-3", id="whole-socket-of-the-fullest-node"),
        case(GLUED, but("0"), 1, "1", id="fullest-socket-of-the-fullest-node"),
        case(GLUED, but("0"), 3, "1-3", id="socket-then-the-rest-of-its-node"),
        case(FOUR_WAY, ALL, 4, "0-3", id="smt4-a-whole-core"),
        case(FOUR_WAY, ALL, 6, "0-5", id="smt4-core-then-threads"),
        case(FOUR_WAY, ALL, 10, "0-9", id="smt4-two-cores-then-threads"),
        case(FOUR_WAY, "1-11", 5, "1,4-7", id="smt4-used-core-gives-the-odd-thread"),
        case(FOUR_WAY, "0,4-5,8-10", 3, "0,4-5", id="smt4-threads-by-how-used-the-core-is"),
        case(HYBRID, ALL, 1, "4", id="hybrid-small-core-is-the-tightest"),
        case(HYBRID, ALL, 2, "4-5", id="hybrid-two-small-cores"),
        case(HYBRID, ALL, 5, "0,4-7", id="hybrid-small-cores-then-a-thread"),
        case(HYBRID, ALL, 6, "0-1,4-7", id="hybrid-small-cores-then-a-large-one"),
        case(ONE_OFFLINE, ALL, 1, "1", id="offline-sibling-leaves-a-core-of-one"),
        case(ONE_OFFLINE, ALL, 3, "0-1,4", id="offline-sibling-core-of-one-then-of-two"),
        case(ONE_OFFLINE, ALL, 7, "0-4,6-7", id="offline-cpus-are-not-given-out"),
    ],
)
def test_packed(topology: Topology, free: str, count: int, taken: str) -> None:
    """Packed takes whole units by best fit, then whole cores, then threads of the most used cores."""
    assert take_cpus(topology, cpus(free) & topology.cpus, count) == cpus(taken)


@pytest.mark.parametrize(
    ("topology", "free", "count", "taken"),
    [
        case(FLAT, ALL, 2, "0-1", id="two-cores-rather-than-one"),
        case(FLAT, ALL, 5, "0-4", id="by-cpu-number"),
        case(FLAT, "1,3,5-7", 3, "1,3,5", id="used-cores-are-not-looked-for"),
        case(FLAT, ALL, 8, "0-7", id="a-whole-node"),
        case(DUAL, ALL, 2, "0,2", id="within-the-first-socket"),
        case(DUAL, ALL, 4, "0,2,4,6", id="socket-in-ascending-order"),
        case(DUAL, but("0"), 3, "2,4,6", id="fullest-socket-first"),
        case(DUAL, ALL, 8, "0-4,6,8,10", id="whole-node-still-first"),
        case(DUAL, but("0"), 6, "1,3,5,7,9,11", id="whole-free-node-before-the-fullest"),
        case(SNC, but("0"), 3, "1-3", id="by-socket-not-by-node"),
        case(GLUED, but("0"), 3, "1-3", id="numa-first-socket-then-rest"),
    ],
)
def test_spread(topology: Topology, free: str, count: int, taken: str) -> None:
    """With spread sorting whole cores have no preference, and threads are taken by number, socket by socket."""
    assert take_cpus(topology, cpus(free) & topology.cpus, count, sort="spread") == cpus(taken)


@pytest.mark.parametrize(
    ("topology", "free", "count", "taken"),
    [
        case(CACHES, ALL, 4, "0-1,8-9", id="a-whole-cache"),
        case(CACHES, but("0"), 4, "2-3,10-11", id="a-wholly-free-cache-though-another-is-fuller"),
        case(CACHES, but("0"), 3, "1,8-9", id="all-that-is-left-of-a-cache"),
        case(CACHES, but("0"), 2, "2,10", id="known-bug-cores-are-picked-without-looking-at-threads"),
        case(CACHES, but("0"), 1, "8", id="one-thread-of-the-fullest-cache"),
        case(CACHES, ALL, 3, "0-1,8", id="odd-need-drops-the-highest-cpu"),
        case(CACHES, ALL, 5, "0-2,8-9", id="whole-cache-then-one-of-the-next"),
        case(CACHES, ALL, 6, "0-2,8-10", id="whole-cache-then-a-core-of-the-next"),
        case(CACHES, ALL, 16, "0-15", id="the-node-comes-before-caches"),
        case(CACHES, "0-7", 2, "0-1", id="no-cache-fits-falls-through-to-threads"),
        case(CACHES, "0-7", 3, "0-2", id="no-cache-is-large-enough"),
        case(CACHES, "2-3,6-7,10,14-15", 3, "2-3,10", id="fullest-cache-that-holds-it-all"),
        case(CACHES, "0-2,8-10", 4, "0-1,8-9", id="whole-caches-in-order-of-what-is-free"),
        case(FOUR_WAY, ALL, 6, "0-5", id="smt4-even-need-is-not-placed-by-the-cache-step"),
        case(FOUR_WAY, "1-11", 6, "1-2,4-7", id="smt4-even-need-drops-no-cpu"),
        case(FOUR_WAY, ALL, 7, "0-6", id="smt4-odd-need-drops-one-cpu"),
        case(FLAT, "1,3,5-7", 3, "1,5-6", id="single-cache-equals-plain"),
    ],
)
def test_packed_by_last_level_cache(topology: Topology, free: str, count: int, taken: str) -> None:
    """With cache alignment whole caches are taken first; the rest comes from one cache if one has room."""
    assert take_cpus(topology, cpus(free) & topology.cpus, count, align_uncore=True) == cpus(taken)


@pytest.mark.parametrize(
    ("topology", "free", "count", "group", "taken"),
    [
        case(FOUR_NODES, ALL, 0, 1, "", id="nothing"),
        case(FOUR_NODES, ALL, 4, 1, "0-1,8-9", id="one-node-is-enough"),
        case(FOUR_NODES, ALL, 6, 1, "0-3,8,10", id="two-nodes-give-three-each"),
        case(FOUR_NODES, ALL, 5, 1, "0-2,8,10", id="the-odd-one-from-the-first-node"),
        case(FOUR_NODES, ALL, 8, 1, "0-3,8-11", id="two-nodes-wholly"),
        case(FOUR_NODES, ALL, 16, 1, "0-15", id="all-nodes"),
        case(FOUR_NODES, ALL, 6, 2, "0-2,8-10", id="groups-of-two-stay-together"),
        case(FOUR_NODES, ALL, 5, 2, "0-2,8-9", id="no-multiple-of-the-group-is-packed"),
        case(FOUR_NODES, but("5,13"), 2, 1, "0,8", id="balance-takes-from-the-emptiest-not-the-fullest"),
        case(FOUR_NODES, "0,2,4,6,8,10,12,14", 3, 1, "0,2,8", id="more-nodes-when-one-has-too-few"),
        case(
            FOUR_NODES, "0-2,4,6,8-10,12,14", 6, 1, "0,2,4,8,10,12", id="three-nodes-when-two-cannot-be-even"
        ),
        case(FOUR_NODES, but("9"), 5, 1, "2-4,10,12", id="remainder-where-it-leaves-the-least-unevenness"),
        case(FOUR_NODES, "0,2,4,6", 2, 2, "0,2", id="no-node-has-a-group-so-it-is-packed"),
        case(OCTETS, "0-13,16-21", 17, 1, "0-6,8-12,16-20", id="one-node-gives-two-remaining-groups"),
        case(WIDE, ALL, 14, 1, "0-4,6-10,12-15", id="remainder-goes-round-the-first-nodes"),
        case(WIDE, "0-5,6-10,12-16", 14, 1, "0-4,6-10,12-15", id="wider-remainder-wins-ties"),
    ],
)
def test_distributed(topology: Topology, free: str, count: int, group: int, taken: str) -> None:
    """The fewest NUMA nodes give equally many groups, chosen so that the remaining free CPUs are most even."""
    available = cpus(free) & topology.cpus
    assert take_cpus(topology, available, count, distribute=True, group_size=group) == cpus(taken)


@pytest.mark.parametrize(
    ("free", "reusable", "count", "taken"),
    [
        case("2-3,6-7", "0-1,4-5", 2, "0,4", id="kubelet-example-app-reuses-its-init-container"),
        case("2-3,6-7", "", 2, "2,6", id="kubelet-example-sidecar-keeps-its-cpus"),
        case("2-3,6-7", "0,4", 3, "0,2,4", id="reusable-first-then-free"),
        case(ALL, "3", 2, "3,7", id="reusable-before-a-whole-core-its-sibling-is-most-used"),
    ],
)
def test_reuse(free: str, reusable: str, count: int, taken: str) -> None:
    """CPUs of init containers are used before free ones, so that none stay behind unused."""
    assert take_cpus(FLAT, cpus(free) & FLAT.cpus, count, reusable=cpus(reusable)) == cpus(taken)


@pytest.mark.parametrize(
    ("free", "reusable", "count", "taken"),
    [
        case(ALL, "", 2, "1,7", id="within-the-hinted-node"),
        case(ALL, "", 8, "0-1,3,5-7,9,11", id="all-of-the-hinted-node-then-others"),
        case("2-5,7-11", "0-1,6", 3, "1,3,9", id="aligned-reusable-then-aligned-free"),
        case("7", "0,6", 2, "0,7", id="aligned-free-then-unaligned-reusable"),
        case("2,8", "0,1,6", 4, "0-2,6", id="unaligned-free-comes-last"),
    ],
)
def test_numa_hint(free: str, reusable: str, count: int, taken: str) -> None:
    """A hint to node 1 (odd CPUs) is followed as far as it goes, as node ids and as CPUs alike."""
    available, spare = cpus(free) & DUAL.cpus, cpus(reusable)
    by_id = take_cpus(DUAL, available, count, numa=frozenset({1}), reusable=spare)
    by_cpus = take_cpus(DUAL, available, count, numa=DUAL.numa_nodes[1], reusable=spare)
    assert by_id == by_cpus == cpus(taken)


def test_distributed_follows_a_hint() -> None:
    """With a hint to two of four nodes, those two give three CPUs each."""
    taken = take_cpus(FOUR_NODES, FOUR_NODES.cpus, 6, distribute=True, numa=frozenset({2, 3}))
    assert taken == cpus("4-7,12,14")


def test_distributed_scores_the_nodes_it_takes_from() -> None:
    """The first four of eight equal NUMA nodes are taken; the kubelet takes others, because it reuses a slice in its loop."""
    eight = machine(16, 1, lambda core: (core // 2, core // 2, core // 2))
    assert take_cpus(eight, eight.cpus, 8, distribute=True) == cpus("0-7")


def test_distributed_looks_at_every_way_to_hand_out_the_remainder() -> None:
    """Two ways leave 10 as the sum of squares: two groups each from two nodes, found before four from one."""
    five = machine(40, 1, lambda core: (core // 8, core // 8, core // 8))
    free = cpus("0-6,8-12,16-17,24-25,32-33")
    assert take_cpus(five, free, 14, distribute=True) == cpus("0-3,8-11,16-17,24-25,32-33")


def test_distributed_ends_where_odd_leftovers_cannot_give_groups() -> None:
    """NUMA nodes whose remaining CPUs do not make whole groups are skipped, and the search continues."""
    nodes = machine(12, 2, lambda core: (core // 3, core // 3, core // 3))
    available = nodes.cpus - cpus("2,5,8,11")  # five free on each node of three cores
    taken = take_cpus(nodes, available, 14, distribute=True, group_size=2)
    assert taken == cpus("0-1,3-4,6-7,9,12-13,15-16,18-19,21")


def test_an_offline_cpu_is_not_available() -> None:
    """CPUs that the kernel does not run are not counted as free."""
    with pytest.raises(NotEnoughCPUs, match="wanted 8 CPUs, 7 are free") as refused:
        take_cpus(ONE_OFFLINE, ONE_OFFLINE.cpus, 8)
    assert (refused.value.wanted, refused.value.found) == (8, 7)


@pytest.mark.parametrize(("count", "group"), [case(-1, 1, id="count"), case(1, 0, id="group")])
def test_a_wrong_number_is_the_callers_bug(count: int, group: int) -> None:
    """A negative count, and an empty group, are programming errors, not refusals."""
    with pytest.raises(ValueError, match=r"count -?1 must be 0 or more"):
        take_cpus(FLAT, FLAT.cpus, count, group_size=group)


def test_tables_belong_to_one_topology() -> None:
    """Tables that are computed for a machine are not used after CPUs go offline or online."""
    assert tables_of(FLAT) is tables_of(FLAT)
    assert tables_of(FLAT.with_online(cpus("0-3"))).online == cpus("0-3").mask
    assert take_cpus(FLAT.with_online(EMPTY), FLAT.cpus, 0) == EMPTY
