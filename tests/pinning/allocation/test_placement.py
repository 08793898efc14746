"""SMT and NUMA policies: cases worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinning.allocation import Placement, place, take_cores
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import Topology
from tests.pinning.growing import as_text
from tests.pinning.machines import (
    CACHES,
    DUAL,
    FLAT,
    FOUR_NODES,
    FOUR_WAY,
    HYBRID,
    NINE_NODES,
    ONE_OFFLINE,
    SIX_CORES,
    SNC,
    TWELVE_CORES,
    WITHOUT_SMT,
    isolating,
    machine_of_cores,
)

if TYPE_CHECKING:
    from pinning.allocation import Sort

cpus = CPUSet.parse
case = pytest.param
ALL = "0-63"
PREFER, REQUIRE, ISOLATE = SMTPolicy.PREFER, SMTPolicy.REQUIRE, SMTPolicy.ISOLATE
PACKED, DISTRIBUTED, SINGLE = NUMAPolicy.PACKED, NUMAPolicy.DISTRIBUTED, NUMAPolicy.SINGLE


@pytest.mark.parametrize(
    ("topology", "free", "count", "smt", "placed"),
    [
        case(FLAT, ALL, 3, PREFER, "0-1,4/", id="prefer-shares-its-last-core"),
        case(FLAT, ALL, 3, REQUIRE, "0-1,4/5", id="require-idles-the-odd-sibling"),
        case(FLAT, ALL, 3, ISOLATE, "0-2/4-6", id="isolate-runs-one-thread-per-core"),
        case(FLAT, ALL, 8, REQUIRE, "0-7/", id="require-everything"),
        case(FLAT, ALL, 4, ISOLATE, "0-3/4-7", id="isolate-everything"),
        case(FLAT, ALL, 0, ISOLATE, "/", id="nothing"),
        case(FLAT, "0,2-4,6-7", 2, REQUIRE, "0,4/", id="require-looks-at-whole-cores-only"),
        case(FLAT, "0,2-3,6-7", 2, REQUIRE, "2,6/", id="require-never-joins-a-used-core"),
        case(FLAT, "0,2-3,6-7", 1, ISOLATE, "2/6", id="isolate-never-joins-a-used-core"),
        case(WITHOUT_SMT, ALL, 3, REQUIRE, "0-2/", id="require-without-smt-is-plain-cores"),
        case(WITHOUT_SMT, ALL, 3, ISOLATE, "0-2/", id="isolate-without-smt-is-plain-cores"),
        case(FOUR_WAY, ALL, 5, REQUIRE, "0-4/5-7", id="require-smt4-idles-three"),
        case(FOUR_WAY, ALL, 2, ISOLATE, "0,4/1-3,5-7", id="isolate-smt4-idles-six"),
        case(HYBRID, ALL, 5, REQUIRE, "0,4-7/1", id="require-hybrid-small-cores-fit-best"),
        case(HYBRID, ALL, 5, ISOLATE, "0,2,4-6/1,3", id="isolate-hybrid-counts-cores"),
        case(ONE_OFFLINE, ALL, 1, REQUIRE, "1/5", id="require-owns-the-offline-sibling"),
        case(ONE_OFFLINE, ALL, 2, ISOLATE, "0-1/4-5", id="isolate-owns-the-offline-sibling"),
        case(ONE_OFFLINE, ALL, 7, REQUIRE, "0-4,6-7/5", id="require-counts-what-can-run"),
        case(DUAL, ALL, 3, ISOLATE, "0,2,4/6,8,10", id="isolate-fills-a-socket-as-without-smt"),
        case(SIX_CORES, "2-5,7-11", 2, REQUIRE, "2,8/", id="kubelet-reserved-half-cores-are-no-whole-cores"),
        case(SIX_CORES, "1-5,7-11", 10, REQUIRE, "1-5,7-11/", id="kubelet-example-reserved-whole-core"),
    ],
)
def test_smt_policies(topology: Topology, free: str, count: int, smt: SMTPolicy, placed: str) -> None:
    """SMT policies: which siblings may run other containers, and which idle."""
    assert as_text(place(topology, cpus(free) & topology.cpus, count, smt=smt)) == placed


@pytest.mark.parametrize(
    ("count", "smt", "charged"),
    [
        case(5, REQUIRE, 6, id="aligned-5"),
        case(1, ISOLATE, 2, id="isolate-1"),
        case(2, ISOLATE, 4, id="isolate-2"),
        case(4, ISOLATE, 8, id="isolate-4"),
        case(5, ISOLATE, 10, id="isolate-5"),
        case(11, ISOLATE, 22, id="isolate-11"),
    ],
)
def test_cpus_charged_as_in_the_kubelets_proposal(count: int, smt: SMTPolicy, charged: int) -> None:
    """KEP-2625's tables of CPUs taken on two-way SMT."""
    assert len(place(TWELVE_CORES, TWELVE_CORES.cpus, count, smt=smt).owned) == charged


