"""Rebuilding a ledger from running containers: unambiguous CPUs are adopted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinning.machine.cpuset import CPUSet
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.observed import Owner
from pinning.planning.recover import recover
from tests.pinning.machines import FLAT
from tests.pinning.wishes import WISHES
from tests.pinning.world import Wish, World
from tests.strategies import topologies

TWO = Wish("2", policy="exclusive")


def recovered(world: World) -> Ledger:
    """Return the ledger that a world's containers show."""
    return recover(world.observe(), world.config)


def world_of(*pods: tuple[str, Wish]) -> World:
    """Return a node where these pods run where they belong."""
    world = World(FLAT)
    for uid, wish in pods:
        world.add(uid, [wish])
        world.start(uid, "c0")
    world.run_all()
    return world


@pytest.mark.parametrize(
    "wish",
    [
        pytest.param(TWO, id="exclusive"),
        pytest.param(Wish("1", policy="share"), id="share"),
        pytest.param(Wish("1", smt="require"), id="odd count of whole cores"),
        pytest.param(Wish("2", smt="isolate"), id="idle siblings"),
        pytest.param(Wish(cores=2), id="CMK cores"),
    ],
)
def test_what_runs_is_held_again(wish: Wish) -> None:
    """CPUs, idle siblings and policies of running containers are recovered."""
    world = world_of(("a", wish), ("b", Wish()))
    assert len(world.ledger) == 1
    assert recovered(world) == world.ledger


def test_own_part_is_taken_from_what_was_reported_if_nothing_else_shows_it() -> None:
    """A lone container that may use the shared set runs everywhere; what does not lie within its cpuset is no hint."""
    world = world_of(("a", Wish("2", policy="exclusive", shared="true")))
    own = next(iter(world.ledger)).cpus
    observed, owner = world.observe(), Owner("a", "c0")

    assert recover(observed, world.config) == Ledger()
    assert recover(observed, world.config, {owner: own}) == world.ledger
    assert recover(observed, world.config, {owner: own | CPUSet.parse("0")}) == Ledger()


def test_refused_claim_is_not_taken_for_pinned() -> None:
    """Two containers that were refused run in the shared set together: neither owns it."""
    world = world_of(("a", Wish("6", policy="exclusive")), ("b", TWO), ("c", TWO))
    assert recovered(world) == world.ledger


def test_container_without_cpuset_does_not_prevent_recovery() -> None:
    """A container that runs everywhere, because it started without an agent, takes nothing from owners."""
    world = world_of(("a", TWO), ("b", Wish()))
    world.add("late", [Wish()])
    world.start("late", "c0")
    assert recovered(world) == world.ledger


def test_reserved_cpus_are_never_adopted() -> None:
    """Foreign cpusets on reserved CPUs are not adopted, and the plan places the claim anew."""
    world = world_of(("a", TWO), ("b", Wish()))
    number = next(key for key, seen in world.containers.items() if seen.owner.pod_uid == "a")
    world.containers[number] = replace(world.containers[number], cpus=CPUSet.parse("0,4"))
    assert recovered(world) == Ledger()


def on(world: World, uid: str, cpus: str) -> None:
    """Set the cpusets of a pod's containers, as any program may."""
    for key, seen in world.containers.items():
        if seen.owner.pod_uid == uid:
            world.containers[key] = replace(seen, cpus=CPUSet.parse(cpus))


def test_other_number_of_cpus_is_adopted_where_nobody_else_runs_there() -> None:
    """A container that has more than it asks for keeps them if all others keep off, and others there are."""
    world = world_of(("a", TWO))
    on(world, "a", "1-2,5")
    assert recovered(world) == Ledger()

    world.add("b", [Wish()])
    world.start("b", "c0")
    on(world, "b", "0,3-4,6-7")
    assert [str(assignment.cpus) for assignment in recovered(world)] == ["1-2,5"]


def test_cpus_of_two_containers_of_a_pod_are_the_first_ones() -> None:
    """CPUs that two containers of a pod seem to hold are the first one's."""
    world = World(FLAT)
    world.add("a", [TWO, TWO])
    for name in ("c0", "c1"):
        world.start("a", name)
    on(world, "a", "1,5")
    assert [assignment.owner.container for assignment in recovered(world)] == ["c0"]


@given(topology=topologies(max_cores_per_cache=3), wishes=st.lists(WISHES, max_size=5))
def test_recovered_ledger_keeps_every_rule(topology, wishes: list[Wish]) -> None:  # type: ignore[no-untyped-def]
    """Whatever runs, what is recovered breaks no rule, and the plan accepts it."""
    world = World(topology)
    for number, wish in enumerate(wishes):
        world.add(f"u{number}", [wish])
        world.start(f"u{number}", "c0")
    world.run_all()
    ledger = recovered(world)
    assert problems(ledger, world.sets) == ()
    world.ledger = ledger
    world.run_all()
    assert problems(world.ledger, world.sets) == ()


def test_own_cpus_beside_the_shared_set_are_found_by_comparison() -> None:
    """Containers that also use the shared set reveal their own CPUs by comparison: no two share what one owns."""
    wish = Wish("2", policy="exclusive", shared="true")
    world = world_of(("a", wish), ("b", wish))
    assert {str(seen.cpus) for seen in world.live()} == {"0-1,3-5,7", "0,2-4,6-7"}
    assert recovered(world) == world.ledger


def test_own_part_is_what_no_container_without_a_claim_runs_on() -> None:
    """A container that uses the shared set too owns the rest of its cpuset."""
    world = world_of(("a", Wish("2", policy="exclusive", shared="true")), ("b", Wish()))
    assert len(world.ledger) == 1
    assert recovered(world) == world.ledger
