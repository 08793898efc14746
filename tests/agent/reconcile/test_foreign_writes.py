"""Counting foreign writes of a cpuset: when they become a conflict, and when it ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.reconcile.foreign_writes import WINDOW_SECONDS, ForeignWrites
from pinning.planning.observed import Owner

ONE, OTHER = Owner("a", "c0"), Owner("b", "c0")


def after(*times: float) -> ForeignWrites[Owner]:
    """Return the record of foreign writes at these times."""
    writes: ForeignWrites[Owner] = ForeignWrites()
    for time in times:
        writes = writes.at(time).saw(ONE, time)
    return writes


@pytest.mark.parametrize(
    ("times", "is_conflict"),
    [
        pytest.param((0,), False, id="one"),
        pytest.param((0, 1), False, id="two"),
        pytest.param((0, 1, 2), True, id="three"),
        pytest.param((0, 300, 599), True, id="three within ten minutes"),
        pytest.param((0, 300, 601), False, id="three in more than ten minutes"),
        pytest.param((0, 1, 2, 500, 1000), True, id="a conflict goes on while it is not quiet"),
        pytest.param((0, 1, 2, 700), False, id="ten quiet minutes end it"),
    ],
)
def test_three_rewrites_in_ten_minutes_are_a_conflict(times: tuple[float, ...], is_conflict: bool) -> None:
    """Three rewrites within ten minutes are a conflict, which ends after ten minutes without one."""
    assert after(*times).is_conflict(ONE) is is_conflict


def test_conflict_concerns_its_container_only() -> None:
    """A conflict of one container does not affect the others."""
    assert after(0, 1, 2).conflicts == (ONE,)
    assert not after(0, 1, 2).is_conflict(OTHER)


def test_many_writes_are_counted_at_once() -> None:
    """Each counts as one write."""
    assert after(0, 1).saw_all((ONE, OTHER), 2) == after(0, 1).saw(ONE, 2).saw(OTHER, 2)


def test_time_until_a_conflict_ends_is_known() -> None:
    """`ends` returns the seconds until the conflict is over, or None without one."""
    assert after(0, 1, 2).ends(100) == WINDOW_SECONDS - 98
    assert ForeignWrites().ends(5) is None


@given(times=st.lists(st.integers(0, 5000), max_size=12))
def test_quiet_ends_everything(times: list[int]) -> None:
    """After ten quiet minutes no record of foreign writes is left."""
    writes = after(*sorted(times))
    assert writes.at(max(times, default=0) + WINDOW_SECONDS) == ForeignWrites()
