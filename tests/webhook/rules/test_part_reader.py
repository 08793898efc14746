"""Reading the part of an object that rules need, within bounds."""

from __future__ import annotations

from typing import Any, TypedDict

import msgspec
import pytest

from webhook.rules import part_reader
from webhook.rules.part_reader import LARGE, MOST, PartReader
from webhook.rules.pod_parts import NewPod, StoredPod, WholePod
from webhook.rules.raw_json import Malformed
from webhook.rules.vms import VirtObject

NEST = b"[" * 5000 + b"]" * 5000
CROWD = b"[" + b",".join([b"{}"] * 200_000) + b"]"
UNREAD = b'"managedFields":[{"fieldsV1":{"\xff":%b,"a":%b}}]' % (NEST, CROWD)
POD = b"""{"metadata":{"name":"p",%b,"annotations":{"a":"b"}},"status":%b,"spec":{"containers":
 [{"name":"a","args":["%b"],"resources":{"limits":{"cpu":"1"}}}],"initContainers":null,"tolerations":[{"key":"k"}]}}"""
PLAIN = msgspec.Raw(POD % (b'"x":1', b"1", b""))
STRANGE = msgspec.Raw(POD % (UNREAD, CROWD, b"{," * 300_000))


class Entry(TypedDict, total=False):
    """An entry of a list."""

    text: str


class Whole(TypedDict, total=False):
    """A type of the domain."""

    entries: list[Entry] | None
    texts: dict[str, str]
    raw: msgspec.Raw


READER = PartReader(Whole)


@pytest.mark.parametrize("part", [NewPod, StoredPod, WholePod], ids=["new", "stored", "whole"])
def test_what_is_not_read_changes_nothing(part: type[Any]) -> None:
    """Metadata and status that no rule reads, and texts, may be large, deep and invalid UTF-8."""
    reader = PartReader(part)
    assert len(bytes(STRANGE)) > LARGE
    read = reader.read(STRANGE)
    plain = reader.read(PLAIN)
    for document in (read, plain):
        for container in document["spec"]["containers"]:
            container.pop("args", None)
    assert read == plain
    assert "status" not in read
    assert "managedFields" not in read["metadata"]


def test_the_part_is_cut_out_as_it_was_sent() -> None:
    """The part keeps the fields that a rule reads, in the type's order; null differs from absent."""
    document = (
        rb'{"x":[1],"texts" : {"a":"\u0041"},"entries":[{"t":1,"text":"\"}"},{}],"entries":null,"raw":%b}'
        % NEST
    )
    assert READER.cut(msgspec.Raw(document)) == rb'{"entries":null,"texts":{"a":"\u0041"},"raw":%b}' % NEST
    assert (
        READER.cut(msgspec.Raw(b'{"entries":[{"t":1,"text":"\\"}"},{}]}'))
        == b'{"entries":[{"text":"\\"}"},{}]}'
    )


@pytest.mark.parametrize(
    ("document", "path"),
    [
        pytest.param(b'{"entries":[{"text":1}]}', "$.o.entries[0].text", id="a number"),
        pytest.param(b'{"texts":{"a":"\xff"}}', "$.o", id="not UTF-8"),
        pytest.param(b'{"entries":[{},1],"x":%b}' % NEST, "$.o.entries[1]", id="no object, behind a nest"),
        pytest.param(b'{"entries":%b}' % CROWD, "$.o", id="many entries"),
        pytest.param(b'{"entries":[{"text":%b}]}' % CROWD, "$.o", id="a crowd instead of a text"),
        pytest.param(b'{"texts":{%b}}' % b",".join([b'"a":"b"'] * 200_000), "$.o", id="many texts"),
        pytest.param(b'{"texts":{"a":"%b"}}' % (b"x" * (MOST.letters + 1)), "$.o", id="a long text"),
        pytest.param(b'{"texts":{"a":%b}}' % NEST, "$.o", id="a nest instead of a text"),
    ],
)  # fmt: skip
def test_what_is_read_is_held_to_its_shape_and_bounded(document: bytes, path: str) -> None:
    """A part of the wrong shape is refused with its path; one above the bounds is not decoded."""
    with pytest.raises(Malformed) as refused:
        READER.read(msgspec.Raw(document), "$.o")
    assert refused.value.path.startswith(path)


def test_as_much_as_fits_is_read() -> None:
    """Characters inside of texts do not count towards the bounds, and long members are read."""
    long = b'{"texts":{"a":"%b","b":"%b"}}' % (b"\\u003c" * MOST.letters, b",{[" * 300_000)
    with pytest.raises(Malformed):
        READER.read(msgspec.Raw(long))
    fitting = b'{"texts":{"a":"%b","b":"%b"}}' % (b"\\u003c" * 1_250_000, b",{[" * 300_000)
    assert READER.read(msgspec.Raw(fitting))["texts"]["a"] == "<" * 1_250_000
    entries = b'{"entries":[%b],"x":%b}' % (b",".join([b"{}"] * (MOST.values - 2)), CROWD)
    assert len(READER.read(msgspec.Raw(entries))["entries"] or ()) == MOST.values - 2


def test_a_machine_keeps_what_it_only_has_to_have() -> None:
    """A member of which a rule needs only the presence is read as an empty object, or null."""
    document = b'{"spec":{"instancetype":{"name":"x"},"preference":null,"domain":{"cpu":{"realtime":{}}}}}'
    reader = PartReader(VirtObject)
    assert (
        reader.cut(msgspec.Raw(document))
        == b'{"spec":{"domain":{"cpu":{"realtime":{}}},"instancetype":{},"preference":null}}'
    )
    assert part_reader.CROWDED.startswith("has more than 50000 lists and objects, 125000 commas or 4 MiB")


def test_a_small_object_may_be_nested_where_nothing_reads() -> None:
    """A part is read from an object with a member that nests too deeply for msgspec, if no rule reads that member."""
    assert READER.read(msgspec.Raw(b'{"x":%b,"texts":{"a":"b"}}' % NEST)) == {"texts": {"a": "b"}}
