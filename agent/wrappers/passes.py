"""Waiting for what passes bring. Whoever waits asks for them; many who wait are served by one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN_SECONDS: Final = 1.0  # between two passes that are asked for while somebody waits


class Passes:
    """Asks for passes, and wakes those who wait when one ended."""

    def __init__(self) -> None:
        self.request: Callable[[], None] = lambda: None
        self._ended = asyncio.Event()
        self._shared: dict[str, asyncio.Task[bool]] = {}

    def ended(self) -> None:
        """Wake everybody: a pass ended."""
        self._ended.set()
        self._ended = asyncio.Event()

    async def until(self, is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true after a pass; return False when the time is over first."""
        if is_true():
            return True
        self.request()
        try:
            async with asyncio.timeout(seconds):
                while not is_true():
                    await self._one_more()
        except TimeoutError:
            return is_true()
        return True

    async def until_shared(self, key: str, is_true: Callable[[], bool], seconds: float) -> bool:
        """Wait as `until` does, with one waiter for all callers of a key; the seconds begin with the first caller."""
        if is_true():
            return True
        waiting = self._shared.get(key)
        if waiting is None:
            waiting = self._shared[key] = asyncio.create_task(self.until(is_true, seconds))
            waiting.add_done_callback(lambda _: self._shared.pop(key))
        return await asyncio.shield(waiting)  # a caller that disconnects does not end the others' wait

    async def _one_more(self) -> None:
        """Wait for the end of a pass, which may be one that began before; ask again when none comes."""
        ended = self._ended
        while not ended.is_set():
            try:
                async with asyncio.timeout(AGAIN_SECONDS):
                    await ended.wait()
            except TimeoutError:
                self.request()
