"""Times of the keeper's rounds, and the share of a CPU that they may take."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agent.node_state import NodeState, QuietResult
from agent.quiet.quieting import Quieting
from tests.agent.quiet.quieting.scene import EMPTY_STATE, QUIET, STATE, Keeper, Scene, rounds
from tests.environments.waiting import background


class Waits(Quieting):
    """Rounds that follow each other at once; `waits` has the seconds between them."""

    def __init__(self, keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(keeper, sleep=self._rests)  # type: ignore[arg-type]
        self.waits: list[float | None] = []
        self.rest = 0.0
        monkeypatch.setattr("agent.quiet.quieting.time.thread_time", lambda: keeper.spent)

    async def _rests(self, seconds: float) -> None:
        self.rest = seconds

    async def _wait(self, seconds: float | None) -> None:
        self.waits.append(None if seconds is None else seconds + self.rest)
        await asyncio.sleep(0)

    async def rounds(self, count: int, state: NodeState = STATE) -> list[float | None]:
        """Return the seconds before each of the next rounds."""
        self.add(state)
        self.waits.clear()
        async with background(self.run(lambda: None)):
            async with asyncio.timeout(60):
                while len(self.waits) <= count:
                    await asyncio.sleep(0)
        return self.waits[1 : count + 1]


@pytest.mark.parametrize(
    ("cost", "has_settled", "answer", "waits"),
    [
        pytest.param(0.001, True, QuietResult(QUIET), [10.0] * 8, id="cheap"),
        pytest.param(0.1, True, QuietResult(QUIET), [50.0] * 8, id="costly"),
        pytest.param(0.1, False, QuietResult(QUIET), [10.0] * 6 + [50.0] * 2, id="moved"),
        pytest.param(0.1, True, None, [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 50.0, 50.0], id="unsteady"),
    ],
)
def test_rounds_take_a_limited_share_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
    cost: float,
    has_settled: bool,
    answer: QuietResult | None,
    waits: list[float],
) -> None:
    """The cost delays the next round, except six times in a row after a round that had work to do."""
    keeper = Keeper()
    keeper.cost, keeper.has_settled, keeper.answers = cost, has_settled, [answer] * 20
    assert asyncio.run(Waits(keeper, monkeypatch).rounds(8)) == pytest.approx(waits)


def test_settled_round_ends_the_prompt_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a settled round the prompt rounds end; a later move starts them again."""
    keeper = Keeper()
    keeper.cost = 0.1
    quieting = Waits(keeper, monkeypatch)
    for has_settled, wait in ((False, [10.0] * 5), (True, [50.0] * 2), (False, [10.0] * 5)):
        keeper.has_settled = has_settled
        assert asyncio.run(quieting.rounds(len(wait))) == pytest.approx(wait)


async def test_changes_take_a_limited_share_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequent changes of noise policies cause rounds at a limited share of a CPU."""
    keeper = Keeper()
    keeper.cost = 0.3
    rests: list[float] = []
    resting, go_on = asyncio.Event(), asyncio.Event()

    async def rest(seconds: float) -> None:
        rests.append(seconds)
        resting.set()
        await go_on.wait()

    monkeypatch.setattr("agent.quiet.quieting.time.thread_time", lambda: keeper.spent)
    scene = Scene()
    scene.keeper, scene.quieting = keeper, Quieting(keeper, sleep=rest)  # type: ignore[arg-type]
    keeper.is_idle = False
    async with rounds(scene):
        scene.quieting.add(STATE)
        await resting.wait()
        for _ in range(5):
            for state in (EMPTY_STATE, STATE, EMPTY_STATE):
                scene.quieting.add(state)
                await asyncio.sleep(0)
        assert keeper.asked == ["1,5"]
        resting.clear()
        go_on.set()
        await resting.wait()
    assert keeper.asked[:2] == ["1,5", ""]
    assert rests[:2] == pytest.approx([3.0, 3.0])


def test_observing_agent_and_idle_node_have_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without quiet CPUs, or while observing, no round is due until a change."""
    for state in (replace(STATE, observes=True), EMPTY_STATE):
        keeper = Keeper()
        assert asyncio.run(Waits(keeper, monkeypatch).rounds(2, state)) == [None, None]
        assert keeper.asked == []
