"""The ledger: what may be entered, and what may not."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import CPUPolicy, SMTPolicy
from pinning.errors import IllegalTransition
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.observed import Owner
from pinning.pods.resources import Role
from tests.pinning.entries import entry
from tests.tables import table


def test_transitions_return_new_ledgers() -> None:
    """Transitions return a new ledger and leave the old one unchanged."""
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
        "no CPUs": (lambda ledger: ledger.assign(entry("b", "")), "without CPUs is none"),
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
    """A change that would break a rule is a bug of the caller and raises."""
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
    """Only what starts after an ordinary init container of its pod may hold the same CPUs."""
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
    """Releasing one of two containers on the same CPUs leaves them held for the other."""
    ledger = Ledger().assign(entry("a", "1-2", container="one", role=Role.INIT))
    both = ledger.assign(entry("a", "1", container="two", start_index=1))
    assert str(both.release(Owner("a", "two")).exclusive) == "1-2"
    assert str(both.release(Owner("a", "one")).exclusive) == "1"
    assert both.held_against("b", 0, Role.MAIN) == CPUSet.parse("1-2")
    assert both.held_against("a", 2, Role.MAIN) == CPUSet.parse("1")
