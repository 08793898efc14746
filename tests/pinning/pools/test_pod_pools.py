"""The pool of a pod: what its slices leave of the pod's budget, and which containers run there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinning.contract import LIMIT_RANGER, SMTPolicy
from pinning.errors import BadContract, IllegalTransition
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.invariants import problems
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.observed import Owner, SeenPod
from pinning.planning.requests import overcommit
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted, pool, runs, started, taken, updated
from tests.pinning.world import Wish, reasons, world

CONTAINER = "cpu-manager.corepin.io/container."


def test_the_rest_of_a_budget_is_the_pool_of_the_other_containers() -> None:
    """A pod that pays for 4 CPUs and gives 2 to its main container runs the others on the other 2."""
    node = started(budgeted("a", 4, {"main": 2, "log": None, "web": "500m"}), "main", "log", "web")
    assert (node.holds("a", "main"), str(pool(node))) == ("1,9", "2,10")
    assert runs(node, "log") == runs(node, "web") == pool(node)
    assert node.sets.shared(node.ledger).isdisjoint(CPUSet.parse("1-2,9-10"))


def test_a_pod_without_slices_runs_in_its_pool() -> None:
    """All of the budget is the pool if no container has whole CPUs; the pod is not refused."""
    node = started(budgeted("a", 3, {"c": None, "d": "1500m"}), "c", "d")
    assert len(pool(node)) == 3
    assert runs(node, "c") == runs(node, "d") == pool(node)
    assert not node.plan().refusals


def test_two_pods_have_two_pools() -> None:
    """No pod runs on the pool of another, and containers without claims run on none of them."""
    node = started(budgeted("a", 4, {"c": None}), "c")
    started(budgeted("b", 4, {"c": None}), "c", node=node)
    node.start("x", "c")
    node.run_all()
    assert not pool(node, "a") & pool(node, "b")
    assert runs(node, "c", "x").isdisjoint(pool(node, "a") | pool(node, "b"))


def test_parts_are_cut_from_one_claim() -> None:
    """All parts of a pod with `single` are placed on one NUMA node together."""
    node = started(
        budgeted(
            "a",
            6,
            {"m": 3, "n": 2, "p": None},
            annotations={**EXCLUSIVE, "numa-policy.corepin.io/pod": "single"},
        ),
        "m",
        "n",
        "p",
        node=world(8, 2),
    )
    assert len({node.topology.core_of(cpu).numa_node for cpu in node.ledger.held}) == 1
    assert taken(node) == 6


def test_a_budget_that_does_not_fit_is_refused_as_a_whole() -> None:
    """The refusal names the CPUs of the whole budget; nothing of the pod is pinned."""
    node = started(budgeted("a", 15, {"m": 2, "p": None}), "m", "p")
    planned = node.plan()
    assert reasons(planned) == {"test/pod-a/m": "NotEnoughCPUs", "test/pod-a": "NotEnoughCPUs"}
    assert "wanted 15 free CPUs, found 14" in planned.refusals[0].message
    assert "its containers run in the shared set" in planned.refusals[1].message
    assert not node.ledger.held


def test_the_last_cpu_of_the_shared_set_is_not_taken() -> None:
    """A pod whose parts would take every shared CPU gets none."""
    strict = world(reserved=CPUSet.parse("0"), strict_reserved=True)
    started(budgeted("a", 14, {"m": 2, "p": None}), "m", "p", node=strict)
    assert set(reasons(strict.plan()).values()) == {"SharedSetWouldBeEmpty"}
    assert not strict.ledger.held


def test_a_budget_may_take_all_cpus_but_those_of_share() -> None:
    """CPUs of another pod's `share` container are in the shared set, which is not empty then."""
    strict = world(4, reserved=CPUSet.parse("0"), strict_reserved=True)
    shares = budgeted("b", None, {"s": 1}, annotations={f"{CONTAINER}s": "share"}, created=1)
    started(shares, "s", node=strict)
    started(budgeted("a", 5, {"m": 2, "p": None}, created=2), "m", "p", node=strict)
    assert not strict.plan().refusals
    assert strict.sets.shared(strict.ledger) == strict.ledger.share


