"""Rate limit for calls to the kubelet's PodResources socket; all callers share it, as the kubelet limits all clients."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING, Final

from agent.token_bucket import TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

CALLS_PER_SECOND: Final = 5.0
BURST: Final = 5


class CallLimit:
    """Lets five calls begin at once after an idle time, and then five a second."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.bucket = TokenBucket(BURST, 1 / CALLS_PER_SECOND)
        self._clock = clock
        # Otherwise frequent single calls would starve a caller that needs several at once.
        self._in_order = asyncio.Lock()

    async def turn(self, calls: int = 1) -> None:
        """Wait until this number of calls may begin; callers are served in their order."""
        async with self._in_order:
            while not self.bucket.take(self._clock(), calls):
                await asyncio.sleep(max(0.0, self.bucket.wait(self._clock(), turns=calls)))
