"""Staggered refresh: agents of different nodes rewrite unchanged objects at different times. Pure."""

from __future__ import annotations

from typing import Final
from zlib import crc32

# Shortest wait in seconds: at the end of a wait, `now` may be slightly before the planned time.
AT_LEAST: Final = 1.0


def next_turn(node: str, now: float, interval: float) -> float:
    """Return the monotonic time at which a node next rewrites an unchanged object, at its own offset in each interval.

    Otherwise agents that start together, as after an update or an outage of the API server, would all write at once.
    A node's offset never changes.
    """
    own = crc32(node.encode()) / 2**32 * interval
    wait = interval - (now - own) % interval
    return now + (wait if wait >= AT_LEAST else wait + interval)
