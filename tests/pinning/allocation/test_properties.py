"""Properties for every machine, every set of free CPUs and every claim."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pinning.allocation import Placement, Sort, place, take_cores, take_cpus
from pinning.contract import NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.topology import CPUFacts, Topology, assemble
from tests.strategies import cpu_sets, topologies

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from hypothesis.strategies import DrawFn

T = TypeVar("T")
SORTS: list[Sort] = ["packed", "spread"]
POLICIES = st.sampled_from(SMTPolicy)
NUMA_POLICIES = st.sampled_from(NUMAPolicy)


@dataclass(frozen=True)
class Node:
    """A machine with some CPUs free, and how its operator lets the agent choose."""

    topology: Topology
    free: CPUSet
    sort: Sort
    distribute: bool
    align_uncore: bool

    def place(
        self,
        count: int,
        smt: SMTPolicy,
        numa: NUMAPolicy = NUMAPolicy.PACKED,
        *,
        free: CPUSet | None = None,
        keep: Placement | None = None,
        held: Placement | None = None,
        reusable: CPUSet = EMPTY,
    ) -> Placement:
        """Place on this node with its options."""
        return place(
            self.topology,
            self.free if free is None else free,
            count,
            smt=smt,
            numa_policy=numa,
            sort=self.sort,
            distribute=self.distribute,
            align_uncore=self.align_uncore,
            keep=keep,
            held=held,
            reusable=reusable,
        )


@st.composite
def nodes(draw: DrawFn) -> Node:
    """Return a node with any free CPUs, offline ones never among them."""
    topology = draw(topologies())
    free = draw(cpu_sets(topology.online)) if draw(st.booleans()) else topology.online
    options = draw(st.sampled_from(SORTS)), draw(st.booleans()), draw(st.booleans())
    return Node(topology, free, *options)


def capacity(topology: Topology, free: CPUSet, smt: SMTPolicy) -> int:
    """Count what a policy can give, core by core."""
    if smt is SMTPolicy.PREFER:
        return len(free & topology.online)
    online = [topology.online_cpus_of(core) for core in topology.cores]
    whole = [cpus for cpus in online if cpus and cpus <= free]
    return len(whole) if smt is SMTPolicy.ISOLATE else sum(len(cpus) for cpus in whole)


def capacity_of_best_node(topology: Topology, free: CPUSet, smt: SMTPolicy) -> int:
    """Count what a policy can give on the NUMA node that has most."""
    return max(capacity(topology, free & cpus, smt) for cpus in topology.numa_nodes.values())


@settings(deadline=None)
@given(nodes(), st.integers(0, 64), st.integers(1, 4), st.data())
def test_the_kubelet_way_takes_exactly_what_was_asked(
    node: Node, count: int, group: int, data: st.DataObject
) -> None:
    """`take_cpus` returns exactly the count out of the candidates, or refuses when there are too few."""
    reusable = data.draw(cpu_sets(node.topology.online))
    hint = data.draw(st.none() | st.frozensets(st.sampled_from(sorted(node.topology.numa_nodes))))
    candidates = node.free | reusable

    def take() -> CPUSet:
        return take_cpus(
            node.topology,
            node.free,
            count,
            sort=node.sort,
            distribute=node.distribute,
            group_size=group,
            align_uncore=node.align_uncore,
            numa=hint,
            reusable=reusable,
        )

    if count > len(candidates):
        with pytest.raises(NotEnoughCPUs) as refused:
            take()
        assert (refused.value.wanted, refused.value.found) == (count, len(candidates))
    else:
        assert len(take()) == count
        assert take() <= candidates


@settings(deadline=None)
@given(nodes(), st.integers(0, 64), st.data())
def test_hinted_nodes_come_first_and_reusable_cpus_before_free_ones(
    node: Node, count: int, data: st.DataObject
) -> None:
    """Aligned reusable, aligned free, unaligned reusable, unaligned free: no later one before all earlier ones."""
    reusable = data.draw(cpu_sets(node.topology.online))
    aligned = node.topology.numa_nodes[data.draw(st.sampled_from(sorted(node.topology.numa_nodes)))]
    candidates = node.free | reusable
    assume(count <= len(candidates))
    taken = take_cpus(node.topology, node.free, count, numa=aligned, reusable=reusable)
    stages = [
        reusable & aligned,
        candidates & aligned - reusable,
        reusable - aligned,
        candidates - aligned - reusable,
    ]
    left = count
    for stage in stages:
        assert len(taken & stage) == min(left, len(stage))
        left -= len(taken & stage)


@settings(deadline=None)
@given(nodes(), st.integers(0, 40), POLICIES, NUMA_POLICIES)
def test_a_claim_fits_exactly_when_there_is_enough(
    node: Node, count: int, smt: SMTPolicy, numa: NUMAPolicy
) -> None:
    """A claim is refused only if the policy cannot give enough CPUs, and the refusal says how many it can."""
    single = numa is NUMAPolicy.SINGLE
    most = (capacity_of_best_node if single else capacity)(node.topology, node.free, smt)
    if count > most:
        with pytest.raises(NotEnoughCPUs) as refused:
            node.place(count, smt, numa)
        assert (refused.value.wanted, refused.value.found) == (count, most)
        return
    placement = node.place(count, smt, numa)
    assert len(placement.cpus) == count
    assert placement.cpus <= node.free
    assert placement.cpus.isdisjoint(placement.idle)
    assert placement.idle & node.topology.online <= node.free
    if single and count:
        assert any(placement.cpus <= cpus for cpus in node.topology.numa_nodes.values())


def tried(act: Callable[[], T]) -> T | NotEnoughCPUs:
    """Return the result of an attempt, or its refusal."""
    try:
        return act()
    except NotEnoughCPUs as refused:
        return refused


def check_cores(topology: Topology, placement: Placement, smt: SMTPolicy) -> None:
    """Assert what an SMT policy promises about cores."""
    if smt is SMTPolicy.PREFER:
        assert not placement.idle
        return
    assert placement.owned == topology.siblings_of(placement.cpus)
    if smt is SMTPolicy.ISOLATE:
        assert all(len(core.cpus & placement.cpus) == 1 for core in topology.cores_of(placement.cpus))


@settings(deadline=None)
@given(nodes(), st.integers(1, 16), POLICIES, NUMA_POLICIES)
def test_policies_own_the_cores_they_promise(
    node: Node, count: int, smt: SMTPolicy, numa: NUMAPolicy
) -> None:
    """Under require and isolate every sibling is owned, offline ones too; isolate runs one thread per core."""
    assume(count <= capacity_of_best_node(node.topology, node.free, smt))
    check_cores(node.topology, node.place(count, smt, numa), smt)


@settings(deadline=None)
@given(nodes(), st.integers(1, 16), NUMA_POLICIES)
def test_require_idles_less_than_a_core(node: Node, count: int, numa: NUMAPolicy) -> None:
    """Under require fewer CPUs idle than the largest core has, offline ones aside."""
    assume(count <= capacity_of_best_node(node.topology, node.free, SMTPolicy.REQUIRE))
    idle = node.place(count, SMTPolicy.REQUIRE, numa).idle & node.topology.online
    assert len(idle) < node.topology.smt


@settings(deadline=None)
@given(nodes(), st.lists(st.tuples(st.integers(1, 6), POLICIES, NUMA_POLICIES), max_size=6))
def test_claims_one_after_another_never_overlap(
    node: Node, claims: list[tuple[int, SMTPolicy, NUMAPolicy]]
) -> None:
    """What one claim owns is never given to another one."""
    owned: list[CPUSet] = []
    free = node.free
    for count, smt, numa in claims:
        placement = tried(partial(node.place, count, smt, numa, free=free))
        if isinstance(placement, NotEnoughCPUs):
            continue
        owned.append(placement.owned)
        free -= placement.owned
    assert len(union(owned)) == sum(len(cpus) for cpus in owned)


@settings(deadline=None)
@given(nodes(), st.integers(1, 16), st.integers(1, 16), POLICIES, NUMA_POLICIES)
def test_growing_keeps_and_shrinking_gives_back(
    node: Node, before: int, after: int, smt: SMTPolicy, numa: NUMAPolicy
) -> None:
    """A larger count keeps every CPU, a smaller one adds none, an equal one changes nothing."""
    assume(before <= capacity_of_best_node(node.topology, node.free, smt))
    placed = node.place(before, smt, numa)
    resized = tried(lambda: node.place(after, smt, numa, free=node.free - placed.owned, keep=placed))
    if isinstance(resized, NotEnoughCPUs):
        assert resized.found < after
        assert numa is NUMAPolicy.SINGLE or resized.found == capacity(node.topology, node.free, smt)
        return
    assert len(resized.cpus) == after
    small, large = sorted([placed, resized], key=lambda placement: len(placement.cpus))
    assert small.cpus <= large.cpus
    assert after != before or resized == placed
    check_cores(node.topology, resized, smt)
    if numa is NUMAPolicy.SINGLE:
        assert any(resized.cpus <= cpus for cpus in node.topology.numa_nodes.values())


@settings(deadline=None)
@given(nodes(), st.integers(1, 16), POLICIES, NUMA_POLICIES, st.data())
def test_offline_cpus_are_replaced_and_the_rest_stays(
    node: Node, count: int, smt: SMTPolicy, numa: NUMAPolicy, data: st.DataObject
) -> None:
    """After some CPUs went offline a placement has its count again, and all its CPUs that are still online."""
    assume(count <= capacity_of_best_node(node.topology, node.free, smt))
    placed = node.place(count, smt, numa)
    online = data.draw(cpu_sets(node.topology.online))
    assume(online)
    now = Node(
        node.topology.with_online(online), node.free & online, node.sort, node.distribute, node.align_uncore
    )
    repaired = tried(lambda: now.place(count, smt, numa, free=now.free - placed.owned, keep=placed))
    if isinstance(repaired, NotEnoughCPUs):
        assert repaired.found < count
        assert numa is NUMAPolicy.SINGLE or repaired.found == capacity(now.topology, now.free, smt)
        return
    assert len(repaired.cpus) == count
    assert repaired.cpus <= now.free
    assert placed.cpus & online <= repaired.cpus
    check_cores(now.topology, repaired, smt)


@settings(deadline=None)
@given(nodes(), st.integers(1, 16), POLICIES, POLICIES, NUMA_POLICIES, NUMA_POLICIES)
def test_another_policy_is_met_from_what_is_held(
    node: Node, count: int, old: SMTPolicy, new: SMTPolicy, old_numa: NUMAPolicy, new_numa: NUMAPolicy
) -> None:
    """A changed policy is met as by a fresh claim, and as many held CPUs as possible are kept."""
    assume(count <= capacity_of_best_node(node.topology, node.free, old))
    held = node.place(count, old, old_numa)
    single = new_numa is NUMAPolicy.SINGLE
    most = (capacity_of_best_node if single else capacity)(node.topology, node.free, new)
    if count > most:
        with pytest.raises(NotEnoughCPUs):
            node.place(count, new, new_numa, free=node.free - held.owned, held=held)
        return
    moved = node.place(count, new, new_numa, free=node.free - held.owned, held=held)
    assert len(moved.cpus) == count
    assert moved.cpus <= node.free
    check_cores(node.topology, moved, new)
    evenly = node.distribute or new_numa is NUMAPolicy.DISTRIBUTED
    if len(node.topology.numa_nodes) == 1 and not evenly and not uneven(node.topology):
        assert len(moved.cpus & held.cpus) == most_kept(node, held.cpus, count, new)


def uneven(topology: Topology) -> bool:
    """Return whether the cores differ in their number of online CPUs."""
    return len({len(topology.online_cpus_of(core)) for core in topology.cores}) > 1


def most_kept(node: Node, held: CPUSet, count: int, smt: SMTPolicy) -> int:
    """Count the held CPUs that a policy can keep at best on a machine of equal cores."""
    whole = [core for core in node.topology.cores_of(held) if node.topology.online_cpus_of(core) <= node.free]
    on_core = sorted((len(core.cpus & held) for core in whole), reverse=True)
    if smt is SMTPolicy.PREFER:
        return count
    if smt is SMTPolicy.ISOLATE:
        return min(count, len(whole))
    cores = -(-count // len(node.topology.online_cpus_of(node.topology.cores[0])))
    return min(count, sum(on_core[:cores]))


@settings(deadline=None)
@given(nodes(), st.integers(1, 16), POLICIES, NUMA_POLICIES, st.randoms(use_true_random=False))
def test_the_order_in_which_a_machine_is_read_does_not_matter(
    node: Node, count: int, smt: SMTPolicy, numa: NUMAPolicy, random: Random
) -> None:
    """The same machine, its CPUs read in another order, gives the same answer."""
    assume(count <= capacity_of_best_node(node.topology, node.free, smt))
    facts = [
        CPUFacts(cpu, core.id, core.package, core.numa_node, core.uncore_cache, core.l2)
        for core in node.topology.cores
        for cpu in core.cpus
    ]
    random.shuffle(facts)
    again = replace(node, topology=assemble(facts, node.topology.online, node.topology.isolated))
    assert again.place(count, smt, numa) == node.place(count, smt, numa)


@settings(deadline=None)
@given(nodes(), st.integers(0, 12), st.sampled_from(SORTS), st.booleans())
def test_whole_cores_are_taken_whole(node: Node, count: int, mode: Sort, prefer_isolated: bool) -> None:
    """`take_cores` returns all online siblings of exactly so many wholly free cores, isolated ones first."""
    topology = node.topology
    online = [topology.online_cpus_of(core) for core in topology.cores]
    whole = [cpus for cpus in online if cpus and cpus <= node.free]
    if count > len(whole):
        with pytest.raises(NotEnoughCPUs) as refused:
            take_cores(topology, node.free, count, mode=mode, prefer_isolated=prefer_isolated)
        assert refused.value.found == len(whole)
        return
    taken = take_cores(topology, node.free, count, mode=mode, prefer_isolated=prefer_isolated)
    chosen = [cpus for cpus in whole if cpus <= taken]
    assert union(chosen) == taken
    assert len(chosen) == count
    isolated = [cpus for cpus in whole if cpus <= topology.isolated]
    if prefer_isolated:
        assert sum(cpus <= topology.isolated for cpus in chosen) == min(count, len(isolated))


@settings(deadline=None)
@given(nodes(), st.integers(1, 6), st.sampled_from(SORTS), st.data())
def test_whole_cores_stay_while_a_sibling_is_online(
    node: Node, count: int, mode: Sort, data: st.DataObject
) -> None:
    """A core of a claim is kept as long as one of its CPUs is online, and others are added for the rest."""
    assume(count <= capacity(node.topology, node.free, SMTPolicy.ISOLATE))
    taken = take_cores(node.topology, node.free, count, mode=mode)
    now = node.topology.with_online(data.draw(cpu_sets(node.topology.online)))
    again = tried(lambda: take_cores(now, node.free - taken, count, mode=mode, keep=taken))
    if isinstance(again, NotEnoughCPUs):
        assert again.found == capacity(now, node.free, SMTPolicy.ISOLATE) < count
        return
    assert taken & now.online <= again
    assert len(now.cores_of(again)) == count
