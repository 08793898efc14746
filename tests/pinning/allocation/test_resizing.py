"""Resizing, replacing lost CPUs and moving to other policies: cases worked out by hand."""

from __future__ import annotations

import pytest

from pinning.allocation import Placement, place
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble
from tests.pinning.growing import as_text
from tests.pinning.machines import (
    CACHES,
    DUAL,
    FLAT,
    FOUR_NODES,
    NINE_NODES,
    SNC,
    isolating,
    machine_of_cores,
)

cpus = CPUSet.parse
case = pytest.param
PREFER, REQUIRE, ISOLATE = SMTPolicy.PREFER, SMTPolicy.REQUIRE, SMTPolicy.ISOLATE
PACKED, DISTRIBUTED, SINGLE = NUMAPolicy.PACKED, NUMAPolicy.DISTRIBUTED, NUMAPolicy.SINGLE


@pytest.mark.parametrize(
    ("topology", "free", "keep", "count", "smt", "numa", "placed"),
    [
        case(FLAT, "2-7", "0,1", 2, PREFER, PACKED, "0-1/", id="same-count-same-cpus"),
        case(FLAT, "1-3,5-7", "0,4", 3, PREFER, PACKED, "0-1,4/", id="grow-prefer-by-a-thread"),
        case(FLAT, "1-3,5-7", "0,4", 4, PREFER, PACKED, "0-1,4-5/", id="grow-prefer-by-a-core"),
        case(FLAT, "1-7", "0", 2, PREFER, PACKED, "0,4/", id="grow-prefer-own-sibling-first"),
        case(CACHES, "0-9,11-15", "10", 4, PREFER, PACKED, "2-3,10-11/", id="grow-within-the-cache"),
        case(SNC, "0-3,6-11,13-15", "12", 3, PREFER, PACKED, "6,12,14/", id="grow-node-empty-then-socket"),
        case(SNC, "0-3,5,7-11", "12", 3, PREFER, PACKED, "5,7,12/", id="grow-node-then-socket"),
        case(FLAT, "2-3,6-7", "0,1,4+5", 4, REQUIRE, PACKED, "0-1,4-5/", id="grow-require-own-idle-first"),
        case(FLAT, "2-3,6-7", "0,1,4+5", 5, REQUIRE, PACKED, "0-2,4-5/6", id="grow-require-then-a-core"),
        case(FLAT, "1-3,5-7", "0+4", 2, ISOLATE, PACKED, "0-1/4-5", id="grow-isolate-never-own-sibling"),
        case(FOUR_NODES, "1,3-7,9,11-15", "0,8,2,10", 6, PREFER, DISTRIBUTED, "0-3,8,10/", id="grow-evenly"),
        case(
            FOUR_NODES,
            "1,3-7,9-15",
            "0,8,2",
            4,
            PREFER,
            DISTRIBUTED,
            "0,2,8,10/",
            id="grow-where-it-has-fewest",
        ),
        case(
            FOUR_NODES, "4-7,12-15", "0,8", 4, REQUIRE, DISTRIBUTED, "0,4,8,12/", id="grow-onto-another-node"
        ),
        case(DUAL, "1-5,7-11", "0+6", 2, ISOLATE, SINGLE, "0,2/6,8", id="grow-single-stays-on-its-node"),
        case(DUAL, "1,7", "0,6", 4, PREFER, PACKED, "0-1,6-7/", id="grow-onto-another-socket"),
        case(
            isolating(FLAT, "2,6"),
            "2-3,6-7",
            "0,1,4+5",
            4,
            REQUIRE,
            PACKED,
            "0-1,4-5/",
            id="grow-idle-before-isolated",
        ),
        case(
            isolating(FLAT, "3,7"),
            "2-3,6-7",
            "0,1,4+5",
            5,
            REQUIRE,
            PACKED,
            "0-1,3-5/7",
            id="grow-isolated-before-others",
        ),
        case(
            FOUR_NODES, "1-3,9-11", "8+0", 2, ISOLATE, DISTRIBUTED, "1,8/0,9", id="grow-evenly-counts-cores"
        ),
        case(FLAT, "2-3,6-7", "0-1+4-5", 2, REQUIRE, PACKED, "0-1/4-5", id="same-count-no-moving-back"),
        case(FLAT, "2-3,6-7", "0,4,1,5", 3, PREFER, PACKED, "0-1,4/", id="shrink-gives-back-a-thread"),
        case(FLAT, "2-3,6-7", "0,4,1,5", 2, PREFER, PACKED, "0,4/", id="shrink-gives-back-a-core"),
        case(FLAT, "2-3,6-7", "0,1,5", 2, PREFER, PACKED, "1,5/", id="shrink-keeps-a-whole-core"),
        case(FLAT, "2-3,6-7", "0,1,5", 1, PREFER, PACKED, "0/", id="shrink-gives-back-whole-cores-first"),
        case(FLAT, "2-3,6-7", "0,4,1,5", 3, REQUIRE, PACKED, "0-1,4/5", id="shrink-require-idles-the-rest"),
        case(FLAT, "2-3,6-7", "0,4,1,5", 2, REQUIRE, PACKED, "0,4/", id="shrink-require-gives-back-a-core"),
        case(FLAT, "3,7", "0-2+4-6", 1, ISOLATE, PACKED, "0/4", id="shrink-isolate-gives-back-cores"),
        case(FLAT, "", "0,4", 0, REQUIRE, PACKED, "/", id="shrink-to-nothing"),
        case(DUAL, "", "0,6,1,7,3,9", 4, PREFER, PACKED, "1,3,7,9/", id="shrink-onto-one-node"),
    ],
)
def test_resizing(
    topology: Topology, free: str, keep: str, count: int, smt: SMTPolicy, numa: NUMAPolicy, placed: str
) -> None:
    """A resized claim grows next to its CPUs and shrinks to a packed set; `+` separates running from idle CPUs."""
    running, _, idle = keep.partition("+")
    kept = Placement(cpus(running), cpus(idle))
    resized = place(topology, cpus(free), count, smt=smt, numa_policy=numa, keep=kept)
    assert as_text(resized) == placed


