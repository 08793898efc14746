"""The ledger: which entries are valid, and the rules that every ledger follows."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import CPUPolicy, SMTPolicy
from pinning.errors import IllegalTransition
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.invariants import problems
from pinning.planning.ledger import Assignment, Ledger
from pinning.planning.node_config import DEFAULT
from pinning.planning.node_sets import NodeSets, Pools, node_sets
from pinning.planning.observed import Owner
from pinning.pods.resources import Role
from tests.pinning.entries import entry
from tests.pinning.nodes import smt_machine
from tests.tables import table


def test_transitions_return_new_ledgers() -> None:
    """Each change of a ledger returns a new ledger and leaves the old one unchanged."""
    empty = Ledger()
    assigned = empty.assign(entry("a", "1", "5", smt=SMTPolicy.ISOLATE))
    changed = assigned.change(entry("a", "1"))
    assert (len(empty), len(assigned), len(changed)) == (0, 1, 1)
    assert (str(assigned.exclusive), str(changed.exclusive), str(changed.held)) == ("1,5", "1", "1")
    assert changed.release(Owner("a", "c")) == empty
    assert changed.of(Owner("a", "x")) is None
    assert str(changed.assign(entry("b", "2", policy=CPUPolicy.SHARE)).share) == "2"


def test_container_runs_on_its_own_cpus_or_else_in_the_shared_set() -> None:
    """A container without an assignment runs in the shared set."""
    ledger = Ledger().assign(entry("a", "1"))
    shared = CPUSet.parse("2-3")
    assert ledger.cpus_of(Owner("a", "c"), shared) == CPUSet.parse("1")
    assert ledger.cpus_of(Owner("a", "x"), shared) == shared


@table(
    "change, message",
    {
        "assigned twice": (lambda ledger: ledger.assign(entry("a", "3")), "n/a/c holds CPUs already"),
        "changing nothing": (lambda ledger: ledger.change(entry("b", "3")), "n/b/c holds no CPUs"),
        "releasing nothing": (
            lambda ledger: ledger.release(Owner("b", "c")),
            "container c of pod b holds no",
        ),
        "overlap": (lambda ledger: ledger.assign(entry("b", "1-2")), "n/b/c: CPUs 1 are held by others"),
        "another's idle": (lambda ledger: ledger.assign(entry("b", "2", "5")), "CPUs 5 are held by others"),
        "no CPUs": (lambda ledger: ledger.assign(entry("b", "")), "an assignment must have CPUs"),
        "idle and in use": (lambda ledger: ledger.assign(entry("b", "2", "2-3")), "CPUs 2 cannot be idle"),
        "idle and shared": (
            lambda ledger: ledger.assign(entry("b", "2", "6", policy=CPUPolicy.SHARE)),
            "only exclusive",
        ),
        "of its own pod": (
            lambda ledger: ledger.assign(entry("a", "1", container="d", start_index=1)),
            "CPUs 1 are held",
        ),
        "share on exclusive": (
            lambda ledger: ledger.change(entry("a", "1", "5")).assign(
                entry("b", "1", policy=CPUPolicy.SHARE)
            ),
            "CPUs 1 are held",
        ),
    },
)
def test_illegal_transitions_raise(change: Any, message: str) -> None:
    """A change that would break a rule of the ledger raises, because it is a bug of the caller."""
    with pytest.raises(IllegalTransition, match=message):
        change(Ledger().assign(entry("a", "1", "5", smt=SMTPolicy.ISOLATE)))


@table(
    "roles, meets",
    {
        "an init container ends before the main ones": ((Role.INIT, Role.MAIN), False),
        "init containers come one after the other": ((Role.INIT, Role.INIT), False),
        "a sidecar that starts later": ((Role.INIT, Role.SIDECAR), False),
        "a sidecar that started before": ((Role.SIDECAR, Role.INIT), True),
        "a sidecar stays": ((Role.SIDECAR, Role.MAIN), True),
        "main containers": ((Role.MAIN, Role.MAIN), True),
    },
)
def test_who_runs_beside_whom(roles: tuple[Role, Role], meets: bool) -> None:
    """Two containers may hold the same CPUs only if one is an ordinary init container and the other starts later."""
    first = entry("a", "1", container="one", start_index=0, role=roles[0])
    second = entry("a", "1", container="two", start_index=1, role=roles[1])
    assert first.meets(second) is second.meets(first) is meets
    assert first.meets(entry("b", "1")) is True
    ledger = Ledger().assign(first)
    if meets:
        with pytest.raises(IllegalTransition):
            ledger.assign(second)
    else:
        assert str(ledger.assign(second).exclusive) == "1"


def test_init_cpus_stay_held_until_the_pod_goes() -> None:
    """If one of two containers on the same CPUs releases them, the other still holds them."""
    ledger = Ledger().assign(entry("a", "1-2", container="one", role=Role.INIT))
    both = ledger.assign(entry("a", "1", container="two", start_index=1))
    assert str(both.release(Owner("a", "two")).exclusive) == "1-2"
    assert str(both.release(Owner("a", "one")).exclusive) == "1"
    assert both.held_against("b", 0, Role.MAIN) == CPUSet.parse("1-2")
    assert both.held_against("a", 2, Role.MAIN) == CPUSet.parse("1")


def held(*entries: Assignment) -> Ledger:
    """Return a ledger with these assignments, entered without checks."""
    pods: dict[str, tuple[Assignment, ...]] = {}
    for assignment in entries:
        pods[assignment.owner.pod_uid] = (*pods.get(assignment.owner.pod_uid, ()), assignment)
    masks = [EMPTY, EMPTY]
    for assignment in entries:
        masks[assignment.is_exclusive] |= assignment.footprint
    return Ledger(pods, masks[True], masks[False])


SETS = node_sets(smt_machine(4), smt_machine(4).online, DEFAULT)  # cores 0,4 (reserved) 1,5 2,6 3,7


@table(
    "ledger, message",
    {
        "no CPUs": (held(entry("a", "")), "must have CPUs"),
        "reserved": (held(entry("a", "0")), "CPUs 0 are reserved"),
        "share on reserved": (held(entry("a", "0", policy=CPUPolicy.SHARE)), "CPUs 0 are reserved"),
        "not there": (held(entry("a", "9")), "CPUs 9 are reserved, set aside or not usable"),
        "owned twice": (held(entry("a", "1"), entry("b", "1")), "n/a/c and n/b/c both hold CPUs 1"),
        "share on exclusive": (
            held(entry("a", "1"), entry("b", "1", policy=CPUPolicy.SHARE)),
            "both hold CPUs 1",
        ),
        "half a core": (held(entry("a", "1", smt=SMTPolicy.REQUIRE)), "CPUs 5 are siblings"),
        "isolate on siblings": (
            held(entry("a", "1,5", smt=SMTPolicy.ISOLATE)),
            "CPUs 1,5 are of one core, of which smt-policy isolate",
        ),
        "masks that say something else": (
            Ledger({"a": (entry("a", "1"),)}),
            "CPUs 1 are in the shared set too",
        ),
    },
)
def test_problems_name_every_broken_rule(ledger: Ledger, message: str) -> None:
    """The ledger reports every broken rule in words."""
    assert message in "; ".join(problems(ledger, SETS))


def test_a_sound_ledger_has_no_problems() -> None:
    """A ledger with owners, sharing containers and an init container on reused CPUs has no problems."""
    ledger = held(
        entry("a", "1", "5", smt=SMTPolicy.ISOLATE),
        entry("b", "2", policy=CPUPolicy.SHARE),
        entry("c", "3,7", container="one", role=Role.INIT, smt=SMTPolicy.REQUIRE),
        entry("c", "3", container="two", start_index=1),
    )
    assert problems(ledger, SETS) == ()


def test_an_empty_shared_set_is_a_problem() -> None:
    """An empty shared set is a problem, because containers without claims need CPUs."""
    topology = smt_machine(1)
    sets = NodeSets(topology, topology.online, EMPTY, Pools(topology.online, EMPTY))
    assert problems(held(entry("a", "0-1")), sets) == ("the shared set is empty",)
