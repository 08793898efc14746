"""An event loop whose time jumps to the next timer when nothing is ready.

Code that waits only on timers finishes at once, and load on the machine does not change its time. Not for
tests with threads, processes or sockets, which need real time.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

Result = TypeVar("Result")
TURN_SECONDS: Final = 1e-6  # per loop iteration, because a very short wait may not change the time


class _Selector(selectors.DefaultSelector):
    """A selector that adds the time of each wait to `passed` instead of waiting."""

    passed = 0.0  # seconds

    def select(self, timeout: float | None = None) -> Any:
        """Return the events that are ready now."""
        if timeout is None:
            raise RuntimeError("nothing is left that could wake the loop")
        self.passed += max(TURN_SECONDS, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop with the time of its selector."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Return the virtual time."""
        return self._virtual.passed


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine as `asyncio.run` does, in virtual time."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(work)


def now() -> float:
    """Return the time of the running loop: the clock to inject."""
    return asyncio.get_running_loop().time()
