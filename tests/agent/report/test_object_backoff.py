"""Whose turn it is of those whom the API server refused something."""

from __future__ import annotations

from agent.clock import Clock
from agent.report.object_backoff import BETWEEN_SECONDS, FIRST_SECONDS, LONGEST_SECONDS, ObjectBackoff
from apiserver.errors import Refused

NO = Refused("422: no")


def test_who_changed_comes_first_and_not_every_time() -> None:
    """It need not wait until it is due; one that changes all the time takes no turn from those that wait for longer."""
    now = [0.0]
    backoff = ObjectBackoff(Clock(monotonic=lambda: now[0]))
    assert [backoff.refuse(key, NO, "1") for key in "ab"] == [True, True]
    now[0] = LONGEST_SECONDS
    assert backoff.turns({"a": "1", "b": "2"}) == ["b", "a"]
    assert not backoff.refuse("b", NO, "2")
    assert backoff.turns({"a": "1", "b": "3"}) == []
    now[0] += BETWEEN_SECONDS
    assert backoff.turns({"a": "1", "b": "3"}) == ["a", "b"]


def test_nobody_has_a_turn_before_the_first_is_due() -> None:
    """Who is told, or is to be told nothing any more, has none at all."""
    now = [0.0]
    backoff = ObjectBackoff(Clock(monotonic=lambda: now[0]))
    assert backoff.turns({}) == []
    for key in "abc":
        backoff.refuse(key, NO)
    now[0] = FIRST_SECONDS / 3
    assert backoff.turns({}) == []
    now[0] = FIRST_SECONDS
    backoff.forget("a")
    backoff.keep({"c"})
    assert backoff.turns({}) == ["c"]
