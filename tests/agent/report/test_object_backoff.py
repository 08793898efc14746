"""Backoff for each object that the API server refused."""

from __future__ import annotations

from agent.clock import Clock
from agent.report.object_backoff import BETWEEN_SECONDS, FIRST_SECONDS, LONGEST_SECONDS, ObjectBackoff
from apiserver.errors import Refused

NO = Refused("422: no")


def test_changed_object_is_retried_first_but_not_always() -> None:
    """A changed object is retried before its backoff is over, and does not starve the others."""
    now = [0.0]
    backoff = ObjectBackoff(Clock(monotonic=lambda: now[0]))
    assert [backoff.refuse(key, NO, "1") for key in "ab"] == [True, True]
    now[0] = LONGEST_SECONDS
    assert backoff.turns({"a": "1", "b": "2"}) == ["b", "a"]
    assert not backoff.refuse("b", NO, "2")
    assert backoff.turns({"a": "1", "b": "3"}) == []
    now[0] += BETWEEN_SECONDS
    assert backoff.turns({"a": "1", "b": "3"}) == ["a", "b"]


def test_no_object_is_retried_before_its_backoff_is_over() -> None:
    """Objects that were written or are no longer reported are not retried."""
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
