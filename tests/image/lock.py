"""Reader of lock files."""

from __future__ import annotations

import re
from pathlib import Path


def pins(lock: str) -> dict[str, str]:
    """Return the versions of a lock file, by distribution."""
    text = Path(lock).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]*\])?==([^ ;\\]+)", text, re.MULTILINE))
