"""Parse pods from the text of a manifest file: pure. Invalid pods are refused with a remedy."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from agent.errors import AgentError
from kubeyaml.reader import BadYAML, decode_text, read_yaml
from pinning.pods.types import Pod

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE_LIMIT: Final = 3 * 2**20  # bytes; the API server stores no larger object
# Names of pods, by RFC 1123; safe in a path.
_NAMES: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABELS: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # names of namespaces and containers
_UIDS: Final = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,63}")
# a random constant; changing it changes every uid
_UID_SPACE: Final = uuid.UUID("7d0f5c7e-3c1c-4bd1-9d39-5d3b1f1f7a10")


class BadManifest(AgentError):
    """The file has no valid pod; the message has the reason."""


def read_manifest(content: bytes, created: str) -> tuple[Pod, ...]:
    """Return the pods of a file, with namespace, uid and creation time filled in; raise BadManifest."""
    if len(content) > SIZE_LIMIT:
        raise BadManifest(f"is larger than {SIZE_LIMIT >> 20} MB: split it")
    pods = tuple(_pod(document, created) for document in _documents(content))
    if not pods:
        raise BadManifest("holds no document: write a pod")
    return pods


def name_of(pod: Pod) -> str:
    """Return a pod's full name: namespace/name."""
    metadata = pod.get("metadata") or {}
    return f"{metadata.get('namespace')}/{metadata.get('name')}"


def uid_for(name: str) -> str:
    """Return the uid of a pod whose manifest has none; it depends on namespace and name alone."""
    return str(uuid.uuid5(_UID_SPACE, name))


def _documents(content: bytes) -> Iterator[Any]:
    """Yield the non-empty documents of a YAML or JSON file; the YAML reader reads JSON too."""
    try:
        for _, document in read_yaml(decode_text(content)):
            if document is not None:
                yield document
    except BadYAML as error:
        raise BadManifest(f"is not YAML: {error}") from error


def _pod(document: Any, created: str) -> Pod:
    """Return a document as a pod, with the defaults of the API server."""
    if not isinstance(document, dict) or (document.get("apiVersion"), document.get("kind")) != ("v1", "Pod"):
        raise BadManifest("is not a pod: write apiVersion v1 and kind Pod")
    try:
        msgspec.convert(document, Pod)
    except msgspec.ValidationError as error:
        raise BadManifest(f"is not a valid pod: {error}") from error
    metadata = dict(document.get("metadata") or {})
    metadata["namespace"] = metadata.get("namespace") or "default"
    metadata["creationTimestamp"] = metadata.get("creationTimestamp") or created
    pod = cast("Pod", {**document, "metadata": metadata})
    metadata["uid"] = metadata.get("uid") or uid_for(name_of(pod))
    _check_names(pod)
    return pod


def _check_names(pod: Pod) -> None:
    """Refuse names that Kubernetes refuses, because they become paths."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    containers = [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]
    if not spec.get("containers"):
        raise BadManifest("has no container: write spec.containers")
    _check("metadata.name", metadata.get("name"), _NAMES)
    _check("metadata.namespace", metadata.get("namespace"), _LABELS)
    _check("metadata.uid", metadata.get("uid"), _UIDS)
    for container in containers:
        _check("name of a container", container.get("name"), _LABELS)
    if len({container["name"] for container in containers}) < len(containers):
        raise BadManifest("has two containers of one name: rename one")


def _check(field: str, value: str | None, allowed: re.Pattern[str]) -> None:
    if not value or not allowed.fullmatch(value):
        raise BadManifest(f"{field} is {value!r}, which is not a name that Kubernetes accepts")
