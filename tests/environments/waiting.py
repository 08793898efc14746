"""Wait for conditions that send no notification, and run work beside a test."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

Found = TypeVar("Found")
SECONDS: Final = 180.0  # one or two seconds on an idle machine, a minute for a kubelet beside a load of 20
_POLL_SECONDS: Final = 0.05
_TURNS: Final = 20  # more than any chain of tasks in these tests needs


def until(what: str, look: Callable[[], Found | None], seconds: float = SECONDS) -> Found:
    """Return the first true result of `look`; fail with the last one."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what}: not after {seconds:.0f} s; last seen: {found!r}"
        time.sleep(_POLL_SECONDS)
    return found


def until_equal(what: str, look: Callable[[], Found], wanted: Found, seconds: float = SECONDS) -> None:
    """Wait until `look` returns the wanted value; fail with the last one."""
    deadline = time.monotonic() + seconds
    while (found := look()) != wanted:
        assert time.monotonic() < deadline, f"{what}: after {seconds:.0f} s {found!r} and not {wanted!r}"
        time.sleep(_POLL_SECONDS)


async def settle() -> None:
    """Run the event loop for some iterations, so that every task runs until it waits for I/O or a timer."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def background(work: Coroutine[Any, Any, Found]) -> AsyncIterator[asyncio.Task[Found]]:
    """Run a coroutine beside the block, and cancel it when the block ends."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
