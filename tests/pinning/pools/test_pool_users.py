"""Containers of a pod's pool at their start, in virtual machines and for the scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pinning.contract import SMTPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.invariants import problems
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import UncountedClaims
from pinning.planning.observed import Owner, State
from pinning.planning.pod_pools import NO_SHARED_CHARGE, mems_of, shared_charge, shared_users, starting_cpus
from pinning.planning.start_table import Start, start_table
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted, pool, put, runs, started, taken, updated
from tests.pinning.nodes import SNC
from tests.pinning.world import World, reasons, world

CONTAINER = "cpu-manager.corepin.io/container."


def test_a_new_container_of_the_pool_starts_there() -> None:
    """A new container of the pool starts on the pool's CPUs that are not busy, without CMK's variables."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m")
    table = start_table(node.plan(), node.observe())
    start = table.start(Owner("a", "p"), claims=False)
    assert start == Start(pool(node))
    assert isinstance(start, Start)
    assert table.environment(start) == {}
    assert table.corrected(Owner("a", "p"), "id", "0-15") == pool(node)
    assert table.trespass(Owner("a", "p"), pool(node)) == EMPTY
    one = CPUSet([min(pool(node))])
    assert table.start(Owner("a", "p"), claims=False, busy=one) == Start(pool(node) - one)
    shared = table.start(Owner("a", "p"), claims=False, busy=pool(node))
    assert shared == Start(node.sets.shared(node.ledger))


def test_containers_of_a_pool_of_whole_cores_do_not_start_elsewhere() -> None:
    """Containers of a whole-core pool are held back while the budget does not fit or the pool's CPUs are busy."""
    annotations = {"smt-policy.corepin.io/pod": "require"}
    node = started(budgeted("a", 4, {"p": None}, annotations=annotations))
    table = start_table(node.plan(), node.observe())
    busy = table.start(Owner("a", "p"), claims=True, busy=pool(node))
    assert isinstance(busy, str)
    assert "other containers still run" in busy
    full = started(budgeted("a", 15, {"m": 2, "p": None}, annotations=annotations))
    table = start_table(full.plan(), full.observe())
    for name in ("m", "p"):
        refused = table.start(Owner("a", name), claims=True)
        assert isinstance(refused, str)
        assert refused.startswith("NotEnoughCPUs")
    assert isinstance(table.start(Owner("a", "debugger"), claims=False), Start)


def test_a_kata_machine_runs_on_slices_and_pool_together() -> None:
    """The guest decides which of its containers run where."""
    node = world()
    put(node, budgeted("a", 4, {"m": 2, "p": None}))
    node.boot("a")
    node.start("a", "m")
    node.start("a", "p")
    node.run_all()
    assert node.sandboxes["s-a"].cpus == node.ledger.held
    assert len(node.ledger.held) == 4


def test_memory_is_bound_for_slices_and_pool() -> None:
    """`bind` binds the memory of slices and pool to their NUMA node; an empty pool is not refused."""
    annotations = {**EXCLUSIVE, "numa-policy.corepin.io/pod": "single", "numa-memory.corepin.io/pod": "bind"}
    topology = replace(SNC, memory=dict.fromkeys(range(4), 2**34))
    node = World(topology)
    started(budgeted("a", 4, {"m": 2, "p": None}, annotations=annotations), node=node)
    assert {str(part.mems) for part in node.ledger.of_pod("a")} == {str(node.ledger.pools["a"].mems)}
    assert node.ledger.pools["a"].mems
    start = start_table(node.plan(), node.observe()).start(Owner("a", "p"), claims=False)
    assert isinstance(start, Start)
    assert start.mems == node.ledger.pools["a"].mems
    empty = World(topology)
    started(budgeted("a", 2, {"m": 2}, annotations=annotations), node=empty)
    assert not empty.plan().refusals


def test_a_pod_is_placed_beside_all_its_devices() -> None:
    """The budget goes to the nodes of the pod's devices; a slice comes from its own device's node."""
    node = World(SNC)
    node.devices[Owner("a", "m")] = (Device("gpu", CPUSet([2])),)
    document = budgeted("a", 3, {"m": 2, "p": None})
    for listed in document["spec"]["containers"]:
        listed.setdefault("resources", {}).setdefault("limits", {})["gpu.example/card"] = 1
    started(document, "m", "p", node=node)
    assert {node.topology.core_of(cpu).numa_node for cpu in node.ledger.held} == {2}


def test_claims_outside_of_the_budget_stay_outside() -> None:
    """Cores of a CMK resource are part of neither slices nor pool, and are held besides the budget."""
    document = budgeted("a", 2, {"m": 1, "k": None})
    document["spec"]["containers"][1]["resources"] = {
        kind: {"cmk.intel.com/exclusive-cores": 1} for kind in ("limits", "requests")
    }
    node = started(document, "m", "k")
    assert (taken(node), len(node.ledger.held)) == (2, 4)
    assert not node.plan().refusals


