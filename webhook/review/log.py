"""JSON log lines, one per review, written before the answer is sent."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

_encode = msgspec.json.Encoder(enc_hook=str).encode


class ReviewLine(msgspec.Struct, omit_defaults=True, gc=False):
    """Log fields of one review, without any content of its object."""

    time: datetime
    level: str
    event: str
    endpoint: str
    outcome: str
    reason: str
    seconds: float
    generation: int
    uid: str | None = None
    namespace: str | None = None
    name: str | None = None
    generate_name: str | None = msgspec.field(name="generateName", default=None)
    kind: str | None = None
    operation: str | None = None
    fields: tuple[str, ...] = ()


def to_standard_output(line: bytes) -> None:
    """Write one whole line; a closed pipe must not fail a review."""
    try:
        os.write(sys.stdout.fileno(), line)
    except OSError:
        logging.getLogger(__name__).debug("log line lost")


class ReviewLog:
    """Writes the line of each review."""

    def __init__(self, write: Callable[[bytes], object] = to_standard_output) -> None:
        self._write = write

    def __call__(self, line: ReviewLine) -> None:
        """Write `line` in one piece."""
        self._write(_encode(line) + b"\n")


class GatheredLines:
    """Buffer for the log lines of one event loop iteration, because each write is a system call of 5 us.

    Answers are written by a later callback of the same iteration (`connection.Gathering`), so that a line precedes
    its answer.
    """

    def __init__(self, write: Callable[[bytes], object] = to_standard_output) -> None:
        self._write = write
        self._unwritten: list[bytes] = []

    def __call__(self, line: bytes) -> None:
        """Write a line before the event loop waits again."""
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unwritten.append(line)

    def _flush(self) -> None:
        lines = b"".join(self._unwritten)
        self._unwritten.clear()
        self._write(lines)
