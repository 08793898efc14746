"""Pods with a budget after an upgrade of the agent, and after a checkpoint was lost."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from pinning.contract import FILLED_IN, GATE_CONTAINER, LIMIT_RANGER
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.ledger_json import ledger_from_dict, ledger_to_dict
from pinning.planning.observed import Owner
from pinning.planning.plan import Plan, plan
from pinning.planning.recover import recover
from pinning.planning.refusal import Reason, Refusal
from pinning.planning.start_table import Start, StartTable, start_table
from tests.pinning.budgets import EXCLUSIVE, budgeted, pool, put, runs, started, updated
from tests.pinning.world import World, world

REQUIRE = {"smt-policy.corepin.io/pod": "require"}
FILLED = {**EXCLUSIVE, LIMIT_RANGER: "LimitRanger plugin set: cpu limit for container p"}


def planned(node: World) -> tuple[Plan, StartTable]:
    """Return the plan and the start table of an agent that can hold containers back."""
    observed = replace(node.observe(), holds_starts=True)
    found = plan(observed, node.ledger, node.config)
    return found, start_table(found, observed)


def of_pool(node: World) -> Refusal:
    """Return the refusal of the pool of pod a."""
    return next(it for it in planned(node)[0].refusals if it.owner == Owner("a", ""))


def upgraded(document: dict[str, Any], *running: str) -> World:
    """Return a full node on which a pod runs whose older agent knew no budget."""
    node = world(4)
    older = deepcopy(document)
    del older["spec"]["resources"]
    put(node, older, *running)
    updated(node, budgeted("full", None, {"m": 4}, created=1, annotations=REQUIRE), "m")
    put(node, document)
    return node


def end(node: World, name: str) -> None:
    """End a container of pod a."""
    for seen in node.live():
        if seen.owner == Owner("a", name):
            node.stop(seen.id)


@pytest.mark.parametrize("word", ["", "none"])
def test_a_container_that_is_excepted_stays_in_the_pool_after_a_downgrade(word: str) -> None:
    """After a downgrade a container of the pool with a filled-in limit stays there only if `none` excepts it.

    It makes slices of such containers, unless `none` excepts them before: docs/operator-guide.md, "Downgrade".
    """
    node, record = world(), {**EXCLUSIVE, FILLED_IN: "p"}
    bare: dict[str, str | int | None] = {"m": 1, "p": 1, "log": None, "web": None}
    updated(node, budgeted("a", 5, bare, annotations=record), *bare)
    limited = {**bare, "log": 1}  # by a LimitRange at a resize
    excepted = {f"cpu-manager.corepin.io/container.{name}": word for name in ("p", "log") if word}
    for known in (record, {**record, **excepted}):
        updated(node, budgeted("a", 5, limited, annotations=known))
        assert (len(pool(node)), runs(node, "p"), runs(node, "log")) == (4, pool(node), pool(node))
    saved = ledger_to_dict(node.ledger)
    for user in saved["podPools"][0]["containers"]:
        user.pop("bare", None)
    node.ledger = ledger_from_dict(saved)
    updated(node, budgeted("a", 5, limited, annotations={**EXCLUSIVE, **excepted}))
    assert len(pool(node)) == (4 if word else 2)
    assert [bool(node.holds("a", name)) for name in ("p", "log")] == [not word] * 2


@pytest.mark.parametrize("ended", [(), ("l",), ("m", "l")])
def test_a_container_starts_again_where_an_upgrade_brings_a_pool_that_does_not_fit(
    ended: tuple[str, ...],
) -> None:
    """If the pool does not fit after an upgrade, a restarted container runs in the shared set, a slice as before."""
    node = upgraded(budgeted("a", 4, {"m": 2, "l": None}, annotations=REQUIRE), "m", "l")
    for name in ended:
        end(node, name)
    found, table = planned(node)
    assert (of_pool(node).reason, of_pool(node).blocks_start) == (Reason.NOT_ENOUGH, False)
    assert table.start(Owner("a", "l"), claims=True) == Start(found.shared)
    assert table.start(Owner("a", "m"), claims=True) == Start(CPUSet.parse("1,5"), CPUSet.parse("1,5"))
    where = "" if "l" in ended else ", where they were before"
    assert of_pool(node).message.endswith(f"its containers run in the shared set{where}")


def test_a_new_pod_is_held_back_as_a_whole() -> None:
    """A pod of which no container runs has no slices if its budget does not fit, and waits."""
    node = upgraded(budgeted("a", 4, {"l": None}, annotations=REQUIRE))
    _, table = planned(node)
    assert of_pool(node).message.endswith("until then its containers are not started")
    assert isinstance(table.start(Owner("a", "l"), claims=True), str)


def test_the_gate_holds_back_new_pods_and_is_not_named_for_running_ones() -> None:
    """The refusal of a running pod does not say that its containers wait in the gate."""
    document = budgeted("a", 4, {"l": None}, annotations=REQUIRE)
    document["spec"]["initContainers"] = [{"name": GATE_CONTAINER}]
    node = upgraded(document)
    assert of_pool(node).message.endswith(f"waits in its init container {GATE_CONTAINER}")
    node.start("a", "l")
    assert of_pool(node).message.endswith("its containers run in the shared set, where they were before")
    assert not of_pool(node).blocks_start


def lost(node: World, reported: dict[Owner, CPUSet] | None = None) -> Ledger:
    """Return the ledger that is recovered without a checkpoint."""
    return recover(node.observe(), node.config, reported or {})


@pytest.mark.parametrize("annotations", [EXCLUSIVE, REQUIRE, {"smt-policy.corepin.io/pod": "isolate"}])
def test_a_lost_checkpoint_loses_no_pool(annotations: dict[str, str]) -> None:
    """Slices and pool are recovered from where the containers run, with idle siblings."""
    node = started(budgeted("a", 4, {"m": 2, "l": None, "p": None}, annotations=annotations), "m", "l", "p")
    node.start("x", "c")
    node.run_all()
    assert lost(node) == node.ledger


def test_a_waiting_pod_does_not_get_the_pool_of_a_running_one() -> None:
    """An older pod that waits for CPUs gets none of a pool after a lost checkpoint."""
    node = started(budgeted("a", 2, {"l": None}, created=1), "l", node=world(4))
    updated(node, budgeted("w", None, {"m": 6}))
    before = pool(node)
    node.ledger = lost(node)
    node.run_all()
    assert (pool(node), runs(node, "l"), node.holds("w", "m")) == (before, before, "")


def test_a_pool_is_recovered_where_its_containers_agree() -> None:
    """A pool is recovered from the containers that share one set; one that runs on all CPUs is ignored."""
    node = started(budgeted("a", 4, {"m": 2, "l": None, "p": None}), "m", "l")
    node.start("a", "p")
    assert lost(node) == node.ledger
    end(node, "l")
    found = lost(node)
    assert (found.pools, len(found)) == ({}, 1)
    reported = {Owner("a", "l"): pool(node), Owner("a", "p"): pool(node)}
    assert lost(node, reported) == node.ledger
    assert not lost(node, {Owner("a", "l"): pool(node) | CPUSet([3])}).pools


@pytest.mark.parametrize("annotations", [EXCLUSIVE, REQUIRE])
def test_a_pool_whose_containers_all_ended_is_recovered_as_it_was_reported(
    annotations: dict[str, str],
) -> None:
    """A pool without running containers is recovered as reported, if no other pod runs there and it fits the budget."""
    node = started(budgeted("a", 4, {"m": 2, "l": None}, annotations=annotations), "m", "l")
    node.start("x", "c")
    node.run_all()
    end(node, "l")
    reported = {Owner("a", ""): pool(node)}
    assert lost(node, reported) == node.ledger
    assert not lost(node).pools
    for wrong in ("3", "0,8", "3,20", "1,9", "3,11"):
        assert not lost(node, {Owner("a", ""): CPUSet.parse(wrong)}).pools, wrong
    started(budgeted("b", 2, {"l": None}, created=1), "l", node=node)
    assert not lost(node, {Owner("a", ""): pool(node, "b")}).pools.get("a")


def test_an_empty_pool_is_not_recovered() -> None:
    """An empty pool is not recovered, because it holds no CPUs; the plan creates it again."""
    node = started(budgeted("a", 2, {"m": 2, "l": None}), "m", "l")
    assert [held.owner.container for held in lost(node).of_pod("a")] == ["m"]


def test_no_pool_is_recovered_from_the_shared_set() -> None:
    """No pool is recovered for a refused pod, whose containers run in the shared set."""
    node = started(budgeted("a", 15, {"m": 2, "l": None}), "m", "l")
    node.start("x", "c")
    assert not node.ledger.pools
    node.run_all()
    assert not lost(node)


def test_no_pool_is_recovered_beyond_the_budget() -> None:
    """A pool is not recovered if it and a slice on too many CPUs exceed the budget; the plan assigns it again."""
    node = started(budgeted("a", 4, {"m": 2, "l": None}), "m", "l")
    node.start("x", "c")
    node.run_all()
    for key, seen in node.containers.items():
        if seen.owner == Owner("a", "m"):
            node.containers[key] = replace(seen, cpus=seen.cpus | CPUSet([3]))
        elif seen.owner.pod_uid == "x":
            node.containers[key] = replace(seen, cpus=seen.cpus - CPUSet([3]))
    assert not lost(node).pools


def test_the_slice_of_a_filled_in_limit_is_recovered() -> None:
    """The slice of a limit that a LimitRange filled in is recovered as a slice, and the pool as the pool."""
    node = started(budgeted("a", None, {"m": 2, "p": 1, "l": None}), "m", "p", "l")
    updated(node, budgeted("a", 4, {"m": 2, "p": 1, "l": None}, annotations=FILLED))
    assert (len(pool(node)), bool(node.holds("a", "p"))) == (1, True)
    assert lost(node) == node.ledger
    end(node, "l")
    end(node, "p")
    assert not lost(node).of(Owner("a", "p"))
    new = started(budgeted("a", 4, {"m": 2, "p": 1, "l": None}, annotations=FILLED), "m", "p", "l")
    assert lost(new) == new.ledger
    for key, seen in new.containers.items():  # both run on one CPU
        if seen.owner.container in "pl":
            new.containers[key] = replace(seen, cpus=CPUSet([min(seen.cpus)]))
    assert [held.owner.container for held in lost(new).of_pod("a")] == ["m"]


@pytest.mark.parametrize("limit", [1, 2])
def test_a_pool_is_recovered_with_containers_that_got_their_first_limit_there(limit: int) -> None:
    """A pool is recovered with containers that got their first limit in it, and these get no slices."""
    node = started(budgeted("a", 4, {"m": 2, "p": None, "l": None}), "m", "p", "l")
    updated(node, budgeted("a", 4, {"m": 2, "p": limit, "l": None}))
    assert lost(node) == node.ledger
    named = {**EXCLUSIVE, "cpu-manager.corepin.io/container.p": "exclusive"}
    put(node, budgeted("a", 4, {"m": 2, "p": 1, "l": None}, annotations=named))
    assert not lost(node).pools


def test_all_containers_of_a_recovered_pool_may_have_their_first_limit() -> None:
    """A pool is recovered even if all its containers got their first limit in it, and stays the whole budget."""
    node = started(budgeted("a", 4, {"p": None, "l": None}), "p", "l")
    updated(node, budgeted("a", 4, {"p": 1, "l": 1}))
    assert lost(node) == node.ledger
    assert len(pool(node)) == 4
