"""Byte sizes of JSON strings, counted without decoding them."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from cri_api.v1 import api_pb2
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agent.cri.json_strings import string_sizes
from agent.cri.statuses import container_environment
from agent.grpc_calls import Fields

MANY = [f"{number:x}=" for number in range(580_000)]  # as many as a status of 16 MiB holds in spec and config
# Contents that look like a string's end or an escape, or whose escaped size differs.
AWKWARD = ('","', '"]', "\\", '\\"', "\\u003c", "\n", "\x01", "é", "€", "😀", "\u2028", "<", "", "x" * 300)


def as_go_writes(strings: list[str]) -> bytes:
    """Return compact JSON with Go's escapes."""
    content = json.dumps(strings, ensure_ascii=False, separators=(",", ":"))
    for escaped in "<>&\u2028":
        content = content.replace(escaped, f"\\u{ord(escaped):04x}")
    return content.encode()


@pytest.mark.parametrize("first", AWKWARD)
@pytest.mark.parametrize("second", AWKWARD)
def test_strings_are_counted_as_decoded(first: str, second: str) -> None:
    """Sizes are those of the decoded UTF-8, with any escapes and spaces."""
    strings = [first, second, first + second]
    size = len("".join(strings).encode())
    for content in (
        as_go_writes(strings),
        json.dumps(strings).encode(),
        json.dumps(strings, indent=1).encode(),
    ):
        assert sum(string_sizes(Raw(content))) == size


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=9), st.booleans())
def test_any_strings_are_counted_as_decoded(strings: list[str], ascii_only: bool) -> None:
    """For any list of strings the size is that of the decoded ones."""
    content = json.dumps(strings, ensure_ascii=ascii_only).encode()
    assert sum(string_sizes(Raw(content))) == len("".join(strings).encode())


@pytest.mark.parametrize("content", [b"[]", b"[ ]", b"null", b"{}", b"7", b"[7]", b""])
def test_value_without_strings_has_no_size(content: bytes) -> None:
    """A value that is not a list of strings yields no size."""
    assert list(string_sizes(Raw(content))) == []


@pytest.mark.parametrize(
    "strings",
    [
        pytest.param(MANY, id="many"),
        pytest.param(["x" * (14 << 20)], id="long"),
        pytest.param(["<" * 300_000], id="escapes"),
    ],
)
def test_counting_keeps_no_strings(strings: list[str]) -> None:
    """Many, long or fully escaped strings are counted in under 2 MiB, in parts of at most 512 KiB."""
    content, size = Raw(as_go_writes(strings)), sum(map(len, strings))
    tracemalloc.start()
    try:
        counted = largest = 0
        for part in string_sizes(content):
            counted, largest = counted + part, max(largest, part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counted == size
    assert largest <= 2**19
    assert peak < 2 << 20


class Held:
    """An in-memory answer, whose reads never yield to the event loop."""

    def __init__(self, content: bytes) -> None:
        self._left = memoryview(content)

    def ready(self, _size: int) -> None:
        """Return at once: the bytes are not in one piece."""

    async def read(self, size: int) -> bytearray:
        """Return the next bytes."""
        found, self._left = self._left[:size], self._left[size:]
        return bytearray(found)

    @asynccontextmanager
    async def reading(self, *_: object) -> AsyncIterator[Fields]:
        """Yield the fields of the answer."""
        yield Fields(self, len(self._left))  # type: ignore[arg-type] # it reads as an exchange does


def test_loop_gets_its_turn_while_an_environment_is_counted() -> None:
    """The event loop runs other tasks after each of the hundreds of parts."""
    strings = as_go_writes(MANY)
    parts = len(list(string_sizes(Raw(strings))))
    info = b'{"runtimeSpec":{"process":{"env":%b}}}' % strings
    answer = api_pb2.ContainerStatusResponse(info={"info": info.decode()}).SerializeToString()
    calls: Any = Held(answer)

    async def count() -> tuple[int, int]:
        counting, turns = asyncio.create_task(container_environment(calls, "id")), 0
        while not counting.done():
            await asyncio.sleep(0)
            turns += 1
        return counting.result(), turns

    size, turns = asyncio.run(count())
    assert size == sum(map(len, MANY))
    assert turns >= parts > 200