def test_share_is_a_slice_that_others_may_use() -> None:
    """CPUs of a `share` slice are paid for by the budget, are not in the pool, and stay in the shared set."""
    annotations = {**EXCLUSIVE, f"{CONTAINER}s": "share"}
    node = started(budgeted("a", 5, {"m": 2, "s": 1, "p": None}, annotations=annotations), "m", "s", "p")
    assert (len(pool(node)), taken(node), len(node.ledger.held)) == (2, 5, 5)
    assert runs(node, "s") == node.ledger.share <= node.sets.shared(node.ledger)
    assert runs(node, "s").isdisjoint(pool(node))
    before = runs(node, "s")
    updated(node, budgeted("a", 5, {"m": 2, "s": 1, "p": None}))
    assert (runs(node, "s"), taken(node)) == (before, 5)
    assert before.isdisjoint(node.sets.shared(node.ledger))


def test_share_and_pool_together_never_exceed_the_budget() -> None:
    """The ledger's check of a budget counts `share` slices together with the pool."""
    annotations = {**EXCLUSIVE, f"{CONTAINER}s": "share"}
    node = started(budgeted("a", 3, {"s": 1, "p": None}, annotations=annotations), "s", "p")
    held = node.ledger.pools["a"]
    larger = node.ledger.change(replace(held, cpus=held.cpus | CPUSet([7])))
    assert problems(larger, node.sets) == (
        "test/pod-a: its slices and its pool have 4 CPUs, and its budget is 3",
    )


def test_the_scheduler_counts_the_parts_of_a_budget_together() -> None:
    """The scheduler counts the pool with the slices of its policy, and for one NUMA node with all slices."""
    annotations = {
        **EXCLUSIVE,
        "numa-policy.corepin.io/pod": "single",
        "smt-policy.corepin.io/container.m": "require",
    }
    node = started(budgeted("a", 5, {"m": 2, "s": 1, "p": None}, annotations=annotations), "m", "s", "p")
    for is_whole, cpus, containers in ((False, 3, ["p", "s"]), (True, 5, ["m", "p", "s"])):
        found = shared_charge(node.ledger, "a", is_whole=is_whole)
        assert (len(found.cpus), sorted(found.containers)) == (cpus, containers)
    assert shared_charge(Ledger(), "a", is_whole=True) == NO_SHARED_CHARGE


def counting(smt: SMTPolicy, containers: dict[str, int | None], requested: dict[str, int]) -> World:
    """Return a node that refuses uncounted claims, with a pod with a budget of 4 whose containers request cores."""
    node = world(counted_claims=frozenset({smt}), uncounted_claims=UncountedClaims.REFUSE)
    document = budgeted("a", 4, containers, annotations={"smt-policy.corepin.io/pod": str(smt)})
    resource = {SMTPolicy.REQUIRE: "corepin.io/whole-cores", SMTPolicy.ISOLATE: "corepin.io/isolated-cores"}[
        smt
    ]
    for listed in document["spec"]["containers"]:
        amounts = listed.setdefault("resources", {}).setdefault("limits", {})
        if listed["name"] in requested:
            amounts[resource] = str(requested[listed["name"]])
    return started(document, *containers, node=node)


@pytest.mark.parametrize(
    ("smt", "requested", "refused"),
    [
        pytest.param(SMTPolicy.REQUIRE, {}, {"m", ""}, id="none"),
        pytest.param(SMTPolicy.REQUIRE, {"m": 1}, {""}, id="the slice alone"),
        pytest.param(SMTPolicy.REQUIRE, {"p": 1}, {"m", ""}, id="too few for both"),
        pytest.param(SMTPolicy.REQUIRE, {"m": 1, "p": 1}, set(), id="both"),
        pytest.param(SMTPolicy.REQUIRE, {"p": 2}, set(), id="on another container, as after an edit"),
        pytest.param(SMTPolicy.ISOLATE, {"m": 2}, {""}, id="the slice alone, isolate"),
        pytest.param(SMTPolicy.ISOLATE, {"m": 2, "p": 2}, set(), id="both, isolate"),
    ],
)
def test_whole_cores_of_a_pool_are_refused_unless_the_scheduler_counts_them(
    smt: SMTPolicy, requested: dict[str, int], refused: set[str]
) -> None:
    """Slices and pool take whole cores only if the pod's containers request as many of the extended resource."""
    node = counting(smt, {"m": 2, "p": None}, requested)
    assert {it.owner.container for it in node.plan().refusals} == refused
    assert {part.owner.container for part in node.ledger.of_pod("a")} == {"m", ""} - refused


