"""How much of what users write is repeated to them: in messages, texts are cut and lists end.

Whoever may write an annotation chooses how long and how many they are; the size of an answer or an event, and the
memory that it takes to write one, must not depend on it.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")

NAME: Final = 63  # characters of a container's name, which is a DNS label
KEY: Final = 317  # of an annotation's: a prefix of 253, a slash and a name of 63
VALUE: Final = 40  # of anything else
NAMES_LISTED: Final = 10
MOST_REPORTED: Final = 50  # causes, or warnings, of one object


def cut(text: str, limit: int) -> str:
    """Return the text, or its beginning with three dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def few(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return the first items, asking for no others: one more than are reported where there are more."""
    return tuple(islice(items, MOST_REPORTED + 1))


def listed(names: Iterable[str]) -> str:
    """Return the first names in their order, and how many more there are."""
    ordered = sorted(names)
    text = ", ".join(cut(name, NAME) for name in ordered[:NAMES_LISTED])
    left = len(ordered) - NAMES_LISTED
    return f"{text} and {left} more" if left > 0 else text
