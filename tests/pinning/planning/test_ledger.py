"""The ledger: what may be entered, what is told when a rule is broken, and what survives being saved."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pinning.contract import CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.errors import BadContract, IllegalTransition
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.ledger import Assignment, Ledger, problems
from pinning.planning.node_config import DEFAULT
from pinning.planning.node_sets import NodeSets, Pools, node_sets
from pinning.planning.observed import Owner
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine


def held(*entries: Assignment) -> Ledger:
    """Return a ledger with these assignments, entered without any check."""
    pods: dict[str, tuple[Assignment, ...]] = {}
    for one in entries:
        pods[one.owner.pod_uid] = (*pods.get(one.owner.pod_uid, ()), one)
    masks = [EMPTY, EMPTY]
    for one in entries:
        masks[one.is_exclusive] |= one.footprint
    return Ledger(pods, masks[True], masks[False])


SETS = node_sets(smt_machine(4), smt_machine(4).online, DEFAULT)  # cores 0,4 (reserved) 1,5 2,6 3,7


def test_transitions_return_new_ledgers() -> None:
    """What was entered, changed and released is in the new ledger and never in the old one."""
    empty = Ledger()
    one = empty.assign(entry("a", "1", "5", smt=SMTPolicy.ISOLATE))
    two = one.change(entry("a", "1"))
    assert (len(empty), len(one), len(two)) == (0, 1, 1)
    assert (str(one.exclusive), str(two.exclusive), str(two.held)) == ("1,5", "1", "1")
    assert two.release(Owner("a", "c")) == empty
    assert two.of(Owner("a", "x")) is None
    assert str(two.assign(entry("b", "2", policy=CPUPolicy.SHARE)).share) == "2"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            lambda one: one.assign(entry("a", "3")), "n/a/c holds CPUs already", id="assigned twice"
        ),
        pytest.param(lambda one: one.change(entry("b", "3")), "n/b/c holds no CPUs", id="changing nothing"),
        pytest.param(
            lambda one: one.release(Owner("b", "c")), "container c of pod b holds no", id="releasing nothing"
        ),
        pytest.param(
            lambda one: one.assign(entry("b", "1-2")), "n/b/c: CPUs 1 are held by others", id="overlap"
        ),
        pytest.param(
            lambda one: one.assign(entry("b", "2", "5")), "CPUs 5 are held by others", id="another's idle"
        ),
        pytest.param(lambda one: one.assign(entry("b", "")), "without CPUs is none", id="no CPUs"),
        pytest.param(
            lambda one: one.assign(entry("b", "2", "2-3")), "CPUs 2 cannot be idle", id="idle and in use"
        ),
        pytest.param(
            lambda one: one.assign(entry("b", "2", "6", policy=CPUPolicy.SHARE)),
            "only exclusive",
            id="idle and shared",
        ),
        pytest.param(
            lambda one: one.assign(entry("a", "1", container="d", place=1)),
            "CPUs 1 are held",
            id="of its own pod",
        ),
        pytest.param(
            lambda one: one.change(entry("a", "1", "5")).assign(entry("b", "1", policy=CPUPolicy.SHARE)),
            "CPUs 1 are held",
            id="share on exclusive",
        ),
    ],
)
def test_illegal_transitions_raise(change: Any, told: str) -> None:
    """A change that would break a rule is a bug of the caller and raises."""
    with pytest.raises(IllegalTransition, match=told):
        change(Ledger().assign(entry("a", "1", "5", smt=SMTPolicy.ISOLATE)))


@pytest.mark.parametrize(
    ("roles", "meets"),
    [
        pytest.param((Role.INIT, Role.MAIN), False, id="an init container ends before the main ones"),
        pytest.param((Role.INIT, Role.INIT), False, id="init containers come one after the other"),
        pytest.param((Role.INIT, Role.SIDECAR), False, id="a sidecar that starts later"),
        pytest.param((Role.SIDECAR, Role.INIT), True, id="a sidecar that started before"),
        pytest.param((Role.SIDECAR, Role.MAIN), True, id="a sidecar stays"),
        pytest.param((Role.MAIN, Role.MAIN), True, id="main containers"),
    ],
)
def test_who_runs_beside_whom(roles: tuple[Role, Role], meets: bool) -> None:
    """Only what starts after an ordinary init container of its pod may hold the same CPUs."""
    first = entry("a", "1", container="one", place=0, role=roles[0])
    second = entry("a", "1", container="two", place=1, role=roles[1])
    assert first.meets(second) is second.meets(first) is meets
    assert first.meets(entry("b", "1")) is True
    ledger = Ledger().assign(first)
    if meets:
        with pytest.raises(IllegalTransition):
            ledger.assign(second)
    else:
        assert str(ledger.assign(second).exclusive) == "1"


def test_init_cpus_stay_held_until_the_pod_goes() -> None:
    """Releasing one of two containers on the same CPUs leaves them held for the other."""
    ledger = Ledger().assign(entry("a", "1-2", container="one", role=Role.INIT))
    both = ledger.assign(entry("a", "1", container="two", place=1))
    assert str(both.release(Owner("a", "two")).exclusive) == "1-2"
    assert str(both.release(Owner("a", "one")).exclusive) == "1"
    assert both.held_against("b", 0, Role.MAIN) == CPUSet.parse("1-2")
    assert both.held_against("a", 2, Role.MAIN) == CPUSet.parse("1")


@pytest.mark.parametrize(
    ("ledger", "told"),
    [
        pytest.param(held(entry("a", "")), "without CPUs", id="no CPUs"),
        pytest.param(held(entry("a", "0")), "CPUs 0 are reserved", id="reserved"),
        pytest.param(
            held(entry("a", "0", policy=CPUPolicy.SHARE)), "CPUs 0 are reserved", id="share on reserved"
        ),
        pytest.param(held(entry("a", "9")), "CPUs 9 are reserved, set aside or not usable", id="not there"),
        pytest.param(
            held(entry("a", "1"), entry("b", "1")), "n/a/c and n/b/c both hold CPUs 1", id="owned twice"
        ),
        pytest.param(
            held(entry("a", "1"), entry("b", "1", policy=CPUPolicy.SHARE)),
            "both hold CPUs 1",
            id="share on exclusive",
        ),
        pytest.param(held(entry("a", "1", smt=SMTPolicy.REQUIRE)), "CPUs 5 are siblings", id="half a core"),
        pytest.param(
            held(entry("a", "1,5", smt=SMTPolicy.ISOLATE)),
            "CPUs 1,5 are one core, and isolate",
            id="isolate on siblings",
        ),
        pytest.param(
            Ledger({"a": (entry("a", "1"),)}),
            "CPUs 1 are in the shared set too",
            id="masks that say something else",
        ),
    ],
)
def test_problems_name_every_broken_rule(ledger: Ledger, told: str) -> None:
    """Each rule has its words."""
    assert told in "; ".join(problems(ledger, SETS))


def test_a_sound_ledger_has_no_problems() -> None:
    """Owners, sharers and a reused init container beside each other are fine."""
    ledger = held(
        entry("a", "1", "5", smt=SMTPolicy.ISOLATE),
        entry("b", "2", policy=CPUPolicy.SHARE),
        entry("c", "3,7", container="one", role=Role.INIT, smt=SMTPolicy.REQUIRE),
        entry("c", "3", container="two", place=1),
    )
    assert problems(ledger, SETS) == ()


def test_an_empty_shared_set_is_a_problem() -> None:
    """Somebody always has to run somewhere."""
    topology = smt_machine(1)
    sets = NodeSets(topology, topology.online, EMPTY, Pools(topology.online, EMPTY))
    assert problems(held(entry("a", "0-1")), sets) == ("the shared set is empty",)


def saved() -> dict[str, Any]:
    """Return a checkpoint with one entry that uses every field."""
    claim = Claim(
        "c",
        Role.MAIN,
        Origin.CMK,
        CPUPolicy.EXCLUSIVE,
        1,
        "cmk.intel.com/exclusive-cores",
        SMTPolicy.ISOLATE,
        NUMAPolicy.SINGLE,
    )
    return Ledger().assign(replace(entry("a", "1", "5"), claim=claim)).to_dict()


def test_a_checkpoint_says_the_same_after_reading() -> None:
    """Equal ledgers are equal whatever their history."""
    again = Ledger.from_dict(saved())
    assert again.to_dict() == saved()
    assert again == Ledger().assign(entry("z", "2")).assign(next(iter(again))).release(Owner("z", "c"))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        pytest.param(lambda _: None, "not of version 1", id="nothing"),
        pytest.param(lambda one: {**one, "version": 2}, "not of version 1", id="another version"),
        pytest.param(lambda one: {"version": 1}, "damaged .*assignments", id="no assignments"),
        pytest.param(lambda one: {"version": 1, "assignments": [3]}, "damaged", id="no mapping"),
        pytest.param(lambda one: damaged(one, cpus="x"), "damaged .*neither N", id="bad list"),
        pytest.param(lambda one: damaged(one, cpus=3), "damaged", id="a number for a list"),
        pytest.param(lambda one: damaged(one, cpus=""), "damaged .*without CPUs", id="no CPUs"),
        pytest.param(lambda one: damaged(one, policy="x"), "damaged", id="unknown policy"),
        pytest.param(lambda one: damaged(one, pod=3), "damaged .3 is no text", id="a number for a text"),
        pytest.param(
            lambda one: damaged(one, place=True), "damaged .True is no whole number", id="a truth value"
        ),
        pytest.param(lambda one: damaged(one, place="0"), "damaged .'0' is no whole number", id="a text"),
        pytest.param(
            lambda one: {**one, "assignments": one["assignments"] * 2},
            "damaged .*holds CPUs already",
            id="twice",
        ),
    ],
)
def test_a_damaged_checkpoint_is_refused(damage: Any, told: str) -> None:
    """Whatever is wrong with a checkpoint, it is one error with one remedy."""
    with pytest.raises(BadContract, match=told) as refused:
        Ledger.from_dict(damage(saved()))
    assert "rebuild it from the runtime" in str(refused.value)


def damaged(checkpoint: dict[str, Any], **wrong: Any) -> dict[str, Any]:
    """Return a checkpoint whose entry has other values."""
    return {**checkpoint, "assignments": [{**checkpoint["assignments"][0], **wrong}]}