def test_init_slices_are_counted_with_no_other() -> None:
    """Init slices use cores of the budget, so that they need no further request for cores."""
    node = world(counted_claims=frozenset({SMTPolicy.REQUIRE}), uncounted_claims=UncountedClaims.REFUSE)
    words = {"smt-policy.corepin.io/pod": "require"}
    document = budgeted("a", 4, {"m": 2, "p": None}, {"init": (4, "")}, words)
    cores = {"init": 2, "m": 1, "p": 1}
    for listed in (*document["spec"]["initContainers"], *document["spec"]["containers"]):
        limits = listed.setdefault("resources", {}).setdefault("limits", {})
        limits["corepin.io/whole-cores"] = cores[listed["name"]]
    assert not started(document, "init", node=node).run_all().refusals


@pytest.mark.parametrize(
    ("lasting", "own", "refused"),
    [(0, 0, {"init"}), (2, 0, {"init"}), (4, 0, set()), (0, 4, set())],
)
def test_init_slice_that_takes_more_than_all_that_last_is_counted(
    lasting: int, own: int, refused: set[str]
) -> None:
    """An init slice above all lasting ones counts by its own request, or by the lasting containers' if it suffices."""
    node = world(counted_claims=frozenset({SMTPolicy.ISOLATE}), uncounted_claims=UncountedClaims.REFUSE)
    words = {**EXCLUSIVE, "smt-policy.corepin.io/container.init": "isolate"}
    document = budgeted("a", 4, {"m": 2}, {"init": (4, "")}, words)
    cores = {"init": own, "m": lasting}
    for listed in (*document["spec"]["initContainers"], *document["spec"]["containers"]):
        listed["resources"]["limits"]["corepin.io/isolated-cores"] = cores[listed["name"]]
    put(node, document)
    found = {refusal.owner.container for refusal in node.plan().refusals}
    assert found == refused


def test_a_refused_pool_names_what_its_pod_requests_and_takes() -> None:
    """The refusal of a pool has the requested and the needed cores of all slices and the pool together."""
    node = counting(SMTPolicy.ISOLATE, {"m": 2, "p": None}, {"m": 2})
    (refusal,) = node.plan().refusals
    assert refusal.message.startswith(
        "its containers request 2 corepin.io/isolated-cores, and smt-policy isolate takes 4: create the pod again"
    )


def test_a_pool_without_users_is_counted_on_a_slice() -> None:
    """If every container has a slice, one of them must also request the cores of the pool."""
    assert not counting(SMTPolicy.ISOLATE, {"m": 2}, {"m": 4}).plan().refusals
    assert len(counting(SMTPolicy.ISOLATE, {"m": 2}, {"m": 3}).plan().refusals) == 1


def test_an_empty_pool_takes_no_cores() -> None:
    """An empty pool needs no request for cores."""
    assert not counting(SMTPolicy.ISOLATE, {"m": 4}, {"m": 4}).plan().refusals


def test_edits_between_slice_and_pool_stay_counted() -> None:
    """A container keeps being counted when edits turn its slice into a part of the pool and back."""
    node = counting(SMTPolicy.REQUIRE, {"m": 2, "p": None}, {"m": 1, "p": 1})
    document = node.documents["a"]
    for word in ("none", "exclusive"):
        annotations = {**document["metadata"]["annotations"], f"{CONTAINER}m": word}
        assert not updated(
            node, {**document, "metadata": {**document["metadata"], "annotations": annotations}}
        ).refusals


def test_a_created_container_of_the_pool_is_moved_at_once() -> None:
    """A created container of the pool is moved to the pool's CPUs before it starts."""
    node = world()
    put(node, budgeted("a", 4, {"m": 2, "p": None}))
    node.start("a", "p", State.CREATED)
    node.run_all()
    assert runs(node, "p") == pool(node)


def test_only_containers_of_an_empty_pool_run_in_the_shared_set() -> None:
    """Only containers of an empty pool count as users of the shared set, and memory is bound for none of them."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    started(budgeted("b", 2, {"m": 2, "p": None}), "m", "p", node=node)
    assert [list(shared_users(node.ledger, uid)) for uid in ("a", "b", "c")] == [[], ["p"], []]
    assert [mems_of(node.ledger, Owner(uid, "p")) for uid in ("a", "c")] == [EMPTY, EMPTY]


def test_containers_of_other_pods_do_not_end_an_init_container() -> None:
    """CPUs of an init container are kept free in its own pod, whatever runs beside."""
    node = started(budgeted("a", 3, {"p": None}, {"log": (None, SIDECAR), "init": (2, "")}), "log", "init")
    started(budgeted("b", 2, {"p": None}), "p", node=node)
    held = node.ledger.of(Owner("a", "init"))
    assert held
    assert starting_cpus(node.observe(), node.ledger) == {"a": held.footprint}


def test_an_agent_that_only_observes_reports_pools() -> None:
    """In observe mode a pod with a pool but no slice is reported too, and an empty pool is not."""
    node = world(observe=True)
    started(budgeted("a", 4, {"p": None}), "p", node=node)
    started(budgeted("b", 2, {"m": 2, "p": None}), "m", "p", node=node)
    assert reasons(node.plan()) == {"test/pod-a": "ObserveMode", "test/pod-b/m": "ObserveMode"}
