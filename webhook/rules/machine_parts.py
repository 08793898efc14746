"""Differences between two states of a virtual machine's spec; parts with equal bytes are not decoded.

A spec may have megabytes (cloud-init, disks), and an update of a running machine changes little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from pinning.truncate import NAME, truncate
from webhook.rules import lenient
from webhook.rules.raw_json import NULL, OBJECT, OLD_OBJECT, UNREADABLE, is_object, malformed

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_DEPTH: Final = 8  # levels of a spec that are compared member by member; deeper parts are compared whole
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_whole: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def changes(
    old: msgspec.Raw, new: msgspec.Raw, path: str = "spec", depth: int = MAX_DEPTH
) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old and new value of the parts that differ as bytes; raise Malformed if one cannot be decoded."""
    if not (depth and is_object(old) and is_object(new)):
        yield path, _read(old, f"{OLD_OBJECT}.{path}"), _read(new, f"{OBJECT}.{path}")
        return
    before, after = _members_of(old, f"{OLD_OBJECT}.{path}"), _members_of(new, f"{OBJECT}.{path}")
    for key in sorted(before.keys() | after.keys()):
        left, right = before.get(key, NULL), after.get(key, NULL)
        if left != right:
            yield from changes(left, right, f"{path}.{truncate(key, NAME)}", depth - 1)


def _members_of(value: msgspec.Raw, path: str) -> dict[str, msgspec.Raw]:
    try:
        return lenient.decode(_members, value)
    except UNREADABLE as error:
        raise malformed(error).under(path) from error


def _read(value: msgspec.Raw, path: str) -> Any:
    try:
        return _whole.decode(value)
    except UNREADABLE as error:
        raise malformed(error).under(path) from error
