"""Read a list of the API server part by part, however large its objects are: no more than one part is in memory."""

from __future__ import annotations

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
        page = decode(_page, body)
        del body  # the objects of the page point into it: it goes with the last of them
        yield page
        following = page.metadata.continue_
        del page
        if not following:
            return


def decode(decoder: Decoder[Decoded], document: bytes | bytearray | msgspec.Raw) -> Decoded:
    """Return what the API server sent; raise Busy for what is damaged, as asking again may help."""
    try:
        return decoder.decode(document)
    except msgspec.DecodeError as error:
        raise Busy(f"the API server sent what cannot be read: {error}") from error
