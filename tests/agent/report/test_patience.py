"""Whose turn it is of those whom the API server refused something."""

from __future__ import annotations

from agent.clock import Clock
from agent.report.patience import BETWEEN_SECONDS, FIRST_SECONDS, LONGEST_SECONDS, Patience
from apiserver.errors import Refused

NO = Refused("422: no")


def test_who_changed_comes_first_and_not_every_time() -> None:
    """It need not wait until it is due; one that changes all the time takes no turn from those that wait for longer."""
    now = [0.0]
    patience = Patience(Clock(monotonic=lambda: now[0]))
    assert [patience.refuse(key, NO, "1") for key in "ab"] == [True, True]
    now[0] = LONGEST_SECONDS
    assert patience.turns({"a": "1", "b": "2"}) == ["b", "a"]
    assert not patience.refuse("b", NO, "2")
    assert patience.turns({"a": "1", "b": "3"}) == []
    now[0] += BETWEEN_SECONDS
    assert patience.turns({"a": "1", "b": "3"}) == ["a", "b"]


def test_nobody_has_a_turn_before_the_first_is_due() -> None:
    """Who is told, or is to be told nothing any more, has none at all."""
    now = [0.0]
    patience = Patience(Clock(monotonic=lambda: now[0]))
    assert patience.turns({}) == []
    for key in "abc":
        patience.refuse(key, NO)
    now[0] = FIRST_SECONDS / 3
    assert patience.turns({}) == []
    now[0] = FIRST_SECONDS
    patience.forget("a")
    patience.keep({"c"})
    assert patience.turns({}) == ["c"]
