"""Which CPU policy the node's kubelet runs, from its state file; with `static` the agent only observes.

The file is the kubelet's own (`cpu_manager_state` below its root directory); nothing here ever writes it.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class KubeletPolicy(StrEnum):
    """What the kubelet does with CPUs."""

    NONE = "none"
    STATIC = "static"
    UNKNOWN = "unknown"  # no state file, or one that cannot be read


def read_kubelet_policy(state: Path) -> KubeletPolicy:
    """Return the policy that a `cpu_manager_state` file names; absent, damaged or odd ones are UNKNOWN."""
    try:
        saved = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return KubeletPolicy.UNKNOWN
    name = saved.get("policyName") if isinstance(saved, dict) else None
    return KubeletPolicy(name) if name in {"none", "static"} else KubeletPolicy.UNKNOWN
