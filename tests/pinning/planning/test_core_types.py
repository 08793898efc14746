"""Claims on hybrid machines: one core type each if one type suffices, and the type that a pod requests."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

from pinning.contract import CoreType, CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.errors import NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import EFFICIENCY, PERFORMANCE, CPUFacts, Topology, assemble
from pinning.planning.allocator import Allocator, EffectivePolicies
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.node_sets import node_sets
from pinning.planning.recover import recover
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.machines import captured
from tests.pinning.world import EXCLUSIVE, Wish, World, edit, reasons

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pinning.allocation import Placement

HYBRID = (
    assemble(  # performance cores 0,1 2,3 4,5 6,7, of which the first is reserved; efficient cores 8 to 13
        [CPUFacts(cpu, cpu // 2, 0, 0, core_type=PERFORMANCE) for cpu in range(8)]
        + [CPUFacts(cpu, cpu, 0, 0, core_type=EFFICIENCY) for cpu in range(8, 14)],
        CPUSet(range(14)),
    )
)
FAST = Wish("2", policy="exclusive", core_type="performance")
SLOW = Wish("2", policy="exclusive", core_type="efficient")


def node(*wishes: Wish, topology: Topology = HYBRID, core_type: CoreType = CoreType.ANY) -> World:
    """Return a node with one planned pod for each claim, named a, b..."""
    world = World(topology, NodeConfig(reserved=CPUSet([0]), core_type=core_type))
    for uid, wish in zip("abcdef", wishes, strict=False):
        world.add(uid, [wish])
        world.start(uid, "c0")
    world.run_all()
    return world


@pytest.mark.parametrize(
    ("wish", "default", "held"),
    [
        pytest.param(EXCLUSIVE, CoreType.ANY, "2-3", id="any: performance first"),
        pytest.param(Wish("1", smt="isolate"), CoreType.ANY, "2 idle 3", id="any, isolate"),
        pytest.param(Wish("6", policy="exclusive"), CoreType.ANY, "2-7", id="any: all performance cores"),
        pytest.param(Wish("4", smt="isolate"), CoreType.ANY, "8-11", id="any: the type that has room"),
        pytest.param(
            Wish("7", policy="exclusive"), CoreType.ANY, "2,8-13", id="any: both, if neither has room"
        ),
        pytest.param(Wish("2", policy="share"), CoreType.ANY, "2-3", id="any, share"),
        pytest.param(Wish(cores=3), CoreType.ANY, "2-7", id="any, cores of CMK"),
        pytest.param(Wish(cores=4), CoreType.ANY, "8-11", id="any, cores of CMK: the type that has room"),
        pytest.param(SLOW, CoreType.ANY, "8-9", id="efficient"),
        pytest.param(FAST, CoreType.EFFICIENT, "2-3", id="the pod's word wins over the node's"),
        pytest.param(EXCLUSIVE, CoreType.EFFICIENT, "8-9", id="the node's default"),
        pytest.param(Wish(cores=2, core_type="efficient"), CoreType.ANY, "8-9", id="efficient cores of CMK"),
        pytest.param(Wish("2", policy="share", core_type="efficient"), CoreType.ANY, "8-9", id="share"),
    ],
)
def test_which_cores_a_claim_gets(wish: Wish, default: CoreType, held: str) -> None:
    """A claim gets CPUs of its core type before any other preference."""
    assert node(wish, core_type=default).holds("a") == held


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        pytest.param(
            Wish("7", policy="exclusive", core_type="performance"),
            "wanted 7 free CPUs, found 6 on performance cores: ask for at most 6, choose core-type any or"
            " find a larger node, because this one has only 6",
            id="more than the machine has",
        ),
        pytest.param(
            Wish("7", smt="isolate", core_type="efficient"),
            "wanted 7 wholly free cores, found 6 on efficient cores: ask for at most 6, choose core-type any or"
            " find a larger node, because this one has only 6",
            id="whole cores",
        ),
    ],
)
def test_too_few_cores_of_a_type_are_a_refusal_with_both_numbers(wish: Wish, message: str) -> None:
    """A refusal has the wanted and found CPUs of the core type, and suggests `any` only if the claim then fits now."""
    world = node(wish)
    (refusal,) = world.plan().refusals
    assert refusal.message.startswith(message)
    assert world.holds("a") == ""


def test_a_node_without_core_types_refuses_the_words() -> None:
    """On a node without core types `any` gets any CPU, and other core types are refused with the reason."""
    plain = Topology(tuple(replace(core, core_type=None) for core in HYBRID.cores), HYBRID.online)
    world = node(FAST, replace(EXCLUSIVE, core_type="any"), topology=plain)
    assert (world.holds("a"), world.holds("b")) == ("", "8-9")
    (refusal,) = world.plan().refusals
    assert refusal.message.startswith(
        "wanted 2 free CPUs, found 0 on performance cores, because the kernel names no core types here:"
        " choose core-type any or choose a node with hybrid cores; "
    )


def test_growing_stays_on_the_type() -> None:
    """A claim with a core type grows on its type or keeps its CPUs; `any` grows on the present type, then on both."""
    world = node(SLOW, EXCLUSIVE)
    assert not edit(world, "a", replace(SLOW, cpu="6")).refusals
    assert world.holds("a") == "8-13"
    assert reasons(edit(world, "a", replace(SLOW, cpu="7"))) == {"test/pod-a/c0": "KeepsFewerCPUs"}
    assert world.holds("a") == "8-13"

    world = node(SLOW, EXCLUSIVE)
    edit(world, "b", replace(EXCLUSIVE, cpu="4"))
    assert world.holds("b") == "2-5"
    edit(world, "b", replace(EXCLUSIVE, cpu="7"))
    assert world.holds("b") == "2-5,10-12"  # neither type has 7 free CPUs besides those of the container
    edit(world, "b", replace(EXCLUSIVE, cpu="4"))
    assert world.holds("b") == "2-5"


def test_an_edited_word_moves_the_container_or_is_refused() -> None:
    """An edited core type moves the container; if too few CPUs are free it keeps its own, and a refusal names both types."""
    world = node(EXCLUSIVE)
    assert not edit(world, "a", SLOW).refusals
    assert world.holds("a") == "8-9"
    assert not edit(world, "a", EXCLUSIVE).refusals
    assert world.holds("a") == "8-9"  # under `any` the container keeps as many CPUs as it can

    world = node(Wish("6", policy="exclusive"), replace(SLOW, cpu="6"))
    planned = edit(world, "a", Wish("6", policy="exclusive", core_type="efficient"))
    assert world.holds("a") == "2-7"
    (refusal,) = planned.refusals
    assert "with numa-policy packed and core-type efficient fits" in refusal.message
    assert "it keeps CPUs 2-7 under prefer with packed and any" in refusal.message


def test_a_ledger_is_rebuilt_with_core_types() -> None:
    """When a ledger is rebuilt, a claim keeps CPUs of its cgroup only if they have its core type, and moves otherwise."""
    world = node(SLOW)
    (before,) = world.ledger
    assert recover(world.observe(), world.config) == world.ledger
    number = next(iter(world.containers))
    world.containers[number] = replace(world.containers[number], cpus=CPUSet.parse("4,8"))
    (found,) = recover(world.observe(), world.config)
    assert (before.core_type, found.core_type) == (CoreType.EFFICIENT, CoreType.ANY)


def hybrid(name: str, performance: str) -> Topology:
    """Return a hybrid machine of the test data with its core types, which lscpu lacks."""
    topology, fast = captured(name), CPUSet.parse(performance)
    cores = [
        replace(core, core_type=PERFORMANCE if core.cpus <= fast else EFFICIENCY) for core in topology.cores
    ]
    return Topology(tuple(cores), topology.online)


def claims(topology: Topology, smt: SMTPolicy, numa: NUMAPolicy) -> Iterator[tuple[CPUSet, int, Placement]]:
    """Yield free CPUs, number and choice of each claim, while claims of 1 to 8 CPUs are made and released."""
    random, free = Random(len(topology.cpus)), topology.online  # noqa: S311 - the same claims in every run
    allocator = Allocator(node_sets(topology, topology.online, DEFAULT), DEFAULT)
    free &= allocator.sets.allocatable
    policies = EffectivePolicies(CPUPolicy.EXCLUSIVE, smt, numa, CoreType.ANY)
    running: list[Placement] = []
    for _ in range(400):
        if running and random.random() < 0.4:
            free |= running.pop(random.randrange(len(running))).owned
            continue
        claim = Claim("c", Role.MAIN, Origin.ANNOTATION, CPUPolicy.EXCLUSIVE, random.randint(1, 8))
        try:
            chosen = allocator.fresh(claim, policies, free, EMPTY)
        except NotEnoughCPUs:
            continue
        yield free, claim.count, chosen
        running.append(chosen)
        free -= chosen.owned


def room(topology: Topology, cpus: CPUSet, smt: SMTPolicy) -> int:
    """Return the number of CPUs of the largest claim that the policy could place on these CPUs."""
    if smt is SMTPolicy.PREFER:
        return len(cpus)
    whole = [core.cpus for core in topology.cores_of(cpus) if core.cpus <= cpus]
    return len(whole) if smt is SMTPolicy.ISOLATE else sum(map(len, whole))


@pytest.mark.parametrize("numa", NUMAPolicy)
@pytest.mark.parametrize("smt", SMTPolicy)
@pytest.mark.parametrize("name", ["core-i7-12700h", "core-ultra-9-185h"])
def test_no_claim_has_both_types_if_one_has_room(name: str, smt: SMTPolicy, numa: NUMAPolicy) -> None:
    """A claim runs on both core types only if neither type alone has enough free CPUs."""
    topology = hybrid(name, "0-11")
    for free, count, chosen in claims(topology, smt, numa):
        types = topology.core_types.values()
        if sum(not cpus.isdisjoint(chosen.cpus) for cpus in types) > 1:
            assert max(room(topology, free & cpus, smt) for cpus in types) < count
        elif not chosen.cpus <= topology.core_types[PERFORMANCE]:
            assert room(topology, free & topology.core_types[PERFORMANCE], smt) < count
