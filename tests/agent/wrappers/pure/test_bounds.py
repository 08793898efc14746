"""How much each container may ask."""

from __future__ import annotations

import pytest

from agent.wrappers.bounds import AT_ONCE, BURST, OPEN, RATE, TOLD, Bounds
from agent.wrappers.errors import Denied


def test_a_burst_waits_for_nothing_and_then_each_request_for_its_turn() -> None:
    """After the burst turns come at the rate."""
    bounds = Bounds(lambda: 0.0)
    waits = [bounds.turn("a") for _ in range(int(BURST) + 10)]

    assert set(waits[: int(BURST)]) == {0.0}
    assert waits[-1] == pytest.approx(9 / RATE)


def test_one_containers_flood_is_nothing_to_another() -> None:
    """Each has turns and connections of its own."""
    bounds = Bounds(lambda: 0.0)
    for _ in range(AT_ONCE):
        bounds.opened("a")
        bounds.turn("a")
    with pytest.raises(Denied, match="too many wrappers ask at once"):
        bounds.opened("a")
    bounds.opened("b")
    assert bounds.turn("b") == 0.0
    bounds.closed("a")
    bounds.opened("a")


def test_silence_fills_the_bucket() -> None:
    """A container that was silent may burst again, and is forgotten meanwhile."""
    now = [0.0]
    bounds = Bounds(lambda: now[0])
    for _ in range(2 * int(BURST)):
        bounds.turn("a")
    now[0] = 2 * BURST / RATE + 1
    bounds.forget()

    assert [bounds.turn("a") for _ in range(int(BURST))][-1] == 0.0


def test_a_report_costs_several_turns() -> None:
    """Whoever asks for reports may ask so many times fewer."""
    bounds = Bounds(lambda: 0.0)
    waits = [bounds.turn("a", 10) for _ in range(int(BURST) // 10 + 2)]

    assert waits[int(BURST) // 10 - 1] == 0.0
    assert waits[-1] == pytest.approx(10 * len(waits[:-1]) / RATE - BURST / RATE)


def test_who_goes_on_is_not_told_why() -> None:
    """The first refusals of a container are told, and then one in each second; others are told theirs."""
    now = [0.0]
    bounds = Bounds(lambda: now[0])
    assert [bounds.tells("a") for _ in range(int(TOLD) + 2)] == [True] * int(TOLD) + [False] * 2
    assert bounds.tells("b")
    now[0] = 1.0
    bounds.forget()
    assert [bounds.tells("a") for _ in range(2)] == [True, False]


def test_all_together_are_bounded_too() -> None:
    """The agent's descriptors last, whoever asks: who has a full share gets no more, and a newcomer still does."""
    bounds = Bounds(lambda: 0.0)
    floods = [str(number) for number in range(OPEN // AT_ONCE)]
    for flood in floods * AT_ONCE:
        bounds.opened(flood)
    bounds.closed("7")
    bounds.opened("7")
    bounds.closed("7")
    bounds.opened("newcomer")
    for flood in floods:
        with pytest.raises(Denied, match="too many wrappers ask at once"):
            bounds.opened(flood)
    bounds.opened("one more")