def test_isolated_cpus_are_left_to_claims_where_the_shared_set_needs_the_others() -> None:
    """The budget is placed again without the last shared CPU if that leaves enough."""
    node = world(8, isolated="4-7,12-15", strict_reserved=True)
    started(budgeted("a", 6, {"m": 2, "p": None}), "m", "p", node=node)
    assert taken(node) == 6
    assert node.sets.shared(node.ledger)


@pytest.mark.parametrize(("smt", "charged_cpus"), [("require", 8), ("isolate", 12)])
def test_slices_and_pool_take_whole_cores_each(smt: str, charged_cpus: int) -> None:
    """Under require and isolate no part shares a core with another one."""
    annotations = {"smt-policy.corepin.io/pod": smt}
    node = started(budgeted("a", 6, {"m": 3, "n": 1, "p": None}, annotations=annotations), "m", "n", "p")
    parts = node.ledger.of_pod("a")
    assert [len(part.cpus) for part in parts] == [3, 1, 2]
    assert len(node.ledger.held) == charged_cpus
    assert problems(node.ledger, node.sets) == ()


@pytest.mark.parametrize(("smt", "slice_cpus"), [("require", "1 idle 9"), ("isolate", "1 idle 9")])
def test_a_container_may_own_whole_cores_in_a_pod_that_does_not(smt: str, slice_cpus: str) -> None:
    """The region of the pod has room for the cores of the slice."""
    annotations = {**EXCLUSIVE, "smt-policy.corepin.io/container.m": smt}
    node = started(budgeted("a", 3, {"m": 1, "p": None}, annotations=annotations), "m", "p")
    assert node.holds("a", "m") == slice_cpus
    assert pool(node) == CPUSet.parse("2,10")


def test_containers_with_none_run_in_the_pool() -> None:
    """A container with the policy `none` has no slice, and runs in the pool of its pod."""
    annotations = {**EXCLUSIVE, f"{CONTAINER}n": "none"}
    node = started(budgeted("a", 4, {"m": 2, "n": 1}, annotations=annotations), "m", "n")
    assert node.holds("a", "n") == ""
    assert runs(node, "n") == pool(node)


def test_edits_move_cpus_between_slice_and_pool() -> None:
    """A container's `none` gives its slice to the pool, and `exclusive` takes one out of it."""
    node = started(budgeted("a", 4, {"m": 2, "n": 1}), "m", "n")
    whole = node.ledger.held
    updated(node, budgeted("a", 4, {"m": 2, "n": 1}, annotations={**EXCLUSIVE, f"{CONTAINER}m": "none"}))
    assert (node.holds("a", "m"), len(pool(node)), node.ledger.held) == ("", 3, whole)
    updated(node, budgeted("a", 4, {"m": 2, "n": 1}))
    assert (len(pool(node)), node.ledger.held) == (1, whole)
    updated(node, budgeted("a", 4, {"m": 2, "n": 1}, annotations={"cpu-manager.corepin.io/pod": "none"}))
    assert (node.ledger.held, node.ledger.uids, dict(node.ledger.pools)) == (EMPTY, frozenset(), {})


def test_a_plan_is_made_in_one_pass() -> None:
    """A pool that gets fewer CPUs while a slice grows needs no second plan."""
    node = started(budgeted("a", 8, {"m": 2, "p": None}), "m", "p")
    for main, budget in ((5, 8), (1, 8), (1, 3), (3, 3), (2, 6)):
        planned = updated(node, budgeted("a", budget, {"m": main, "p": None}))
        assert taken(node) == budget
        again = node.plan()
        assert (again.ledger, again.actions, again.refusals) == (planned.ledger, (), planned.refusals)


