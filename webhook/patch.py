"""Build JSON Patch operations (RFC 6902) that add what is missing and touch nothing that is there."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS: Final = {  # by which member the entries of a list are told apart
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "hostAliases": "ip",
}


class Operation(TypedDict):
    """One step of a patch; corepin only ever adds."""

    op: str
    path: str
    value: Any


def add(path: str, value: Any) -> Operation:
    """Return the step that adds `value` at a JSON pointer."""
    return {"op": "add", "path": path, "value": value}


@lru_cache(maxsize=1024)  # keys come from the operator's file and from us
def escaped(key: str) -> str:
    """Return a member name as a JSON pointer spells it."""
    return key.replace("~", "~0").replace("/", "~1")


def additions(path: str, have: Any, want: Any) -> list[Operation]:
    """Return the steps after which all members of `want` are in the document at `path`, where `have` stands now.

    What is there stays: dictionaries merge key by key, lists get the entries they lack, scalars are never replaced.
    Parents that are absent or null are created. The steps for a merged document are empty.
    """
    steps: list[Operation] = []
    if isinstance(have, dict) and isinstance(want, dict):
        for key, value in want.items():
            present = have.get(key)
            below = f"{path}/{escaped(key)}"
            if present is None:
                steps.append(add(below, value))
            elif isinstance(value, list) and isinstance(present, list):
                end = f"{below}/-"
                steps += [add(end, entry) for entry in _lacking(present, value, KEYS.get(key))]
            elif isinstance(value, dict):
                steps += additions(below, present, value)
    return steps


def clashes(path: str, have: Any, want: Any) -> Iterator[str]:
    """Yield the field paths where a mapping or list is wanted and something else stands, so that nothing is added."""
    if isinstance(want, dict) and isinstance(have, dict):
        for key, value in want.items():
            yield from clashes(f"{path}.{key}" if path else key, have.get(key), value)
    elif have is not None and isinstance(want, dict | list) and type(have) is not type(want):
        yield path


def _lacking(have: list[Any], want: list[Any], key: str | None) -> list[Any]:
    """Return the entries of `want` that `have` lacks: told apart by their key, or by all that they say."""
    if key is None:
        said = [_said(entry) for entry in have]
        return [entry for entry in want if _said(entry) not in said]
    present = [entry.get(key) if isinstance(entry, dict) else entry for entry in have]
    return [entry for entry in want if (entry.get(key) if isinstance(entry, dict) else entry) not in present]


def _said(entry: Any) -> Any:
    """Drop members that say nothing: absent, null and empty are the same to the API."""
    if not isinstance(entry, dict):
        return entry
    return {name: value for name, value in entry.items() if value is not None and value != ""}


def joined(*fragments: dict[str, Any]) -> dict[str, Any]:
    """Return one fragment that wants all that the given ones want; lists follow each other."""
    whole: dict[str, Any] = {}
    for fragment in fragments:
        for key, value in fragment.items():
            present = whole.get(key)
            if isinstance(present, dict) and isinstance(value, dict):
                whole[key] = joined(present, value)
            elif isinstance(present, list) and isinstance(value, list):
                whole[key] = [*present, *value]
            else:
                whole[key] = value
    return whole
