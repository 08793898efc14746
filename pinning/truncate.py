"""Limits for user text in messages: texts are truncated, and lists have a maximum length.

Users control the length and number of annotations. The size of an answer or event, and the memory needed to build it,
must not depend on either.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable

Item = TypeVar("Item")

# Limits in characters for texts in messages. Valid names of containers, and valid annotation keys (a prefix of 253, a
# slash and a name of 63), are not truncated.
NAME: Final = 63
KEY: Final = 317
VALUE: Final = 40  # any other text
NAMES_LISTED: Final = 10
MOST_REPORTED: Final = 50  # causes or warnings reported of one object


def truncate(text: str, limit: int) -> str:
    """Return the text, or its first `limit` characters with the last three replaced by dots."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def few(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return the items to report and one more, which shows that there are others; read no further items."""
    return tuple(islice(items, MOST_REPORTED + 1))


def listed(names: Iterable[str]) -> str:
    """Return the first names in sorted order, joined by commas, and the number of the others."""
    ordered = sorted(names)
    text = ", ".join(truncate(name, NAME) for name in ordered[:NAMES_LISTED])
    left = len(ordered) - NAMES_LISTED
    return f"{text} and {left} more" if left > 0 else text
