"""Messages about values of the wrong type in an object: field, expectation and remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from corepin.documents import Item
    from corepin.errors import CommandFailed
    from webhook.rules.raw_json import Malformed

_OBJECT: Final = "$.request.object"
_SOME_KEY: Final = "[...]"  # msgspec's text for a key of a mapping
# Form of msgspec's messages about a wrong type.
_TYPES: Final = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<found>[^`]*)`")
_NUMBER: Final = ((int, float), "a number")  # msgspec decodes integers of more than 64 bits as floats
_FOUND: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "object": ((dict,), "a mapping"),
    "array": ((list,), "a list"),
    "str": ((str,), "a text"),
    "int": _NUMBER,
    "float": _NUMBER,
    "bool": ((bool,), "true or false"),
    "null": ((type(None),), "nothing"),
}
_EXPECTED: Final = {
    "object": ("a mapping", "write its keys below it"),
    "array": ("a list", "begin each entry with a dash"),
    "str": ("a text", "put the value in quotes"),
    "int": ("a whole number", "write digits only, without quotes or a decimal point"),
    "bool": ("true or false", "write one of them without quotes"),
    "float | int | str": ("an amount", "write for example 2, 500m or 64M"),
}


def decode_failure(item: Item, error: Malformed, path: tuple[str, ...] = ()) -> CommandFailed:
    """Return the error for an object that cannot be decoded; `path` leads to the decoded part of the object."""
    below = error.path.removeprefix(_OBJECT).removeprefix("$").removeprefix(".")
    field, why = ".".join((*path, below)).removesuffix("."), error.why
    types = _TYPES.fullmatch(why)
    if types:
        field, why = _named(item.content, field, types["found"]), _in_words(types["expected"], types["found"])
    return item.document.failed(f"{item.title}: {field}: {why}" if field else f"{item.title}: {why}")


def _in_words(expected: str, found: str) -> str:
    kinds = " | ".join(sorted(set(expected.split(" | ")) - {"null"}))
    name, remedy = _EXPECTED[kinds]
    if kinds == "str" and found in {"object", "array"}:
        remedy = "write one text"
    return f"expected {name}, found {_FOUND[found][1]}: {remedy}"


def _named(content: dict[str, Any], field: str, found: str) -> str:
    """Return the field with a key in place of `[...]` at its end: the first key whose value has the type `found`."""
    parent = field.removesuffix(_SOME_KEY)
    if parent == field:
        return field
    value: Any = content
    for step in re.findall(r"[^.\[\]]+", parent):
        value = value[int(step)] if isinstance(value, list) else value[step]
    wrong = next(key for key, inner in value.items() if type(inner) in _FOUND[found][0])
    return f"{parent}[{wrong}]"
