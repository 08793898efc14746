"""Whether a pod is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pinning.pods.types import Pod

FINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def is_final(pod: Pod) -> bool:
    """Say whether nothing of a pod will run again."""
    return ((pod.get("status") or {}).get("phase") or "") in FINAL_PHASES
