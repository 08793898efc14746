"""Checks by which updates of objects that cannot be decoded are admitted, so that these can be deleted. Pure.

Such an object may have been stored while the webhook was unavailable. Deleting it takes updates: the API server sets
`deletionTimestamp`, and controllers remove their finalizers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from webhook.rules import lenient
from webhook.rules.raw_json import NULL, UNREADABLE, Malformed

if TYPE_CHECKING:
    from webhook.rules.part_reader import PartReader


class _Deletion(msgspec.Struct):
    deletionTimestamp: str | None = None  # noqa: N815 - a field of the Kubernetes API


class _Leaving(msgspec.Struct):
    metadata: _Deletion | None = None


class _Written(msgspec.Struct):
    annotations: msgspec.Raw = NULL
    labels: msgspec.Raw = NULL


class _Coarse(msgspec.Struct):
    metadata: _Written | None = None
    spec: msgspec.Raw = NULL


_leaving = msgspec.json.Decoder(_Leaving)
_coarse = msgspec.json.Decoder(_Coarse)


def is_leaving(document: msgspec.Raw) -> bool:
    """Return whether an object is being deleted."""
    try:
        metadata = lenient.decode(_leaving, document).metadata
    except UNREADABLE:
        return False
    return bool(metadata and metadata.deletionTimestamp)


def is_unchanged(old: msgspec.Raw, new: msgspec.Raw, reader: PartReader[Any] | None = None) -> bool:
    """Return whether the parts that `reader` reads (None: spec, annotations, labels) have equal bytes in two states."""
    if old == new:
        return True
    if reader:
        try:
            return reader.cut(old) == reader.cut(new)
        except Malformed:
            pass  # compare below: equal states may be malformed
    try:
        return lenient.decode(_coarse, old) == lenient.decode(_coarse, new)
    except UNREADABLE:
        return False
