"""What nodes tell of their machines."""

from __future__ import annotations

import json
from typing import Any

from tests.machine.tree import regular


def machine_text(count: int, /, **changed: Any) -> str:
    """Return the annotation of a machine, but for what is changed."""
    return json.dumps(regular(2 * count).to_dict() | changed)
