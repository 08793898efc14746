"""The limit of calls to the kubelet that several callers share."""

from __future__ import annotations

import asyncio

from agent.kubelet.call_limit import BURST, CALLS_PER_SECOND, CallLimit
from tests.agent import virtual_time


def test_callers_take_turns_in_order() -> None:
    """A caller of two calls is not overtaken by another one that calls whenever a single call may begin."""

    async def run() -> float:
        limit = CallLimit(virtual_time.now)

        async def saturate() -> None:
            while True:
                await limit.turn()

        work = asyncio.create_task(saturate())
        await asyncio.sleep(1)
        asked = virtual_time.now()
        async with asyncio.timeout(60):
            await limit.turn(2)
        work.cancel()
        return virtual_time.now() - asked

    assert virtual_time.run(run()) <= 4 / CALLS_PER_SECOND


def test_calls_are_limited_after_a_burst() -> None:
    """Five calls begin at once, and then five a second."""

    async def run() -> float:
        limit = CallLimit(virtual_time.now)
        for _ in range(BURST + 5):
            await limit.turn()
        return virtual_time.now()

    assert round(virtual_time.run(run()), 2) == 5 / CALLS_PER_SECOND