@pytest.mark.parametrize(
    ("cores", "free", "count", "smt", "placed"),
    [
        case("0,4 1,5 2,6 3,7", "2-3,6-7", 4, REQUIRE, "2-3,6-7/", id="require-two-whole-pairs"),
        case("0-1 2-3 4-5 6-7", "3-4,6-7", 4, PREFER, "3-4,6-7/", id="prefer-everything-that-is-left"),
        case("0,8 1,9 2,10 3,11 4,12 5,13 6,14 7,15", ALL, 5, PREFER, "0-2,8-9/", id="prefer-odd-count"),
        case("0,2 1,3", ALL, 2, ISOLATE, "0-1/2-3", id="isolate-charges-sibling-groups"),
        case("0 1 2 3", ALL, 2, PREFER, "0-1/", id="prefer-without-smt-lowest-first"),
        case("0 1 2 3", ALL, 2, ISOLATE, "0-1/", id="isolate-without-smt-as-prefer"),
        case("0-1 2-3 4-5 6-7", "1,3-4,6-7", 3, PREFER, "1,6-7/", id="differs-whole-core-before-orphans"),
        case("0 2-3 4,6", "0,2-3", 2, PREFER, "0,2/", id="differs-tightest-core-first"),
        case("0-1 2-3", ALL, 3, REQUIRE, "0-2/3", id="differs-odd-count-owns-its-last-core"),
        case("0 1 2 3", ALL, 2, REQUIRE, "0-1/", id="differs-require-works-without-smt"),
    ],
)
def test_examples_of_nova(cores: str, free: str, count: int, smt: SMTPolicy, placed: str) -> None:
    """Nova's examples, and where ours differs on purpose (docs/choices.md)."""
    topology = machine_of_cores(*cores.split())
    assert as_text(place(topology, cpus(free) & topology.cpus, count, smt=smt)) == placed


@pytest.mark.parametrize(
    ("cores", "free", "count", "smt", "found"),
    [
        case("0,4 1,5 2,6 3,7", "3-7", 4, REQUIRE, 2, id="three-of-four-pairs-broken"),
        case("0-1 2-3", "1,3", 1, ISOLATE, 0, id="isolate-needs-a-wholly-free-core"),
        case("0,6 1,7 2,8 3,9 4,10 5,11", "0,2-5,7-11", 10, REQUIRE, 8, id="kubelet-example-reserved-halves"),
    ],
)
def test_examples_that_are_refused(cores: str, free: str, count: int, smt: SMTPolicy, found: int) -> None:
    """Broken cores are no whole cores, for Nova, the kubelet and us."""
    topology = machine_of_cores(*cores.split())
    with pytest.raises(NotEnoughCPUs) as refused:
        place(topology, cpus(free), count, smt=smt)
    assert (refused.value.wanted, refused.value.found) == (count, found)


