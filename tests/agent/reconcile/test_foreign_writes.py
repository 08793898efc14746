"""When a rewrite of a cpuset becomes a fight, and when a fight is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.reconcile.foreign_writes import WINDOW_SECONDS, Fights
from pinning.planning.observed import Owner

ONE, OTHER = Owner("a", "c0"), Owner("b", "c0")


def after(*times: float) -> Fights:
    """Return what is known after rewrites at these times."""
    fights = Fights()
    for time in times:
        fights = fights.at(time).saw(ONE, time)
    return fights


@pytest.mark.parametrize(
    ("times", "is_fight"),
    [
        pytest.param((0,), False, id="one"),
        pytest.param((0, 1), False, id="two"),
        pytest.param((0, 1, 2), True, id="three"),
        pytest.param((0, 300, 599), True, id="three within ten minutes"),
        pytest.param((0, 300, 601), False, id="three in more than ten minutes"),
        pytest.param((0, 1, 2, 500, 1000), True, id="a fight goes on while it is not quiet"),
        pytest.param((0, 1, 2, 700), False, id="ten quiet minutes end it"),
    ],
)
def test_three_rewrites_in_ten_minutes_are_a_fight(times: tuple[float, ...], is_fight: bool) -> None:
    """Three within the window are a fight; it lasts until nobody wrote for ten minutes."""
    assert after(*times).is_fight(ONE) is is_fight


def test_fight_concerns_its_container_only() -> None:
    """Others are repaired as before."""
    assert after(0, 1, 2).fought == (ONE,)
    assert not after(0, 1, 2).is_fight(OTHER)


def test_end_is_told_in_time() -> None:
    """The agent knows when to look again."""
    assert after(0, 1, 2).ends(100) == WINDOW_SECONDS - 98
    assert Fights().ends(5) is None


@given(times=st.lists(st.integers(0, 5000), max_size=12))
def test_quiet_ends_everything(times: list[int]) -> None:
    """Whatever happened, ten quiet minutes later nothing of it is left."""
    fights = after(*sorted(times))
    assert fights.at(max(times, default=0) + WINDOW_SECONDS) == Fights()
