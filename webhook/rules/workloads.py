"""Where the pod template of a workload stands, by API group and kind, and how it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from webhook.rules.pod_parts import StoredPod
from webhook.rules.raw_json import NULL, UNREADABLE, is_object, malformed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.pods.types import Pod

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


_template: Final = msgspec.json.Decoder(StoredPod)
_steps: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    key: msgspec.json.Decoder(msgspec.defstruct("Part", [(key, msgspec.Raw, NULL)]))
    for path in TEMPLATES.values()
    for key in path
}


def read_template(document: msgspec.Raw, path: tuple[str, ...], root: str) -> Pod:
    """Return the template of a workload, empty without one; raise Malformed where it cannot be read."""
    for key in path:
        if not is_object(document):
            return {}
        document = getattr(_steps[key].decode(document), key)
    try:
        return _template.decode(document) if document != NULL else {}
    except UNREADABLE as error:
        raise malformed(error).under(".".join((root, *path))) from error
