"""What a new pod gets so that the runtime of its node holds its containers back while nobody gives them CPUs. Pure.

The runtime hands its plugins the annotations that a pod had when its sandbox was made: later ones are not seen there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.contract import GUARDED, GUARDED_VALUE

if TYPE_CHECKING:
    from pinning.pods.claims import PodClaims
    from webhook.config.mutations import Fragment

MARKS: Final = frozenset({GUARDED})  # a pod's own value stays
_MARKED: Final[Fragment] = {"metadata": {"annotations": {GUARDED: GUARDED_VALUE}}}


def plan_marks(pod_claims: PodClaims) -> Fragment:
    """Return what is added to a pod of which a container may not start unpinned; nothing for any other pod."""
    return _MARKED if any(claim.must_fit for claim in pod_claims.claims) else {}
