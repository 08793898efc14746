"""Decode the part of an object that rules read, however large, deep or damaged the rest of it is.

A usual object is decoded at once: msgspec skips what the part has not. Of a large one the part is cut out first, still
as bytes, and counted: what the user wrote elsewhere, `managedFields` and `status` above all, costs a skip and no more.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from msgspec import UNSET, UnsetType

from webhook.rules import lenient
from webhook.rules.json_size import Size, at_most, size
from webhook.rules.raw_json import NULL, OBJECT, UNREADABLE, Malformed, malformed

if TYPE_CHECKING:
    from collections.abc import Callable

Part = TypeVar("Part")

LARGE: Final = 2**18  # bytes; a smaller object is not counted
MOST: Final = Size(
    values=50_000,  # each takes up to 500 bytes when it is read, `{}` three on the wire
    commas=125_000,  # a short text takes 60 bytes, with its place among others 150, and four on the wire
    letters=4 * 2**20,  # the API server takes 3 MiB; one emoji makes four bytes of each letter beside it
)
CROWDED: Final = (
    f"has more than {MOST.values} lists and objects, {MOST.commas} commas or {MOST.letters >> 20} MiB "
    "in what corepin reads"
)


class _Crowded(Exception):
    """A list has more objects than are read."""


def require_fit(text: bytes | msgspec.Raw, path: str) -> None:
    """Raise Malformed for a text of which too much would be held in memory."""
    if not (surely_fits(text) or size(text, MOST).fits(MOST)):
        raise Malformed(path, CROWDED)


def surely_fits(text: bytes | msgspec.Raw) -> bool:
    """Say whether no more would be held in memory even if no bracket, comma or escape stood in a string."""
    return len(memoryview(text)) <= MOST.letters and at_most(text).fits(MOST)


class PartReader(Generic[Part]):
    """Reads objects as one type of the domain, of which it knows the leaves."""

    def __init__(self, part: type[Part]) -> None:
        self._decoder: msgspec.json.Decoder[Part] = msgspec.json.Decoder(part)
        self._cutter = msgspec.json.Decoder(_leaves(part, lambda _object: self._count()))
        self._counted = 0

    def read(self, document: msgspec.Raw, path: str = OBJECT) -> Part:
        """Return what is read of an object; raise Malformed, with the path told from `path`."""
        try:
            if len(memoryview(document)) <= LARGE or surely_fits(document):
                try:
                    return self._decoder.decode(document)
                except RecursionError:
                    pass  # where nothing is read, perhaps
            part = self.cut(document, path)
            require_fit(part, path)
            return self._decoder.decode(part)
        except UNREADABLE as error:
            raise malformed(error).under(path) from error

    def cut(self, document: msgspec.Raw, path: str = OBJECT) -> bytes:
        """Return the part as JSON; raise Malformed where it has another shape or too many objects."""
        self._counted = 0
        try:
            return msgspec.json.encode(lenient.decode(self._cutter, document))
        except _Crowded as error:
            raise Malformed(path, CROWDED) from error
        except UNREADABLE as error:
            raise malformed(error).under(path) from error

    def _count(self) -> None:
        self._counted += 1
        if self._counted > 2 * MOST.values:  # a strict pass may have ended half-way, before a lenient one
            raise _Crowded


def _leaves(hint: Any, count: Callable[[object], None]) -> Any:
    """Return a type with the objects and lists of `hint`, and raw leaves; each object is counted as it is decoded."""
    if is_typeddict(hint):
        return _object(hint, count)
    if isinstance(hint, UnionType):
        options = [_leaves(option, count) for option in get_args(hint) if option is not NoneType]
        return msgspec.Raw if msgspec.Raw in options else reduce(or_, options, None)
    if get_origin(hint) is list:
        (entry,) = (_leaves(argument, count) for argument in get_args(hint))
        return msgspec.Raw if entry is msgspec.Raw else list[entry]  # type: ignore[valid-type] # made here
    return msgspec.Raw


def _object(hint: Any, count: Callable[[object], None]) -> Any:
    members = [
        (f"member{at}", name, _leaves(member, count))  # the name of a label is none of Python
        for at, (name, member) in enumerate(get_type_hints(hint).items())
    ]
    return msgspec.defstruct(
        hint.__name__,
        [
            (alias, member, NULL) if member is msgspec.Raw else (alias, member | UnsetType, UNSET)
            for alias, _, member in members
        ],
        rename={alias: name for alias, name, _ in members},
        namespace={"__post_init__": count},
        omit_defaults=True,
        gc=False,
    )