def test_growing_evenly_enters_the_roomiest_node() -> None:
    """When its own nodes are full, a distributed container grows onto the node with most free CPUs."""
    kept = Placement(cpus("0-1,8-9"))
    placed = place(FOUR_NODES, cpus("2,4-6,12-14"), 5, numa_policy=DISTRIBUTED, keep=kept)
    assert as_text(placed) == "0-1,4,8-9/"


def test_unlike_cores_do_not_waste_what_groups_leave_over() -> None:
    """Distributed in groups of the largest core, require fills a smaller core rather than two in part."""
    topology = machine_of_cores("0,2", "1,3-4")
    assert as_text(place(topology, topology.cpus, 2, smt=REQUIRE, numa_policy=DISTRIBUTED)) == "0,2/"


@pytest.mark.parametrize(
    ("topology", "offline", "free", "keep", "smt", "placed"),
    [
        case(FLAT, "4", "1-3,5-7", "0,4", PREFER, "0-1/", id="any-core-of-the-cache"),
        case(FLAT, "4", "0-3,5-7", "1,4", PREFER, "0-1/", id="same-core-first"),
        case(CACHES, "8", "2-7,10-15", "0,8", PREFER, "0,2/", id="another-cache-when-its-own-is-taken"),
        case(CACHES, "8", "1-7,9-15", "0,8", PREFER, "0-1/", id="same-cache-before-others"),
        case(SNC, "13", "0-3,6-11,14-15", "5,13", PREFER, "5-6/", id="same-socket-before-others"),
        case(FLAT, "1", "2-3,6-7", "0,1,4+5", REQUIRE, "0,4-5/1", id="require-its-idle-sibling"),
        case(FLAT, "4", "2-3,6-7", "0,1,4+5", REQUIRE, "0-1,5/4", id="require-idle-sibling-of-another-core"),
        case(FLAT, "4", "2-3,6-7", "0,1,4,5", REQUIRE, "0-2,5/4,6", id="require-a-core-more"),
        case(FLAT, "0", "2-3,6-7", "0-1+4-5", ISOLATE, "1,4/0,5", id="isolate-the-sibling-takes-over"),
        case(FLAT, "0,4", "2-3,6-7", "0-1+4-5", ISOLATE, "1-2/5-6", id="isolate-another-core"),
        case(FLAT, "0,4", "2-3,6-7", "0,4", REQUIRE, "2,6/", id="require-everything-lost"),
        case(FOUR_NODES, "0,8", "1,3-7,9,11-15", "0,8", PREFER, "1,9/", id="nearest-of-everything-lost"),
    ],
)
def test_offline_cpus_are_replaced_by_the_nearest(
    topology: Topology, offline: str, free: str, keep: str, smt: SMTPolicy, placed: str
) -> None:
    """An offline CPU is replaced on its core, cache, NUMA node or socket, in this order; other CPUs stay."""
    running, _, idle = keep.partition("+")
    kept = Placement(cpus(running), cpus(idle))
    now = topology.with_online(topology.cpus - cpus(offline))
    assert as_text(place(now, cpus(free), len(kept.cpus), smt=smt, keep=kept)) == placed


