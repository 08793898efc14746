"""Decoding JSON whose skipped parts msgspec alone refuses."""

from __future__ import annotations

import sys
import threading

import msgspec
import pytest

from webhook.rules import lenient

STACK = 2**19  # bytes; the stack of a process has 16 times as many


class Read(msgspec.Struct):
    """The decoded part."""

    name: str
    deep: msgspec.Raw = msgspec.Raw(b"null")


READER = msgspec.json.Decoder(Read)


def nested(depth: int) -> bytes:
    """Return nothing, in objects and lists."""
    return b'{"a":[' * (depth // 2) + b"]}" * (depth // 2)


@pytest.mark.parametrize("member", [b"other", b"deep"])
@pytest.mark.parametrize(
    "strange",
    [
        pytest.param(nested(10_000), id="as deep as Go reads"),
        pytest.param(rb'{"\ud800":"\udc00"}', id="half characters"),
        pytest.param(b"[" + nested(5_000) + rb',{"\uDBFF":1}]', id="both"),
        pytest.param(b'"\xff\xfe"', id="not UTF-8"),
    ],
)
def test_what_is_skipped_may_be_strange(member: bytes, strange: bytes) -> None:
    """Strange values in skipped members do not fail decoding, and the recursion limit is restored."""
    limit = sys.getrecursionlimit()
    assert lenient.decode(READER, b'{"%b":%b,"name":"a"}' % (member, strange)).name == "a"
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"deep":' + nested(20_000) + b',"name":"a"}', RecursionError),
        (b'{"deep":1,"name":5}', msgspec.ValidationError),
        (b'{"deep":1,"name":"a"', msgspec.DecodeError),
    ],
)
def test_what_is_no_json_still_is_none(text: bytes, error: type[Exception]) -> None:
    """Invalid JSON is still refused, and the recursion limit is restored."""
    limit = sys.getrecursionlimit()
    with pytest.raises(error):
        lenient.decode(READER, text)
    assert sys.getrecursionlimit() == limit


def test_the_deepest_text_needs_little_stack() -> None:
    """The deepest text that is skipped needs a sixteenth of a usual stack."""
    names: list[str] = []
    text = b'{"deep":' + nested(lenient.DEEPEST - 100) + b',"name":"a"}'
    before = threading.stack_size(STACK)
    thread = threading.Thread(target=lambda: names.append(lenient.decode(READER, text).name))
    thread.start()
    threading.stack_size(before)
    thread.join()
    assert names == ["a"]


def test_text_that_is_not_json_is_not_mended() -> None:
    """Half a surrogate pair in JSON becomes U+FFFD; a text with the bytes of the stand-in is not changed."""
    half = rb'{"name":"\ud800"}'
    assert lenient.with_whole_characters(half) == rb'{"name":"\ufffd"}'
    for text in (b'{"name":"a"}', half + lenient._STAND_IN):
        assert lenient.with_whole_characters(text) is text
