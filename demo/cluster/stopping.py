"""Stopping the process that runs the cluster: once, at any point."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Stopped(BaseException):
    """The user has stopped the cluster; no `except Exception` on the way may catch it."""


@contextmanager
def until_stopped() -> Iterator[None]:
    """Run the block, and end it quietly where it is asked to; what it opened is closed without another interruption."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    with suppress(Stopped):
        yield


def wait() -> None:
    """Wait for the end."""
    while True:
        signal.pause()
