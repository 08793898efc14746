"""Pod templates of workloads: their path by API group and kind, and their decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from webhook.rules import lenient
from webhook.rules.part_reader import PartReader
from webhook.rules.pod_parts import StoredPod
from webhook.rules.raw_json import NULL, is_object

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
    """Return the value at a path of keys; None if the path ends early."""
    for key in path:
        if not isinstance(document, dict):
            return None
        document = document.get(key)
    return document


_template: Final = PartReader(StoredPod)
_steps: Final[Mapping[str, msgspec.json.Decoder[Any]]] = {
    key: msgspec.json.Decoder(msgspec.defstruct("Part", [(key, msgspec.Raw, NULL)]))
    for path in TEMPLATES.values()
    for key in path
}


def template_of(document: msgspec.Raw, path: tuple[str, ...]) -> msgspec.Raw:
    """Return the raw template of a workload; null if it has none."""
    for key in path:
        if not is_object(document):
            return NULL
        document = getattr(lenient.decode(_steps[key], document), key)
    return document


def read_template(document: msgspec.Raw, path: tuple[str, ...], root: str) -> Pod:
    """Return the decoded template of a workload, empty if it has none; raise Malformed if it cannot be decoded."""
    template = template_of(document, path)
    return _template.read(template, ".".join((root, *path))) if template != NULL else {}
