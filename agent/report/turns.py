"""Turns of the nodes: agents that started together write what is unchanged one after the other. Pure."""

from __future__ import annotations

from typing import Final
from zlib import crc32

AT_LEAST: Final = 1.0  # seconds: the turn that is beginning now is not the next one


def next_turn(node: str, now: float, interval: float) -> float:
    """Return when a node writes the same again: at its own time in each interval.

    All agents start together after an update, and again after the API server was away. The same node has the same time.
    """
    own = crc32(node.encode()) / 2**32 * interval
    wait = interval - (now - own) % interval
    return now + (wait if wait >= AT_LEAST else wait + interval)