@pytest.mark.parametrize(
    ("topology", "free", "count", "smt", "numa", "placed"),
    [
        case(DUAL, "1-5,7-11", 6, PREFER, PACKED, "1,3,5,7,9,11/", id="packed-one-node-where-one-is-enough"),
        case(DUAL, "1,3-5,7,9-11", 6, PREFER, PACKED, "1,3,5,7,9,11/", id="packed-whole-node"),
        case(
            DUAL, "1,3-4,7,9-10", 4, PREFER, PACKED, "1,3,7,9/", id="packed-not-the-fullest-when-it-crosses"
        ),
        case(DUAL, "1,3-4,7,9-10", 5, PREFER, PACKED, "1,3-4,7,10/", id="packed-crosses-when-it-must"),
        case(DUAL, "1,3-4,7,9-10", 4, PREFER, SINGLE, "1,3,7,9/", id="single-the-node-that-holds-it"),
        case(DUAL, "1,3-4,7,9-10", 2, PREFER, SINGLE, "4,10/", id="single-the-tightest-node"),
        case(DUAL, ALL, 4, REQUIRE, SINGLE, "0,2,6,8/", id="single-require"),
        case(DUAL, ALL, 3, ISOLATE, SINGLE, "0,2,4/6,8,10", id="single-isolate"),
        case(FOUR_NODES, ALL, 6, PREFER, DISTRIBUTED, "0-3,8,10/", id="distributed-three-each"),
        case(FOUR_NODES, ALL, 6, REQUIRE, DISTRIBUTED, "0-2,8-10/", id="distributed-require-whole-cores"),
        case(FOUR_NODES, ALL, 5, REQUIRE, DISTRIBUTED, "0-2,8-9/10", id="distributed-require-odd-count"),
        case(FOUR_NODES, ALL, 3, ISOLATE, DISTRIBUTED, "0-2/8-10", id="distributed-isolate-counts-cores"),
        case(SNC, "0-2,4-8,12,14", 6, PREFER, PACKED, "4-7,12,14/", id="packed-nodes-of-one-socket-first"),
        case(NINE_NODES, ALL, 2, PREFER, PACKED, "0-1/", id="packed-many-nodes"),
        case(NINE_NODES, "0,3-8", 2, PREFER, PACKED, "0,3/", id="packed-many-nodes-already-fewest"),
    ],
)
def test_numa_policies(
    topology: Topology, free: str, count: int, smt: SMTPolicy, numa: NUMAPolicy, placed: str
) -> None:
    """NUMA policies: fewest nodes, evenly many CPUs on each, or exactly one node."""
    found = place(topology, cpus(free) & topology.cpus, count, smt=smt, numa_policy=numa)
    assert as_text(found) == placed


def test_the_nodes_option_distributes_what_is_packed() -> None:
    """The kubelet's option for the node distributes packed claims, and leaves single ones on one node."""
    assert as_text(place(FOUR_NODES, FOUR_NODES.cpus, 6, distribute=True)) == "0-3,8,10/"
    single = place(FOUR_NODES, FOUR_NODES.cpus, 4, distribute=True, numa_policy=SINGLE)
    assert as_text(single) == "0-1,8-9/"


@pytest.mark.parametrize(("sort", "placed"), [("packed", "0,4/"), ("spread", "0-1/")])
def test_sorting_is_for_claims_that_share_cores(sort: Sort, placed: str) -> None:
    """Spread sorting separates threads under prefer; whole-core claims are packed anyway."""
    assert as_text(place(FLAT, FLAT.cpus, 2, sort=sort)) == placed
    assert as_text(place(FLAT, FLAT.cpus, 2, smt=REQUIRE, sort=sort)) == "0,4/"


def test_caches_are_aligned_on_demand() -> None:
    """The cache option reaches the kubelet's algorithm under prefer and require."""
    free = CACHES.cpus - cpus("0")
    assert as_text(place(CACHES, free, 4, align_uncore=True)) == "2-3,10-11/"
    assert as_text(place(CACHES, free, 4, smt=REQUIRE, align_uncore=True)) == "2-3,10-11/"
    assert as_text(place(CACHES, free, 4, smt=REQUIRE)) == "1-2,9-10/"


@pytest.mark.parametrize(
    ("smt", "count", "placed"),
    [
        case(PREFER, 2, "0,4/", id="prefer-does-not-look"),
        case(REQUIRE, 2, "2,6/", id="require-isolated-first"),
        case(REQUIRE, 4, "0,2,4,6/", id="require-then-others"),
        case(ISOLATE, 1, "2/6", id="isolate-isolated-first"),
        case(ISOLATE, 2, "0,2/4,6", id="isolate-then-others"),
    ],
)
def test_whole_core_claims_take_isolated_cores_first(smt: SMTPolicy, count: int, placed: str) -> None:
    """A core counts as isolated when the kernel schedules on none of its CPUs; half-isolated core 3 does not."""
    topology = isolating(FLAT, "2,6,3")
    assert as_text(place(topology, FLAT.cpus, count, smt=smt)) == placed


