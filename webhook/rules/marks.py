"""What a new pod gets so that the runtime of its node holds its containers back while nobody gives them CPUs. Pure.

The runtime hands its plugins the annotations that a pod had when its sandbox was made: later ones are not seen there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pinning.contract import GUARDED, GUARDED_VALUE, NRI_PLUGIN, REQUIRED_PLUGINS

if TYPE_CHECKING:
    from pinning.pods.claims import PodClaims
    from webhook.config.mutations import Fragment
    from webhook.config.settings import Settings

MARKS: Final = frozenset({GUARDED, REQUIRED_PLUGINS})  # a pod's own values of these stay
_GUARDED: Final = {GUARDED: GUARDED_VALUE}
_REQUIRED: Final = {REQUIRED_PLUGINS: json.dumps([NRI_PLUGIN])}


def plan_marks(pod_claims: PodClaims, settings: Settings) -> Fragment:
    """Return what is added to a pod of which a container may not start unpinned; nothing for any other pod."""
    if not any(claim.must_fit for claim in pod_claims.claims):
        return {}
    annotations = _GUARDED | _REQUIRED if settings.required_plugins else _GUARDED
    return {"metadata": {"annotations": annotations}}