def test_a_slice_grows_out_of_its_own_pool() -> None:
    """A container that is resized takes the CPUs of the pod's pool, not free ones."""
    node = started(budgeted("a", 4, {"m": 1, "p": None}), "m", "p")
    whole = node.ledger.held
    updated(node, budgeted("a", 4, {"m": 3, "p": None}))
    assert (node.ledger.held, len(pool(node))) == (whole, 1)
    updated(node, budgeted("a", 4, {"m": 1, "p": None}))
    assert node.ledger.held == whole


def test_the_status_of_the_pod_is_the_truth_during_a_resize() -> None:
    """During a resize the pool has the CPUs that the pod's status says are allocated."""
    document = budgeted("a", 6, {"p": None})
    document["status"] = {"allocatedResources": {"cpu": "2"}}
    node = started(document, "p")
    assert len(pool(node)) == 2
    document["status"] = {"allocatedResources": {"cpu": "6"}}
    node.run_all()
    assert len(pool(node)) == 6


def test_a_pool_grows_by_the_nearest_cpus_or_says_why_not() -> None:
    """A pool keeps its CPUs and grows by the nearest ones; without free ones it is reported as too small."""
    node = started(budgeted("a", 3, {"p": None}), "p")
    before = pool(node)
    started(budgeted("b", 9, {"p": None}, created=1), "p", node=node)
    assert reasons(updated(node, budgeted("a", 9, {"p": None}))) == {"test/pod-a": "KeepsFewerCPUs"}
    assert pool(node) == before
    assert not updated(node, budgeted("a", 5, {"p": None})).refusals
    assert before <= pool(node)
    assert len(pool(node)) == 5


def test_a_slice_is_never_larger_than_the_budget_leaves() -> None:
    """A slice never exceeds the budget: if the container is resized before the pod, it waits with a refusal."""
    node = started(budgeted("a", 4, {"m": 2, "n": 2}), "m", "n")
    assert reasons(updated(node, budgeted("a", 4, {"m": 3, "n": 2}))) == {"test/pod-a/m": "KeepsFewerCPUs"}
    assert (len(node.holds("a", "m").split(",")), taken(node)) == (2, 4)
    assert not updated(node, budgeted("a", 5, {"m": 3, "n": 2})).refusals
    assert taken(node) == 5
    updated(node, budgeted("a", 2, {"m": 3, "n": 2}))
    assert (taken(node), node.holds("a", "n")) == (2, "")


def test_an_empty_pool_is_reported_and_its_containers_run_in_the_shared_set() -> None:
    """If slices use up the budget a sidecar runs in the shared set, and an event reports the empty pool."""
    node = started(budgeted("a", 2, {"m": 2, "log": "500m"}), "m", "log")
    planned = node.plan()
    assert reasons(planned) == {"test/pod-a": "PodPoolEmpty"}
    assert planned.refusals[0].message == (
        "all 2 CPUs of the pod are slices of other containers; containers without a slice run in the shared set"
        " instead of the pool: log"
    )
    assert not planned.refusals[0].blocks_start
    assert runs(node, "log") == node.sets.shared(node.ledger)
    documents: Any = node.documents.values()
    assert overcommit(documents, node.ledger, 4).requested == 500


def test_no_empty_pool_is_reported_beside_resource_claims() -> None:
    """An empty pool is not reported if the pod has ResourceClaims, because these may give CPUs to its containers."""
    node = started(budgeted("a", 2, {"m": 2, "log": None}, resourceClaims=[{"name": "c"}]), "m", "log")
    assert not node.plan().refusals


def test_a_pool_counts_nothing_against_the_shared_set() -> None:
    """Containers in a pool run on CPUs of their pod."""
    node = started(budgeted("a", 4, {"m": 2, "log": "500m"}), "m", "log")
    documents: Any = node.documents.values()
    assert overcommit(documents, node.ledger, 4).requested == 0
    assert node.observe().pods[0].unclaimed_millicores == 0


def test_an_empty_pool_follows_the_policies_of_the_pod() -> None:
    """An edited SMT policy applies to the slices and to an empty pool, and causes no refusal."""
    node = started(budgeted("a", 2, {"m": 2}), "m")
    annotations = {**EXCLUSIVE, "smt-policy.corepin.io/pod": "require"}
    assert not updated(node, budgeted("a", 2, {"m": 2}, annotations=annotations)).refusals
    assert node.ledger.pools["a"].smt is SMTPolicy.REQUIRE
    updated(node, budgeted("a", 4, {"m": 2}, annotations=annotations))
    assert len(pool(node)) == 2


