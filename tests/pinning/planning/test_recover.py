"""Rebuilding a ledger from the cpusets of running containers."""

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
    """Return the ledger that is rebuilt from a node's containers."""
    return recover(world.observe(), world.config)


def world_of(*pods: tuple[str, Wish]) -> World:
    """Return a node where these pods run on their CPUs."""
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
    """The rebuilt ledger has the CPUs, idle siblings and policies of running containers."""
    world = world_of(("a", wish), ("b", Wish()))
    assert len(world.ledger) == 1
    assert recovered(world) == world.ledger


def test_own_part_is_taken_from_what_was_reported_if_nothing_else_shows_it() -> None:
    """If cpusets do not show a container's own CPUs, the reported ones are adopted if they fit its claim and its cpuset."""
    world = world_of(("a", Wish("2", policy="exclusive", shared="true")))
    own = next(iter(world.ledger)).cpus
    observed, owner = world.observe(), Owner("a", "c0")

    assert recover(observed, world.config) == Ledger()
    assert recover(observed, world.config, {owner: own}) == world.ledger
    assert recover(observed, world.config, {owner: own | CPUSet.parse("0")}) == Ledger()


def test_refused_claim_is_not_taken_for_pinned() -> None:
    """Two containers in the shared set, whose claims were refused, do not own its CPUs in the rebuilt ledger."""
    world = world_of(("a", Wish("6", policy="exclusive")), ("b", TWO), ("c", TWO))
    assert recovered(world) == world.ledger


def test_container_without_cpuset_does_not_prevent_recovery() -> None:
    """A container on all CPUs, which started without an agent, does not prevent that owners are found."""
    world = world_of(("a", TWO), ("b", Wish()))
    world.add("late", [Wish()])
    world.start("late", "c0")
    assert recovered(world) == world.ledger


def test_reserved_cpus_are_never_adopted() -> None:
    """A container on reserved CPUs does not own them in the rebuilt ledger, and the plan places its claim again."""
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
    """A cpuset with another number of CPUs than the claim is adopted only if another container runs, and not on it."""
    world = world_of(("a", TWO))
    on(world, "a", "1-2,5")
    assert recovered(world) == Ledger()

    world.add("b", [Wish()])
    world.start("b", "c0")
    on(world, "b", "0,3-4,6-7")
    assert [str(assignment.cpus) for assignment in recovered(world)] == ["1-2,5"]


def test_cpus_of_two_containers_of_a_pod_are_the_first_ones() -> None:
    """If two containers of a pod have the same CPUs, the first one owns them."""
    world = World(FLAT)
    world.add("a", [TWO, TWO])
    for name in ("c0", "c1"):
        world.start("a", name)
    on(world, "a", "1,5")
    assert [assignment.owner.container for assignment in recovered(world)] == ["c0"]


@given(topology=topologies(max_cores_per_cache=3), wishes=st.lists(WISHES, max_size=5))
def test_recovered_ledger_keeps_every_rule(topology, wishes: list[Wish]) -> None:  # type: ignore[no-untyped-def]
    """The ledger rebuilt from any running containers follows every rule, and the plan accepts it."""
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
    """If containers also use the shared set, their own CPUs are those that no other of them has."""
    wish = Wish("2", policy="exclusive", shared="true")
    world = world_of(("a", wish), ("b", wish))
    assert {str(seen.cpus) for seen in world.live()} == {"0-1,3-5,7", "0,2-4,6-7"}
    assert recovered(world) == world.ledger


def test_own_part_is_what_no_container_without_a_claim_runs_on() -> None:
    """A container that also uses the shared set owns the CPUs of its cpuset on which no container without a claim runs."""
    world = world_of(("a", Wish("2", policy="exclusive", shared="true")), ("b", Wish()))
    assert len(world.ledger) == 1
    assert recovered(world) == world.ledger
