"""The token bucket limits the rate of events in every period."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent.token_bucket import TokenBucket


def test_burst_is_followed_by_the_rate() -> None:
    """After idle time the whole burst is available again, and no more."""
    bucket = TokenBucket(3, 10.0)
    assert [bucket.take(0.0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert [bucket.take(10.0) for _ in range(2)] == [True, False]
    assert [bucket.take(1000.0) for _ in range(5)] == [True] * 3 + [False] * 2


def test_wait_is_the_time_until_the_next_token() -> None:
    """With a larger burst the same bucket waits less."""
    bucket = TokenBucket(1, 10.0)
    assert bucket.wait(0.0) <= 0.0
    bucket.spend(0.0)
    assert (round(bucket.wait(4.0)), bucket.wait(4.0, burst=2) <= 0.0) == (6, True)


def test_several_turns_begin_together_or_not_at_all() -> None:
    """Two turns need two free tokens; a refused attempt takes none."""
    bucket = TokenBucket(3, 10.0)
    assert [bucket.take(0.0, turns=2), bucket.take(0.0, turns=2), bucket.take(0.0)] == [True, False, True]
    assert (round(bucket.wait(0.0, turns=2)), bucket.take(20.0, turns=2)) == (20, True)


@given(st.lists(st.floats(0.0, 5.0), max_size=60), st.integers(1, 5), st.sampled_from([0.5, 1.0, 3.0]))
def test_no_period_exceeds_burst_and_rate(pauses: list[float], burst: int, seconds: float) -> None:
    """In any period at most `burst` tokens more are taken than the rate allows."""
    bucket, now, taken = TokenBucket(burst, seconds), 0.0, []
    for pause in pauses:
        now += pause
        if bucket.take(now):
            taken.append(now)
    for first, start in enumerate(taken):
        for last, end in enumerate(taken[first:], first):
            assert last - first + 1 <= burst + (end - start) / seconds + 1e-6
