"""Claims and last-level caches on every machine of the test data, beside claims that start and end at random."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from pinning.allocation import Placement, place
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, assemble
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.node_sets import node_sets
from tests.machines import NAMES, captured
from tests.pinning.machines import CACHES, DUAL, machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.machine.topology import Topology

EVEN = ["epyc-7451", "epyc-7742-nps1", "epyc-7742-nps4", "epyc-9754", "power9-ac922"]
EVENTS = 150
MOST_USED = 0.8


@pytest.mark.parametrize("name", NAMES)
def test_auto_aligns_where_a_numa_node_has_several_even_caches(name: str) -> None:
    """`auto` is on for EPYC and POWER9; off for one cache a node, one core a cache (POWER8) and uneven caches."""
    topology = captured(name)
    assert node_sets(topology, topology.online, DEFAULT).align_uncore == (name in EVEN)


@pytest.mark.parametrize(("second", "even"), [("performance", True), ("efficient", False)])
def test_auto_does_not_align_caches_of_unlike_core_types(second: str, even: bool) -> None:
    """With one cache of performance cores and one of efficient cores the cache is no reason to leave a core type."""
    facts = [
        CPUFacts(cpu, core=cpu, package=0, numa_node=0, uncore_cache=cpu // 4, core_type=core_type)
        for cpu, core_type in enumerate(["performance"] * 4 + [second] * 4)
    ]
    topology = assemble(facts, CPUSet(range(8)))
    assert node_sets(topology, topology.online, DEFAULT).align_uncore is even


@pytest.mark.parametrize("align", [False, True])
def test_a_configured_word_wins_over_the_machine(align: bool) -> None:
    """`true` and `false` hold on machines with and without even caches."""
    for topology in (CACHES, DUAL):
        assert node_sets(topology, topology.online, NodeConfig(align_uncore=align)).align_uncore is align


def capacity(topology: Topology, cpus: CPUSet, smt: SMTPolicy) -> int:
    """Return the largest claim that a policy could place on the CPUs."""
    if smt is SMTPolicy.PREFER:
        return len(cpus)
    whole = [online for core in topology.cores_of(cpus) if (online := topology.online_cpus_of(core)) <= cpus]
    return len(whole) if smt is SMTPolicy.ISOLATE else sum(map(len, whole))


def choices(
    topology: Topology, smt: SMTPolicy, numa: NUMAPolicy, seed: int
) -> Iterator[tuple[CPUSet, int, Placement]]:
    """Yield free CPUs, count and choice of each claim, while claims of 1 to 16 CPUs come and go."""
    random, free = Random(seed), topology.online  # noqa: S311 - the same claims in every run
    running: list[Placement] = []
    for _ in range(EVENTS):
        busy = len(topology.online) - len(free)
        if running and (busy > MOST_USED * len(topology.online) or random.random() < 0.3):
            free |= running.pop(random.randrange(len(running))).owned
            continue
        count = random.randint(1, 16)
        try:
            chosen = place(topology, free, count, smt=smt, numa_policy=numa, align_uncore=True)
        except NotEnoughCPUs:
            continue
        yield free, count, chosen
        running.append(chosen)
        free -= chosen.owned


@pytest.mark.parametrize("numa", NUMAPolicy)
@pytest.mark.parametrize("smt", SMTPolicy)
@pytest.mark.parametrize("name", EVEN)
def test_no_claim_is_split_that_one_cache_has_room_for(name: str, smt: SMTPolicy, numa: NUMAPolicy) -> None:
    """A claim runs on several caches only if none has room for it, or `distributed` needs several NUMA nodes."""
    topology = captured(name)
    caches = topology.uncore_caches.values()
    for free, count, chosen in choices(topology, smt, numa, seed=EVEN.index(name)):
        is_split = sum(not cache.isdisjoint(chosen.cpus) for cache in caches) > 1
        assert not is_split or max(capacity(topology, cache & free, smt) for cache in caches) < count


def fits(
    topology: Topology, free: CPUSet, count: int, smt: SMTPolicy, numa: NUMAPolicy, *, align: bool
) -> bool:
    """Return whether a claim gets CPUs."""
    try:
        place(topology, free, count, smt=smt, numa_policy=numa, align_uncore=align)
    except NotEnoughCPUs:
        return False
    return True


@pytest.mark.parametrize("numa", NUMAPolicy)
@pytest.mark.parametrize("smt", SMTPolicy)
@pytest.mark.parametrize("name", EVEN)
def test_alignment_refuses_no_claim_that_fits_without_it(name: str, smt: SMTPolicy, numa: NUMAPolicy) -> None:
    """On the same free CPUs the same claims are refused, whether or not they are aligned to caches."""
    topology, random = captured(name), Random(name)  # noqa: S311 - the same claims in every run
    cpus, found = sorted(topology.online), set()
    for _ in range(60):
        free = CPUSet(random.sample(cpus, random.randint(0, len(cpus))))
        count = random.randint(1, 16)
        with_it, without = (fits(topology, free, count, smt, numa, align=it) for it in (True, False))
        assert with_it is without
        found.add(without)
    assert found == {True, False}


@pytest.mark.parametrize("numa", NUMAPolicy)
def test_a_claim_that_grows_stays_in_its_cache(numa: NUMAPolicy) -> None:
    """A claim that grows takes the rest of its cache before an emptier cache."""
    keep = place(CACHES, CACHES.online, 2, numa_policy=numa, align_uncore=True)
    grown = place(CACHES, CACHES.online - keep.cpus, 4, numa_policy=numa, align_uncore=True, keep=keep)
    assert len({CACHES.core_of(cpu).uncore_cache for cpu in grown.cpus}) == 1


@pytest.mark.parametrize(
    ("align", "chosen"), [pytest.param(False, "0,2", id="off"), pytest.param(True, "4-5", id="on")]
)
def test_single_takes_the_node_whose_cache_has_room(align: bool, chosen: str) -> None:
    """The tighter node has two free CPUs on two caches, the other one three, two of them in one cache."""
    topology = machine(8, 1, lambda core: (core // 4, core // 4, core // 2))
    free = CPUSet.parse("0,2,4-6")
    assert str(place(topology, free, 2, numa_policy=NUMAPolicy.SINGLE, align_uncore=align).cpus) == chosen
