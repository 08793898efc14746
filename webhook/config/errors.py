"""Error messages for operators' files, translated from msgspec's; each has key, value, expectation and remedy."""

from __future__ import annotations

import difflib
import re
from typing import Any, Final

import msgspec
from msgspec import inspect

_NOTHING: Final = object()
_UNKNOWN: Final = "Object contains unknown field `"
_MISSING: Final = "Object missing required field `"


def explain(error: msgspec.ValidationError, parsed: object, kind: object, prefix: str = "") -> str:
    """Return a decode error as one line: `sidecarLimits: 'all' is not allowed: write one of claims, launcher, off`."""
    why, _, path = str(error).partition(" - at `$")
    path = prefix + path.removesuffix("`")
    steps = re.findall(r"[^.\[\]]+", path.removeprefix(prefix))
    value, expected = _value_at(parsed, steps), _type_at(inspect.type_info(kind), steps)
    if why.startswith(_UNKNOWN):
        return _unknown(path, why.removeprefix(_UNKNOWN).removesuffix("`"), value, expected)
    if why.startswith(_MISSING):
        return f"{_joined(path, why.removeprefix(_MISSING).removesuffix('`'))} is missing: add it"
    shown = "" if value is _NOTHING else f"{_short(value)} is not allowed: "
    if isinstance(expected, inspect.LiteralType):
        return f"{_joined(path)}: {shown}write one of {', '.join(sorted(map(str, expected.values)))}"
    return f"{_joined(path) or 'the file'}: {shown}{_remedy(why, value, expected)}"


def _unknown(path: str, key: str, value: object, expected: inspect.Type | None) -> str:
    known = (
        [field.encode_name for field in expected.fields] if isinstance(expected, inspect.StructType) else []
    )
    close = difflib.get_close_matches(key, known, 1)
    remedy = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"
    given = value.get(key, _NOTHING) if isinstance(value, dict) else _NOTHING
    shown = "" if given is _NOTHING else f" (value {_short(given)})"
    return f"{_joined(path, key)}: the key is unknown{shown}: {remedy}"


def _remedy(why: str, value: object, expected: inspect.Type | None) -> str:
    """Return the remedy: write a value of the expected type, or quote a text that YAML reads as another type."""
    expectation = why.replace("`", "")
    expectation = expectation[:1].lower() + expectation[1:]
    if isinstance(expected, inspect.StructType) and expectation.startswith("expected object"):
        return f"write a mapping of {', '.join(field.encode_name for field in expected.fields)}"
    quotes = isinstance(value, bool | int | float) and expectation.startswith("expected str")
    return f'{expectation}: put it in quotes, e.g. "{str(value).lower()}"' if quotes else expectation


def _joined(*parts: str) -> str:
    return ".".join(part.strip(".") for part in parts if part)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _value_at(parsed: object, steps: list[str]) -> object:
    value: Any = parsed
    for step in steps:
        if isinstance(value, list) and step.isdigit():
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:  # msgspec writes `...` for a key of a mapping with free keys
            return _NOTHING
    return value


def _type_at(expected: inspect.Type, steps: list[str]) -> inspect.Type | None:
    found: inspect.Type | None = expected
    for step in steps:
        if isinstance(found, inspect.StructType):
            found = next((field.type for field in found.fields if field.encode_name == step), None)
        elif isinstance(found, inspect.VarTupleType):
            found = found.item_type
        else:
            return None
    return found
