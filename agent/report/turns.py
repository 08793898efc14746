"""Staggered refresh: agents that started together rewrite unchanged objects at different times. Pure."""

from __future__ import annotations

from typing import Final
from zlib import crc32

AT_LEAST: Final = 1.0  # seconds; a shorter wait means that this interval's turn is being served now


def next_turn(node: str, now: float, interval: float) -> float:
    """Return when a node rewrites an unchanged object: at an offset of its own in each interval.

    All agents start together after an update, and after an outage of the API server. A node's offset never changes.
    """
    own = crc32(node.encode()) / 2**32 * interval
    wait = interval - (now - own) % interval
    return now + (wait if wait >= AT_LEAST else wait + interval)
