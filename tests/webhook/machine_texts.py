"""Topology annotations of nodes."""

from __future__ import annotations

import json
from typing import Any

from tests.environments.process.tree import regular


def machine_text(count: int, /, **changed: Any) -> str:
    """Return the topology annotation of a machine, with changes."""
    return json.dumps(regular(2 * count).to_dict() | changed)