def test_a_replacement_is_the_nearest_though_claims_are_distributed() -> None:
    """A lost CPU is replaced on its own node even where another node holds fewer of the container's CPUs."""
    now = FOUR_NODES.with_online(FOUR_NODES.cpus - cpus("8"))
    kept = Placement(cpus("0-2,8"))
    assert as_text(place(now, cpus("3,9-11"), 4, numa_policy=DISTRIBUTED, keep=kept)) == "0-2,9/"


def test_a_replacement_shares_the_l2_before_the_cache() -> None:
    """The nearer of two cores of one last-level cache is the one that shares the L2 cache with the lost CPU."""
    facts = [CPUFacts(core, core, 0, 0, 0, l2=core % 2) for core in range(4)]
    topology = assemble(facts, cpus("0-2"))
    assert as_text(place(topology, cpus("0-2"), 1, keep=Placement(cpus("3")))) == "1/"


@pytest.mark.parametrize(
    ("topology", "free", "held", "count", "smt", "numa", "placed"),
    [
        case(
            FLAT, "2-3,5-7", "0,1,4", 3, REQUIRE, PACKED, "0-1,4/5", id="prefer-to-require-fits-where-it-is"
        ),
        case(
            FLAT, "2-3,6-7", "0,1,4", 3, REQUIRE, PACKED, "0,2,4/6", id="prefer-to-require-leaves-a-used-core"
        ),
        case(FLAT, "2-3,5-7", "0,1,4", 3, ISOLATE, PACKED, "0-2/4-6", id="prefer-to-isolate"),
        case(FLAT, "0-3,5-7", "4", 1, ISOLATE, PACKED, "4/0", id="isolate-keeps-the-held-thread"),
        case(FLAT, "3,7", "0-2+4-6", 3, REQUIRE, PACKED, "0-1,4/5", id="isolate-to-require-gives-cores-back"),
        case(FLAT, "3,7", "0-2+4-6", 3, PREFER, PACKED, "0-2/", id="isolate-to-prefer-keeps-every-cpu"),
        case(FLAT, "3-4,7", "0-2,6+5", 4, REQUIRE, PACKED, "0,2,4,6/", id="cores-with-most-held-cpus-first"),
        case(DUAL, "1-5,7-11", "0,6+", 2, PREFER, SINGLE, "0,6/", id="to-single-where-it-is"),
        case(DUAL, "2-5,8-11", "0,6,1,7", 4, PREFER, SINGLE, "0,2,6,8/", id="to-single-of-equals-the-lowest"),
        case(
            DUAL,
            "2-4,8,10-11",
            "0,5,6,1,7,9",
            6,
            PREFER,
            SINGLE,
            "1,3,5,7,9,11/",
            id="to-single-where-most-is",
        ),
        case(DUAL, "2-5,8-11", "0,6,1,7", 4, PREFER, PACKED, "0,2,6,8/", id="distributed-to-packed"),
        case(
            FOUR_NODES,
            "2-7,10-15",
            "0-1,8-9",
            5,
            PREFER,
            DISTRIBUTED,
            "0-2,8,10/",
            id="packed-to-distributed",
        ),
        case(NINE_NODES, "0-6", "7-8", 2, PREFER, PACKED, "0-1/", id="many-nodes-simply-the-roomiest"),
    ],
)
def test_moving_to_other_policies(
    topology: Topology, free: str, held: str, count: int, smt: SMTPolicy, numa: NUMAPolicy, placed: str
) -> None:
    """A changed policy is met with held CPUs as far as possible."""
    running, _, idle = held.partition("+")
    now = Placement(cpus(running), cpus(idle))
    assert as_text(place(topology, cpus(free), count, smt=smt, numa_policy=numa, held=now)) == placed
