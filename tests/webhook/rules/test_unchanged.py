"""Updates of an unreadable object that are admitted because they change nothing relevant."""

from __future__ import annotations

import msgspec
import pytest

from webhook.rules.part_reader import PartReader
from webhook.rules.pod_parts import StoredPod
from webhook.rules.unchanged import is_leaving, is_unchanged

PODS = PartReader(StoredPod)
NEST = b"[" * 5000 + b"]" * 5000
TIME = b'"deletionTimestamp":"2026-01-01T00:00:00Z"'
POD = (
    b'{"metadata":{"annotations":{"a":%b},"finalizers":[%b]},"spec":{"containers":[{"name":%b,"image":%b}]}}'
)
SOUND = POD % (b'"x"', b'"f"', b'"c"', b'"i"')
WRONG = POD % (b"5", b'"f"', b'"c"', b'"i"')


@pytest.mark.parametrize(
    ("document", "leaving"),
    [
        (b'{"metadata":{%b}}' % TIME, True),
        (b'{"metadata":{"managedFields":%b,%b}}' % (NEST, TIME), True),
        (b'{"metadata":{"annotations":{"a":"\\",%b"}}}' % TIME.replace(b'"', b'\\"'), False),
        (b'{"metadata":{"annotations":{%b}}}' % TIME, False),
        (b'{"metadata":{"deletionTimestamp":null}}', False),
        (b'{"metadata":null}', False),
        (b'{"metadata":5}', False),
        (b"null", False),
    ],
)
def test_an_object_that_is_deleted_is_known(document: bytes, leaving: bool) -> None:
    """A deletionTimestamp counts in the object's metadata only, not in a similar text or key."""
    assert is_leaving(msgspec.Raw(document)) is leaving


@pytest.mark.parametrize(
    ("old", "new", "unchanged", "unchanged_but_for_metadata"),
    [
        pytest.param(b"5", b"5", True, True, id="equal"),
        pytest.param(WRONG, POD % (b"5", b"", b'"c"', b'"i"'), True, True, id="a finalizer less"),
        pytest.param(SOUND, POD % (b'"x"', b"", b'"c"', b'"j"'), True, False, id="another image"),
        pytest.param(WRONG, SOUND, False, False, id="another annotation"),
        pytest.param(SOUND, POD % (b'"x"', b"", b'"d"', b'"i"'), False, False, id="another container"),
        pytest.param(b'{"spec":5}', b'{"spec":5,"status":1}', True, True, id="no spec at all"),
        pytest.param(b'{"spec":5}', b'{"spec":6}', False, False, id="another that is none"),
        pytest.param(b"5", b"6", False, False, id="no objects"),
    ],
)
def test_an_update_of_something_else_changes_nothing(
    old: bytes, new: bytes, unchanged: bool, unchanged_but_for_metadata: bool
) -> None:
    """The parts that rules read are compared as bytes; if they cannot be cut out, spec and annotations are."""
    assert is_unchanged(msgspec.Raw(old), msgspec.Raw(new), PODS) is unchanged
    assert is_unchanged(msgspec.Raw(old), msgspec.Raw(new)) is unchanged_but_for_metadata
