"""Encoding and decoding of the agent's published texts."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Annotated, Any, ClassVar, Final, TypeVar

import msgspec

from pinning.errors import PinningError
from pinning.truncate import VALUE, truncate

Version = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
DAMAGE: Final = (msgspec.DecodeError, RecursionError, UnicodeError)
NO_VERSION: Final = 0  # version of a text that states none


def no_members() -> dict[str, Any]:
    """Return an empty object. With this function as default factory msgspec writes a member even if it is empty."""
    return {}


def no_items() -> tuple[Any, ...]:
    """Return an empty list. With this function as default factory msgspec writes a member even if it is empty."""
    return ()


class Part(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A JSON object within a published text."""


class Published(Part, frozen=True):
    """Base class of published texts; the first member is the version of the text's format."""

    NAME: ClassVar[str]
    VERSION: ClassVar[int]

    version: Version = NO_VERSION


Kind = TypeVar("Kind", bound=Published)


class AnotherVersion(PinningError):
    """A text was written by another version of corepin, or is damaged."""

    def __init__(self, name: str, reason: object, version: object = None) -> None:
        self.version = version  # version that the text states; None: the text is damaged
        self.reason = f"{name} is damaged, or written by another version of corepin ({reason})"
        super().__init__(f"{self.reason}: use the same version")

    @classmethod
    def of(cls, name: str, problem: PinningError) -> AnotherVersion:
        """Return the error for an invalid value in a text, such as a damaged CPU list."""
        return problem if isinstance(problem, cls) else cls(name, problem)


def encode(thing: Published) -> bytes:
    """Return the JSON text of a published object, with the version of its type."""
    return msgspec.json.encode(msgspec.structs.replace(thing, version=thing.VERSION))


def decode(kind: type[Kind], text: str | bytes) -> Kind:
    """Return a published object; raise AnotherVersion if the text is of another version, or damaged."""
    try:
        thing: Kind = _decoder(kind).decode(text)
    except DAMAGE as error:
        with suppress(*DAMAGE):
            check_version(kind.NAME, _decoder(Published).decode(text).version, kind.VERSION)
        raise AnotherVersion(kind.NAME, error) from error
    check_version(kind.NAME, thing.version, kind.VERSION)
    return thing


def check_version(name: str, found: object, known: int) -> None:
    """Raise AnotherVersion if a text's version `found` is neither absent nor `known`."""
    if found not in (NO_VERSION, known):
        reason = f"version {truncate(repr(found), VALUE)}; this one reads version {known}"
        raise AnotherVersion(name, reason, found)


@cache
def _decoder(kind: type[Published]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)