def test_an_ordinary_init_container_uses_the_cpus_of_its_pod() -> None:
    """An ordinary init container without a slice runs on its pod's CPUs, except the slices of running sidecars."""
    inits = {"proxy": (1, SIDECAR), "init": (None, "")}
    node = started(budgeted("a", 4, {"m": 2, "p": None}, inits), "proxy", "init")
    own = node.ledger.of(Owner("a", "proxy"))
    assert own
    assert runs(node, "init") == node.ledger.held - own.cpus
    full = started(budgeted("a", 2, {"m": 2}, {"init": (None, "")}), "init")
    assert runs(full, "init") == full.ledger.held
    none = started(
        budgeted("a", 1, {"p": None}, {"proxy": (1, SIDECAR), "init": (None, "")}), "proxy", "init"
    )
    assert runs(none, "init") == none.sets.shared(none.ledger)


def test_an_init_container_with_a_slice_reuses_later_slices_first() -> None:
    """An init container with a slice takes CPUs of later slices, then of the pool, and no others."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}, {"init": (3, "")}), "init")
    own, main = node.ledger.of(Owner("a", "init")), node.ledger.of(Owner("a", "m"))
    assert own
    assert main
    assert main.cpus <= own.cpus <= node.ledger.held
    assert len(node.ledger.held) == 4


def test_a_sidecar_in_the_pool_keeps_off_an_init_container_until_that_has_ended() -> None:
    """The kubelet lets both run on the same CPUs."""
    inits = {"log": (None, SIDECAR), "init": (3, "")}
    node = started(budgeted("a", 4, {"m": 2, "p": None}, inits), "log", "init")
    own = node.ledger.of(Owner("a", "init"))
    assert own
    assert runs(node, "log") == pool(node) - own.cpus
    for seen in node.live():
        if seen.owner.container == "init":
            node.stop(seen.id)
    node.start("a", "m")
    node.run_all()
    assert runs(node, "log") == pool(node)


def test_a_sidecar_leaves_a_pool_that_an_init_container_takes() -> None:
    """A sidecar leaves pool CPUs that an init container takes, for later slices or the rest of the pool."""
    node = started(budgeted("a", 2, {"p": None}, {"log": (None, SIDECAR), "init": (2, "")}), "log", "init")
    assert runs(node, "log") == pool(node)
    strange = world()
    started(budgeted("a", 3, {"m": 2, "p": None}, {"log": (None, SIDECAR)}), "log", node=strange)
    held = strange.ledger.pools["a"]
    busy = {"a": held.cpus}
    run_sets = replace(strange.plan().run_sets, starting=busy)
    main = strange.ledger.of(Owner("a", "m"))
    assert main
    assert run_sets.of(Owner("a", "log")).cpus == main.cpus


def test_debug_containers_run_in_the_shared_set() -> None:
    """Debug containers, which the pod does not declare, run in the shared set."""
    node = started(budgeted("a", 4, {"p": None}), "p", "debugger")
    assert runs(node, "debugger") == node.sets.shared(node.ledger)


def test_cpus_stay_assigned_until_the_pod_is_gone() -> None:
    """A pod's CPUs stay assigned while its containers restart, also while the API server is unreachable."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    before = node.ledger
    for seen in node.live():
        node.stop(seen.id)
    node.run_all()
    assert node.ledger == before
    node.documents.clear()
    node.api_answers = False
    node.start("a", "p")
    node.run_all()
    assert runs(node, "p") == pool(node)
    node.api_answers = True
    for seen in node.live():
        node.stop(seen.id)
    node.run_all()
    assert not node.ledger.held


