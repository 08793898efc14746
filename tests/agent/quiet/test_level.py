"""Noise levels of containers, which change at most once in ten minutes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.node_state import ContainerNoise, NoiseLevel
from agent.quiet.level import HOLD_SECONDS, Watched, next_level
from pinning.contract import NoiseKind

LIMITS = ((NoiseKind.INTERRUPTS, 1.0), (NoiseKind.WAIT, 5.0))
QUIET = ContainerNoise(10.0, 10, 900, 0.05, 9, 9)
INTERRUPTED = QUIET._replace(interrupts=11)
WAITING = QUIET._replace(wait_seconds=0.051)
BOTH = INTERRUPTED._replace(wait_seconds=9.0)
MASKED = QUIET._replace(interrupts=None)
LATE = HOLD_SECONDS
BY_INTERRUPTS = NoiseLevel(NoiseKind.INTERRUPTS, "then")
BY_WAIT = NoiseLevel(NoiseKind.WAIT, "now")
BY_NOTHING = NoiseLevel(None)


@pytest.mark.parametrize(
    ("before", "noise", "now", "level"),
    [
        pytest.param(None, QUIET, 0.0, None, id="one quiet round says nothing"),
        pytest.param(None, WAITING, 0.0, BY_WAIT, id="one noisy round does"),
        pytest.param(None, BOTH, 0.0, BY_INTERRUPTS._replace(since="now"), id="the first kind"),
        pytest.param(Watched(None, 0.0), QUIET, LATE - 1, None, id="not yet for ten minutes"),
        pytest.param(Watched(None, 0.0), QUIET, LATE, BY_NOTHING, id="quiet for ten minutes"),
        pytest.param(Watched(None, 0.0), MASKED, LATE, None, id="what is not known is not quiet"),
        pytest.param(Watched(None, 0.0), WAITING, 10.0, BY_WAIT, id="noisy later"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), INTERRUPTED, LATE, BY_INTERRUPTS, id="it goes on"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), MASKED, LATE, BY_INTERRUPTS, id="it is not known to end"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), QUIET, LATE - 1, BY_INTERRUPTS, id="it pauses"),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), QUIET, LATE, BY_NOTHING, id="it ended"),
        pytest.param(
            Watched(BY_INTERRUPTS, 0.0), WAITING, LATE - 1, BY_INTERRUPTS, id="another kind beside it"
        ),
        pytest.param(Watched(BY_INTERRUPTS, 0.0), WAITING, LATE, BY_WAIT, id="another kind alone"),
        pytest.param(Watched(BY_NOTHING, 0.0), WAITING, LATE - 1, BY_NOTHING, id="it ended a moment ago"),
        pytest.param(Watched(BY_NOTHING, 0.0), WAITING, LATE, BY_WAIT, id="noisy again"),
        pytest.param(Watched(BY_NOTHING, 0.0), QUIET, LATE, BY_NOTHING, id="quiet still"),
    ],
)
def test_level_follows_the_counts(
    before: Watched | None, noise: ContainerNoise, now: float, level: NoiseLevel | None
) -> None:
    """A noise level begins at once above the limit, and ends after ten minutes below it."""
    assert next_level(before, noise, LIMITS, now, "now").level == level


def test_nothing_is_noisy_without_limits() -> None:
    """When the operator removes all limits, a container's noise level is cleared."""
    first = next_level(None, INTERRUPTED, (), 0.0, "now")
    assert (first.level, next_level(first, INTERRUPTED, (), LATE, "now").level) == (None, BY_NOTHING)


ROUNDS = st.lists(
    st.tuples(
        st.sampled_from([10.0, 200.0, 700.0]), st.sampled_from([QUIET, INTERRUPTED, WAITING, BOTH, MASKED])
    ),
    max_size=40,
)


@given(ROUNDS)
def test_level_changes_at_most_once_in_ten_minutes(rounds: list[tuple[float, ContainerNoise]]) -> None:
    """The noise level changes at most once in ten minutes, for any counts and lengths of rounds."""
    watched: Watched | None = None
    now, changes = 0.0, []
    for seconds, noise in rounds:
        now += seconds
        level = watched.level if watched else None
        watched = next_level(watched, noise, LIMITS, now, str(now))
        if watched.level != level:
            changes.append(now)
    assert all(later - earlier >= HOLD_SECONDS for earlier, later in pairwise(changes))
