"""Handling of SIGTERM in the process that runs the cluster."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType


class Stopped(BaseException):
    """Raised by SIGTERM; a BaseException, so that no `except Exception` catches it."""


@contextmanager
def until_stopped() -> Iterator[None]:
    """Run the block, and end it quietly on SIGTERM; a second SIGTERM does not interrupt the cleanup."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    with suppress(Stopped):
        yield


def wait() -> None:
    """Wait for SIGTERM."""
    while True:
        signal.pause()