def test_a_pool_follows_hotplug() -> None:
    """Offline CPUs are replaced near the lost ones; a pool without any CPU is made again."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    node.hotplug(node.topology.online - CPUSet.parse("10"))
    assert taken(node) == 4
    node.hotplug(node.topology.online - pool(node))
    assert taken(node) == 4


def test_the_shared_set_gets_a_cpu_of_a_pool_if_nothing_else_is_left() -> None:
    """If a pool's CPUs are the only online ones, the pool is dissolved, and the shared set is not empty."""
    node = started(budgeted("a", 4, {"p": None}), "p")
    node.set_online(pool(node))
    assert reasons(node.run_all())
    assert node.sets.shared(node.ledger)


def test_the_slice_of_a_filled_in_limit_stays_and_no_new_one_is_made() -> None:
    """A LimitRange gives bare containers whole limits: those are no slices, unless the ledger has one already."""
    filled = {
        **EXCLUSIVE,
        LIMIT_RANGER: "LimitRanger plugin set: cpu request for container p; cpu limit for container p",
    }
    new = started(budgeted("a", 4, {"m": 2, "p": 1}, annotations=filled), "m", "p")
    assert (new.holds("a", "p"), len(pool(new))) == ("", 2)
    old = world()
    updated(old, budgeted("a", None, {"m": 2, "p": 1}), "m", "p")
    before = old.ledger.exclusive
    updated(old, budgeted("a", 4, {"m": 2, "p": 1}, annotations=filled))
    assert (len(old.holds("a", "p").split(",")), len(pool(old))) == (1, 1)
    assert before <= old.ledger.exclusive
    named = {**filled, f"{CONTAINER}p": "exclusive"}
    updated(new, budgeted("a", 4, {"m": 2, "p": 1}, annotations=named))
    assert len(pool(new)) == 1


def test_a_first_limit_makes_no_slice_of_a_container_that_runs_in_the_pool() -> None:
    """A LimitRange that is younger than the pod fills in limits at any resize, and nothing records that."""
    node = started(budgeted("a", 4, {"m": 2, "log": None, "web": "500m"}), "m", "log", "web")
    before = node.ledger
    filled: dict[str, str | int | None] = {"m": 2, "log": 1, "web": "500m"}
    for budget in (4, 5, 4):
        assert not updated(node, budgeted("a", budget, filled)).refusals
        assert (node.holds("a", "log"), runs(node, "log")) == ("", pool(node))
        assert len(pool(node)) == budget - 2
        node.ledger = ledger_from_dict(ledger_to_dict(node.ledger))
    assert node.ledger.held == before.held
    assert node.plan().ledger == node.ledger
    updated(node, budgeted("a", 4, filled, annotations={**EXCLUSIVE, f"{CONTAINER}log": "exclusive"}))
    assert (len(pool(node)), bool(node.holds("a", "log"))) == (1, True)
    new = started(budgeted("a", 4, filled), "m", "log", "web")
    assert (len(pool(new)), bool(new.holds("a", "log"))) == (1, True)


def test_a_container_of_the_pool_with_a_limit_becomes_a_slice() -> None:
    """A resize of a limit that was there is the user's own."""
    node = started(budgeted("a", 4, {"m": 2, "log": None, "web": "500m"}), "m", "log", "web")
    updated(node, budgeted("a", 4, {"m": 2, "log": None, "web": 1}))
    assert (len(pool(node)), bool(node.holds("a", "web"))) == (1, True)


def test_a_container_that_stays_in_the_pool_keeps_the_policies_of_its_interrupts() -> None:
    """A container that stays in the pool at a resize changes neither the pool's claim nor its interrupt policies."""
    words = {
        **EXCLUSIVE,
        "irq-policy.corepin.io/container.log": "devices",
        "smt-policy.corepin.io/pod": "require",
    }
    node = started(budgeted("a", 4, {"m": 2, "log": None}, annotations=words), "m", "log")
    before = node.ledger.pools["a"]
    updated(node, budgeted("a", 4, {"m": 2, "log": 1}, annotations=words))
    assert node.ledger.pools["a"] == before
    assert before.claim.pool
    assert before.claim.pool.irq_devices == ("log",)


