"""Events of the kernel about the machine, as a test makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class FakeMachineWatch:
    """Reports the changes that a test sets (`MachineWatch` of `agent.reconcile`)."""

    def __init__(self) -> None:
        self.is_complete = True
        self.changed: Callable[[], None] = lambda: None

    def follow(self) -> bool:
        """Return whether every change is reported."""
        return self.is_complete

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep the callback until cancelled."""
        self.changed = changed
        await asyncio.get_running_loop().create_future()
