"""Decoder for the part of an object that rules read, whatever the size, depth and defects of other members.

A usual object is decoded at once; msgspec skips all other members, mostly `managedFields` and `status`. From a large
object the part is first cut out as bytes, and its size in memory is estimated before it is decoded.
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

LARGE: Final = 2**18  # bytes of an object; smaller ones are not measured
MOST: Final = Size(
    values=50_000,  # a value takes up to 500 bytes in memory; `{}` with its comma takes three on the wire
    # A short text takes 60 bytes in memory and its slot in a list 150; on the wire it takes four.
    commas=125_000,
    letters=4 * 2**20,  # the API server accepts 3 MiB; one emoji quadruples the bytes of its whole string
)
CROWDED: Final = (
    f"has more than {MOST.values} lists and objects, {MOST.commas} commas or {MOST.letters >> 20} MiB "
    "in what corepin reads"
)


class _Crowded(Exception):
    """A document has more objects than may be decoded."""


def require_fit(text: bytes | msgspec.Raw, path: str) -> None:
    """Raise Malformed for a text that would take too much memory when decoded."""
    if not (surely_fits(text) or size(text, MOST).fits(MOST)):
        raise Malformed(path, CROWDED)


def surely_fits(text: bytes | msgspec.Raw) -> bool:
    """Return whether a text fits even if all of its brackets and commas are outside of strings."""
    return len(memoryview(text)) <= MOST.letters and at_most(text).fits(MOST)


class PartReader(Generic[Part]):
    """Decodes objects as a type with only the members that rules read; large objects are cut down to these first."""

    def __init__(self, part: type[Part]) -> None:
        self._decoder: msgspec.json.Decoder[Part] = msgspec.json.Decoder(part)
        self._cutter = msgspec.json.Decoder(_leaves(part, lambda _object: self._count()))
        self._counted = 0

    def read(self, document: msgspec.Raw, path: str = OBJECT) -> Part:
        """Return the part of an object; raise Malformed, with the path relative to `path`."""
        try:
            if len(memoryview(document)) <= LARGE or surely_fits(document):
                try:
                    return self._decoder.decode(document)
                except RecursionError:
                    pass  # the defect may be in a part that no rule reads
            part = self.cut(document, path)
            require_fit(part, path)
            return self._decoder.decode(part)
        except UNREADABLE as error:
            raise malformed(error).under(path) from error

    def cut(self, document: msgspec.Raw, path: str = OBJECT) -> bytes:
        """Return the part as JSON; raise Malformed if it has the wrong shape or too many objects."""
        self._counted = 0
        try:
            return msgspec.json.encode(lenient.decode(self._cutter, document))
        except _Crowded as error:
            raise Malformed(path, CROWDED) from error
        except UNREADABLE as error:
            raise malformed(error).under(path) from error

    def _count(self) -> None:
        self._counted += 1
        # Twice, because a failed strict pass and the lenient one both count.
        if self._counted > 2 * MOST.values:
            raise _Crowded


def _leaves(hint: Any, count: Callable[[object], None]) -> Any:
    """Return a type like `hint` whose leaves stay raw JSON, and which calls `count` for each decoded object."""
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
        (f"member{at}", name, _leaves(member, count))  # keys of labels are not valid as identifiers
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
