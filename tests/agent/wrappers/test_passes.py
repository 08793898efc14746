"""Passes that waiting requests ask for."""

from __future__ import annotations

import asyncio

from agent.wrappers.passes import PASS_SECONDS, PASSES_AT_ONCE, PassWaiter


async def test_waiters_share_a_rate_limit() -> None:
    """However many requests need a pass, the passes are limited, and one follows the last request."""
    requested: list[None] = []
    waiter = PassWaiter(lambda: 0.0)
    waiter.request = lambda: requested.append(None)
    is_true = False
    waiting = [asyncio.create_task(waiter.until(lambda: is_true, 60.0)) for _ in range(100)]
    await asyncio.sleep(0)
    assert len(requested) == PASSES_AT_ONCE
    while len(requested) == PASSES_AT_ONCE:
        await asyncio.sleep(PASS_SECONDS / 10)
    assert len(requested) == PASSES_AT_ONCE + 1
    is_true = True
    waiter.ended()
    assert all(await asyncio.gather(*waiting))
