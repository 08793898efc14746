"""Final phases of a pod."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pinning.pods.types import Pod

FINAL_PHASES: Final = frozenset({"Succeeded", "Failed"})


def is_final(pod: Pod) -> bool:
    """Return whether a pod has ended, so that none of its containers runs again."""
    return ((pod.get("status") or {}).get("phase") or "") in FINAL_PHASES
