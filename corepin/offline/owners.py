"""Split off documents that a controller among them creates: plan a Deployment, but not its ReplicaSet and pods."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from corepin.offline.planned import Planned

Key: TypeAlias = tuple[str, ...]


def split_owned(documents: Sequence[Planned]) -> tuple[list[Planned], list[Planned]]:
    """Return the documents to plan, and those that a controller among them creates."""
    uids: dict[Key, set[str]] = defaultdict(set)
    for document in documents:
        if document.names and not document.is_going:
            uids[document.owner].add(document.uid)
    controllers = {document.owner: key for document in documents if (key := _controller(document, uids))}
    counted: list[Planned] = []
    owned: list[Planned] = []
    for document in documents:
        is_owned = _controller(document, uids) and _ends(document.owner, controllers)
        (owned if is_owned else counted).append(document)
    return counted, owned


def check_instances(documents: Sequence[Planned]) -> None:
    """Raise CommandFailed for a machine whose pods are known only from an instance, unless the instance is given."""
    controllers = {key for document in documents for key, _ in _controllers(document)}
    for document in documents:
        if document.unknown and document.owner not in controllers:
            raise document.unknown


def _controller(document: Planned, uids: Mapping[Key, set[str]]) -> Key | None:
    """Return the key of the given document that controls this one, compared by uid if both have one; else None."""
    for key, uid in _controllers(document):
        known = uids.get(key, set())
        if known and (not uid or known & {uid, ""}):
            return key
    return None


def _controllers(document: Planned) -> Iterator[tuple[Key, str]]:
    """Yield key and uid of each controller that a document names."""
    references = document.item.metadata.get("ownerReferences")
    for reference in references if isinstance(references, list) else ():
        if isinstance(reference, dict) and reference.get("controller") is True:
            yield _key(reference, document.namespace), str(reference.get("uid") or "")


def _key(reference: Mapping[str, Any], namespace: str) -> Key:
    group = str(reference.get("apiVersion")).rpartition("/")[0]
    return group, str(reference.get("kind")), namespace, str(reference.get("name"))


def _ends(key: Key, controllers: Mapping[Key, Key]) -> bool:
    """Return whether the chain of controllers ends; if it is a cycle, all of its documents are planned."""
    seen: set[Key] = set()
    while key in controllers and key not in seen:
        seen.add(key)
        key = controllers[key]
    return key not in controllers
