"""A fake of the kubelet's list of devices, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from agent.kubelet.device_list import Name, Named


class FakeList:
    """A fake kubelet that records the times of its calls."""

    def __init__(self) -> None:
        self.pods: dict[Name, list[Named]] = {}
        self.error: Exception | None = None
        self.seconds = 0.0  # from a call until its answer
        self.at: list[float] = []
        self.hook: Callable[[], None] = lambda: None

    async def ask(self, pods: Iterable[Name]) -> dict[Name, list[Named]]:
        """Return the devices of the requested pods, or raise the error."""
        self.at.append(asyncio.get_running_loop().time())
        self.hook()
        await asyncio.sleep(self.seconds)
        if self.error:
            raise self.error
        return {name: self.pods[name] for name in pods if name in self.pods}
