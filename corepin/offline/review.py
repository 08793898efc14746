"""Decisions of the webhook's rules about documents, without a server: the same decider with locally built requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import jsonpatch
import msgspec
from msgspec import structs

from corepin.errors import CommandFailed
from corepin.offline.decode_errors import decode_failure
from corepin.offline.defaults import with_requests, without_requests
from corepin.rule_files import rule_files
from webhook.review.handler import POD
from webhook.review.response import Denied, Patched, encode
from webhook.review.wire import GroupVersionKind, Request
from webhook.rules.raw_json import Malformed
from webhook.rules.workloads import TEMPLATES, below

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from corepin.documents import Item
    from webhook.review.handler import Decider

OFFLINE_UID: Final = "offline"
_POD_KIND: Final = GroupVersionKind(kind="Pod", version="v1")


@dataclass(frozen=True)
class Injected:
    """An object as the mutating webhook returns it, with its warnings."""

    content: dict[str, Any]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """Answer of the validating webhook; `causes` are in the form of the API."""

    allowed: bool
    causes: tuple[dict[str, str], ...]
    warnings: tuple[str, ...]


def load_decider(args: argparse.Namespace) -> Decider:
    """Return the decider of the configuration files in the flags, loaded as in the server."""
    from webhook.config.reload import Unusable
    from webhook.server.loader import DeciderLoader

    files = rule_files(args)
    try:
        return DeciderLoader(*files)(tuple(file.read() for file in files))
    except Unusable as error:
        raise CommandFailed(str(error)) from error


def inject(decider: Decider, item: Item) -> Injected:
    """Return a pod, or a workload with its pod template, after the mutating webhook; other objects unchanged."""
    if (item.group, item.kind) == POD:
        return _inject_at(decider, item, ())
    path = TEMPLATES.get((item.group, item.kind), ())
    if path and isinstance(below(item.content, path), dict):
        return _inject_at(_without_gate(decider), item, path)
    return Injected(item.content)


def judge(decider: Decider, item: Item) -> Judged:
    """Return the verdict on a new object; a pod is defaulted and injected first, as in the API server."""
    seen = Injected(item.content)
    if (item.group, item.kind) == POD:
        seen = inject(decider, item)
        seen = replace(seen, content=with_requests(seen.content))
    kind = GroupVersionKind(item.kind, item.api_version.rpartition("/")[2], item.group)
    try:
        answer = decider.validate(_request(item, kind, seen.content))
    except Malformed as error:
        raise decode_failure(item, error) from error
    response = msgspec.json.decode(encode(OFFLINE_UID, answer))["response"]
    causes = response["status"]["details"]["causes"] if isinstance(answer, Denied) else ()
    return Judged(response["allowed"], tuple(causes), _once((*seen.warnings, *answer.warnings)))


def _without_gate(decider: Decider) -> Decider:
    """Return a decider that adds no gate, for templates: pods get the gate when they are created."""
    return replace(decider, settings=structs.replace(decider.settings, gate=False))


def _inject_at(decider: Decider, item: Item, path: tuple[str, ...]) -> Injected:
    """Return an object with the pod at a path of keys mutated; with an empty path the object is the pod.

    The rules read the pod with the API server's default requests, which are no part of the result.
    """
    written: dict[str, Any] = below(item.content, path)
    pod = with_requests(written)
    try:
        answer = decider.mutate(_request(item, _POD_KIND, pod))
    except Malformed as error:
        raise decode_failure(item, error, path) from error
    if not isinstance(answer, Patched):
        return Injected(item.content, answer.warnings)
    # Encode and decode the answer, so that it is as the API server would get it.
    steps = msgspec.json.decode(msgspec.json.encode(answer.operations))
    patched = without_requests(jsonpatch.apply_patch(pod, steps), written)
    return Injected(_replaced(item.content, path, patched), _under(path, answer.warnings))


def _replaced(content: dict[str, Any], path: Sequence[str], pod: dict[str, Any]) -> dict[str, Any]:
    """Return an object with another pod at a path of keys."""
    if not path:
        return pod
    key, *rest = path
    return {**content, key: _replaced(content[key], rest, pod)}


def _request(item: Item, kind: GroupVersionKind, content: dict[str, Any]) -> Request:
    return Request(
        uid=OFFLINE_UID,
        kind=kind,
        operation="CREATE",
        name=item.name or None,
        namespace=item.namespace or None,
        object=msgspec.Raw(msgspec.json.encode(content)),
    )


def _under(path: Sequence[str], warnings: tuple[str, ...]) -> tuple[str, ...]:
    """Return warnings about a template with fields relative to the whole object."""
    return tuple(".".join((*path, warning)) for warning in warnings)


def _once(warnings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(warnings))
