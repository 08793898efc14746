"""Read a list of the API server part by part, however large its objects are: no more than one part is in memory."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from apiserver.client import JSON
from apiserver.errors import Busy, TooLong

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from apiserver.client import Api

Decoded_co = TypeVar("Decoded_co", covariant=True)
Decoded = TypeVar("Decoded")
PAGE: Final = 20  # objects: some 200 kB of usual pods
DEEPEST: Final = 100  # what is read lies far less deep
HEAVY: Final = 8 * 2**20  # bytes: a longer page is asked for again, with half as many objects


class Decoder(Protocol[Decoded_co]):
    """Reads one document."""

    def decode(self, document: bytes | bytearray | msgspec.Raw, /) -> Decoded_co:
        """Return what is read of a document; raise msgspec.DecodeError."""
        ...


class ListMeta(msgspec.Struct, rename="camel"):
    """Where a list stands."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """A part of a list, its objects not read yet."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
_OPENING: Final = frozenset({b"[", b"{"})
_CLOSING: Final = frozenset({b"]", b"}"})
_page = msgspec.json.Decoder(Page)


async def pages(
    api: Api, path: str, params: Mapping[str, str], accept: str = JSON, limit: int = PAGE
) -> AsyncIterator[Page]:
    """Yield the parts of a list; a part too large to be held is given up and asked for again, in halves."""
    following = ""
    while True:
        asked = {**params, "limit": str(limit), **({"continue": following} if following else {})}
        try:
            body = await api.page(path, asked, HEAVY if limit > 1 else None, accept)
        except TooLong:
            limit //= 2
            continue
        page = await decode_any(_page, body)
        del body  # the objects of the page point into it: it goes with the last of them
        yield page
        following = page.metadata.continue_
        del page
        if not following:
            return


def shallow(document: bytes) -> bytes:
    """Return a JSON text with null for what is nested more than DEEPEST deep."""
    depth, kept, parts = 0, 0, []
    for token in _TOKEN.finditer(document):
        if token[0] in _OPENING:
            depth += 1
            if depth == DEEPEST + 1:
                parts.append(document[kept : token.start()] + b"null")
        elif token[0] in _CLOSING:
            if depth == DEEPEST + 1:
                kept = token.end()
            depth -= 1
    return b"".join((*parts, document[kept:] if depth <= DEEPEST else b""))


def decode(decoder: Decoder[Decoded], document: bytes | bytearray | msgspec.Raw) -> Decoded:
    """Return what the API server sent, nested less than 1,000 deep; raise Busy for what is damaged: asking again may help."""
    try:
        return decoder.decode(document)
    except msgspec.DecodeError as error:
        raise Busy(f"the API server sent what cannot be read: {error}") from error


async def decode_any(decoder: Decoder[Decoded], document: bytes | bytearray) -> Decoded:
    """Return what the API server sent, however deep it is nested; raise Busy for what is damaged.

    Users write `managedFields` as they like, in thousands of brackets too: that ends no watch, hides no object, and
    as its megabyte takes a tenth of a second, holds up nothing else.
    """
    try:
        return decode(decoder, document)
    except RecursionError:
        return decode(decoder, await asyncio.to_thread(shallow, bytes(document)))
