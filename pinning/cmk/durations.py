"""Durations of CMK's `--interval`: seconds, or a number with a unit."""

from __future__ import annotations

import re
from typing import Final

from pinning.errors import BadContract

SECONDS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
LONGEST: Final = 86400.0
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?")


def parse_duration(name: str, text: str) -> float:
    """Return the seconds of `500ms`, `1.5s`, `30`, `2m`; raise BadContract for anything else or more than a day."""
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * SECONDS[found[2] or ""] if found else -1.0
    if not 0 <= seconds <= LONGEST:
        raise BadContract(
            f"{name}: {text[:60]!r} is not a duration up to 24h: write for example 30, 1.5s, 500ms or 2m"
        )
    return seconds