@pytest.mark.parametrize(
    ("smt", "free", "reusable", "count", "placed"),
    [
        case(PREFER, "2-3,6-7", "0-1,4-5", 2, "0,4/", id="prefer"),
        case(REQUIRE, "2-3,6-7", "1,5", 3, "1-2,5/6", id="require-reusable-core-first"),
        case(REQUIRE, "0-4,6-7", "5", 2, "1,5/", id="require-core-of-reusable-and-free"),
        case(ISOLATE, "0-4,6-7", "5", 1, "5/1", id="isolate-runs-the-reusable-sibling"),
    ],
)
def test_reuse_under_policies(smt: SMTPolicy, free: str, reusable: str, count: int, placed: str) -> None:
    """CPUs of an init container come first, as whole cores where whole cores are asked for."""
    assert as_text(place(FLAT, cpus(free), count, smt=smt, reusable=cpus(reusable))) == placed


def test_reusable_cpus_decide_between_nodes() -> None:
    """Under single, of two nodes that fit the one with the reusable CPUs is taken."""
    placed = place(DUAL, DUAL.cpus - cpus("1"), 2, numa_policy=SINGLE, reusable=cpus("1"))
    assert as_text(placed) == "1,7/"


@pytest.mark.parametrize(
    ("free", "count", "smt", "numa", "message"),
    [
        case(
            "0-3,6", 6, PREFER, PACKED,
            "wanted 6 free CPUs, found 5: ask for at most 5",
            id="prefer",
        ),
        case(
            "0-3,6", 4, REQUIRE, PACKED,
            "wanted 4 CPUs on wholly free cores, found 2, and 3 with busy siblings: ask for at most 2"
            " or choose smt-policy prefer",
            id="require",
        ),
        case(
            "", 1, ISOLATE, PACKED,
            "wanted 1 wholly free cores, found 0",
            id="isolate",
        ),
        case(
            ALL, 7, PREFER, SINGLE,
            "wanted 7 free CPUs on one NUMA node, found 6: ask for at most 6 or choose numa-policy packed",
            id="single",
        ),
        case(
            ALL, 4, ISOLATE, SINGLE,
            "wanted 4 wholly free cores on one NUMA node, found 3: ask for at most 3,"
            " choose numa-policy packed or choose smt-policy prefer",
            id="single-isolate",
        ),
    ],
)  # fmt: skip
def test_a_refusal_says_what_would_fit(
    free: str, count: int, smt: SMTPolicy, numa: NUMAPolicy, message: str
) -> None:
    """A refusal names wanted and found CPUs, and only remedies that would work."""
    with pytest.raises(NotEnoughCPUs) as refused:
        place(DUAL, cpus(free) & DUAL.cpus, count, smt=smt, numa_policy=numa)
    assert str(refused.value) == message


def test_single_does_not_leave_its_node_to_grow() -> None:
    """A container whose node is full is refused rather than moved away from its memory."""
    with pytest.raises(NotEnoughCPUs, match="wanted 3 free CPUs on one NUMA node, found 2"):
        place(DUAL, cpus("1,3,5,7"), 3, numa_policy=SINGLE, keep=Placement(cpus("0,6")))


def test_nothing_online_fits_nothing() -> None:
    """A machine whose CPUs are all offline refuses under every NUMA policy."""
    dark = FLAT.with_online(cpus(""))
    for numa in NUMAPolicy:
        with pytest.raises(NotEnoughCPUs):
            place(dark, FLAT.cpus, 1, numa_policy=numa)


@pytest.mark.parametrize("act", [place, take_cores])
def test_a_negative_count_is_the_callers_bug(act: object) -> None:
    """A negative count is a programming error, not a refusal."""
    assert callable(act)
    with pytest.raises(ValueError, match="count -1 must be 0 or more"):
        act(FLAT, FLAT.cpus, -1)