def test_the_checkpoint_keeps_pools_beside_assignments() -> None:
    """An earlier agent can read the checkpoint without its pools, and the slices are unchanged after that."""
    node = started(budgeted("a", 5, {"m": 2, "n": 1, "p": None}, {"i": (None, "")}), "m", "n", "p")
    saved = ledger_to_dict(node.ledger)
    assert ledger_from_dict(saved) == node.ledger
    assert {it["container"] for it in saved["assignments"]} == {"m", "n"}
    old = {"version": saved["version"], "assignments": saved["assignments"]}
    assert old == ledger_to_dict(ledger_from_dict(old))
    slices = {held.owner: held.cpus for held in node.ledger}
    node.ledger = ledger_from_dict(old)
    node.run_all()
    assert {held.owner: held.cpus for held in node.ledger} == slices
    assert taken(node) == 5


def test_a_node_without_pools_has_no_new_member_in_its_checkpoint() -> None:
    """On a node without pools the checkpoint has the same members as before pools existed."""
    node = world()
    node.create("a", [Wish("2", policy="exclusive")])
    assert ledger_to_dict(node.ledger).keys() == {"version", "assignments"}


@pytest.mark.parametrize(
    "broken", [{"budget": "4"}, {"containers": [{"container": 1, "place": 0, "role": "main"}]}, {"cpus": ""}]
)
def test_a_damaged_pool_is_a_damaged_checkpoint(broken: dict[str, Any]) -> None:
    """Values of another type are found, and CPUs that others hold."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    saved = ledger_to_dict(node.ledger)
    saved["podPools"][0] |= broken if "cpus" not in broken else {"cpus": saved["assignments"][0]["cpus"]}
    with pytest.raises(BadContract, match="damaged"):
        ledger_from_dict(saved)


def test_a_ledger_beyond_a_budget_is_reported() -> None:
    """A ledger whose slices and pool exceed a budget is reported with both numbers."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    held = node.ledger.pools["a"]
    purpose = held.claim.pool
    assert purpose
    small = replace(held, claim=replace(held.claim, pool=purpose._replace(budget=3)))
    found = problems(node.ledger.change(small), node.sets)
    assert found == ("test/pod-a: its slices and its pool have 4 CPUs, and its budget is 3",)


def test_a_pool_is_released_alone() -> None:
    """A pool can be released without its pod's slices, and only once."""
    node = started(budgeted("a", 4, {"m": 2, "p": None}), "m", "p")
    left = node.ledger.release(Owner("a", ""))
    assert (left.uids, len(left.exclusive)) == (frozenset({"a"}), 2)
    assert not left.pools
    with pytest.raises(IllegalTransition):
        left.release(Owner("a", ""))


def test_all_claims_are_those_of_the_slices_and_of_the_pool() -> None:
    """A pod's claims are those of its slices and then its pool, or of its containers alone without a budget."""
    pod = SeenPod.of(budgeted("a", 4, {"main": 2, "log": None}, annotations=EXCLUSIVE))  # type: ignore[arg-type]
    assert pod.budget
    assert pod.all_claims == (*pod.claims, pod.budget.rest)
    plain = replace(pod, budget=None)
    assert plain.all_claims == pod.claims


def test_claims_are_served_in_turn_with_their_owners() -> None:
    """Claims of a pod are served in the order slices, pool, init slices, and the order is not part of its equality."""
    document = budgeted("a", 4, {"main": 2, "log": None}, {"init": (1, "")}, annotations=EXCLUSIVE)
    pod = SeenPod.of(document)  # type: ignore[arg-type]
    turns = [(claim.count, owner, beyond) for claim, owner, beyond in pod.in_turn]
    assert turns == [(2, Owner("a", "main"), 0), (2, Owner("a", ""), 0), (1, Owner("a", "init"), 0)]
    plain = replace(pod, budget=None)
    assert [owner.container for _, owner, _ in plain.in_turn] == ["init", "main"]
    assert replace(plain, budget=pod.budget) == pod
