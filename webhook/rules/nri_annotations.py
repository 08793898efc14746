"""Annotations that make the node's runtime delay a new pod's containers until they have CPUs. Pure.

They are set when the pod is created, because NRI plugins get the annotations that the pod had when it started.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pinning.contract import GUARDED, GUARDED_VALUE, NRI_PLUGIN, REQUIRED_PLUGINS

if TYPE_CHECKING:
    from pinning.pods.claims import PodClaims
    from webhook.config.mutations import Fragment
    from webhook.config.settings import Settings

# If the pod already has one of these annotations, the webhook keeps its value.
NRI_ANNOTATIONS: Final = frozenset({GUARDED, REQUIRED_PLUGINS})
_GUARDED: Final = {GUARDED: GUARDED_VALUE}
_REQUIRED: Final = {REQUIRED_PLUGINS: json.dumps([NRI_PLUGIN])}


def plan_nri_annotations(pod_claims: PodClaims, settings: Settings) -> Fragment:
    """Return the annotations for a pod with a container that must not start unpinned; empty for other pods."""
    if not pod_claims.must_fit:
        return {}
    annotations = _GUARDED | _REQUIRED if settings.required_plugins else _GUARDED
    return {"metadata": {"annotations": annotations}}
