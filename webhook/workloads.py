"""Where the pod template of a workload stands, by API group and kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_TEMPLATE: Final = ("spec", "template")
TEMPLATES: Final[Mapping[tuple[str, str], tuple[str, ...]]] = {
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}


def below(document: object, path: tuple[str, ...]) -> Any:
    """Return what stands at a path of keys, None where the path ends early."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document
