"""Paged lists of the API server with bounded memory: at most one page is in memory."""

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
PAGE: Final = 20  # objects of one page: about 200 kB of usual pods
DEEPEST: Final = 100  # nested levels that are kept; no part that is decoded has as many
HEAVY: Final = 8 * 2**20  # most bytes of a page; a larger one is requested again with half as many objects


class Decoder(Protocol[Decoded_co]):
    """Function that decodes one object of a page."""

    def decode(self, document: bytes | bytearray | msgspec.Raw, /) -> Decoded_co:
        """Return the decoded parts of a document; raise msgspec.DecodeError."""
        ...


class ListMeta(msgspec.Struct, rename="camel"):
    """Resource version and continue token of a list."""

    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class Page(msgspec.Struct):
    """One page of a list, with raw objects."""

    metadata: ListMeta
    items: list[msgspec.Raw] | None = None


_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[][{}]', re.DOTALL)
_OPENING: Final = frozenset({b"[", b"{"})
_CLOSING: Final = frozenset({b"]", b"}"})
_page = msgspec.json.Decoder(Page)


async def pages(
    api: Api, path: str, params: Mapping[str, str], accept: str = JSON, limit: int = PAGE
) -> AsyncIterator[Page]:
    """Yield the pages of a list; a page above the size limit is requested again with half as many objects."""
    following = ""
    while True:
        asked = {**params, "limit": str(limit), **({"continue": following} if following else {})}
        try:
            body = await api.page(path, asked, HEAVY if limit > 1 else None, accept)
        except TooLong:
            limit //= 2
            continue
        page = await decode_any(_page, body)
        del body  # the page's objects refer to its bytes, which are freed with the last object
        yield page
        following = page.metadata.continue_
        del page
        if not following:
            return


def shallow(document: bytes) -> bytes:
    """Return a JSON text with null in place of everything nested deeper than DEEPEST."""
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
    """Return a decoded document nested less than 1,000 deep; raise Busy for an invalid one, which a retry may fix."""
    try:
        return decoder.decode(document)
    except msgspec.DecodeError as error:
        raise Busy(f"the API server sent what cannot be read: {error}") from error


async def decode_any(decoder: Decoder[Decoded], document: bytes | bytearray) -> Decoded:
    """Return a decoded document of any depth; raise Busy for an invalid one.

    Users control `managedFields`, including thousands of brackets: these must not end a watch or hide an object.
    Such a document is flattened in a thread, because a megabyte of brackets takes a tenth of a second.
    """
    try:
        return decode(decoder, document)
    except RecursionError:
        return decode(decoder, await asyncio.to_thread(shallow, bytes(document)))
