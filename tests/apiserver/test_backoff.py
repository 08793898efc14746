"""Backoff between retries."""

from __future__ import annotations

import pytest

from apiserver.backoff import LONGEST_ASKED, Backoff
from apiserver.errors import Busy, Refused


def test_waits_double_up_to_the_longest() -> None:
    """Waits double up to a maximum, half of each is jitter, and a success resets them."""
    backoff = Backoff(1.0, 60.0)
    waits = [backoff.next() for _ in range(40)]
    assert all(0.5 * 2**at <= wait <= 2**at for at, wait in enumerate(waits[:6]))
    assert all(30 <= wait <= 60 for wait in waits[6:])
    assert len(set(waits)) == 40
    backoff.reset()
    assert backoff.next() <= 1


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        pytest.param(Busy("429", 7), 7, 8.4, id="asked for 7 s"),
        pytest.param(Busy("429", 86400), LONGEST_ASKED, 1.2 * LONGEST_ASKED, id="asked for a day"),
        pytest.param(Busy("503"), 0.5, 1, id="asked for nothing"),
        pytest.param(Refused("403"), 0.5, 1, id="refused"),
    ],
)
def test_what_is_asked_for_is_waited(error: Exception, least: float, most: float) -> None:
    """Retry-After is respected, up to a maximum."""
    assert least <= Backoff(1.0).after(error) <= most
