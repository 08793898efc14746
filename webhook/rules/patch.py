"""JSON Patch operations (RFC 6902): add missing members and list entries, never replace values; remove list entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

KEYS: Final = {  # the member that identifies the entries of a list
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "ports": "containerPort",
    "hostAliases": "ip",
}


class Operation(TypedDict):
    """One JSON Patch operation: `add`, or `remove` without a value."""

    op: str
    path: str
    value: NotRequired[Any]


def add(path: str, value: Any) -> Operation:
    """Return the operation that adds `value` at a JSON pointer."""
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Operation:
    """Return the operation that removes the value at a JSON pointer."""
    return {"op": "remove", "path": path}


def escaped(key: str) -> str:
    """Return a member name escaped for a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A member to add to objects if they lack it; its operations are prepared once for all objects."""

    key: str
    whole: Operation  # operation for an object that has no such member

    def lacking(self, _present: Any) -> list[Operation]:
        """Return the operations for an object that has a value already: none, because a scalar is never replaced."""
        return []


@dataclass(frozen=True, slots=True)
class WantedMembers(Wanted):
    """An object to merge, member by member."""

    members: tuple[Wanted, ...]

    def lacking(self, present: Any) -> list[Operation]:
        """Return the operations for the missing members."""
        return missing(present, self.members) if isinstance(present, dict) else []


@dataclass(frozen=True, slots=True)
class WantedEntries(Wanted):
    """A list to merge, whose entries are compared by one member, such as `name`."""

    by: str
    named: tuple[tuple[Any, Operation], ...]

    def lacking(self, present: Any) -> list[Operation]:
        """Return the operations for the entries that are missing by their identifying member."""
        if not isinstance(present, list):
            return []
        by = self.by
        names = [entry.get(by) if isinstance(entry, dict) else entry for entry in present]
        return [step for name, step in self.named if name not in names]


@dataclass(frozen=True, slots=True)
class WantedWholeEntries(Wanted):
    """A list to merge, whose entries have no identifying member and are compared as a whole."""

    entries: tuple[tuple[Any, Operation], ...]

    def lacking(self, present: Any) -> list[Operation]:
        """Return the operations for the missing entries."""
        if not isinstance(present, list):
            return []
        return [step for entry, step in self.entries if not _is_listed(entry, present)]


def wanted(path: str, want: Mapping[str, Any]) -> tuple[Wanted, ...]:
    """Prepare the operations that add the members of `want` to the object at a JSON pointer."""
    return tuple(_wanted(key, f"{path}/{escaped(key)}", value) for key, value in want.items())


def _wanted(key: str, path: str, value: Any) -> Wanted:
    whole = add(path, value)
    if isinstance(value, dict):
        return WantedMembers(key, whole, wanted(path, value))
    if not isinstance(value, list):
        return Wanted(key, whole)
    by = KEYS.get(key)
    steps = [(entry, add(f"{path}/-", entry)) for entry in value]
    if by is None:
        return WantedWholeEntries(key, whole, tuple((_significant(entry), step) for entry, step in steps))
    named = tuple((entry.get(by) if isinstance(entry, dict) else entry, step) for entry, step in steps)
    return WantedEntries(key, whole, by, named)


def missing(have: Mapping[str, Any], members: Iterable[Wanted]) -> list[Operation]:
    """Return the operations that add wanted members that an object lacks.

    Existing values are kept: objects merge member by member, lists get the missing entries, scalars are not replaced.
    Parents that are absent or null are created.
    """
    steps: list[Operation] = []
    for member in members:
        present = have.get(member.key)
        if present is None:
            steps.append(member.whole)
        else:
            steps += member.lacking(present)
    return steps


def clashes(path: str, have: Any, want: Any) -> Iterator[str]:
    """Yield the field paths where a wanted mapping or list meets a value of another type, so that nothing is added."""
    if isinstance(want, dict) and isinstance(have, dict):
        for key, value in want.items():
            yield from clashes(f"{path}.{key}" if path else key, have.get(key), value)
    elif have is not None and isinstance(want, dict | list) and type(have) is not type(want):
        yield path


def _is_listed(wanted_entry: Any, present: list[Any]) -> bool:
    if not isinstance(wanted_entry, dict):
        return wanted_entry in present
    for entry in present:
        if (
            isinstance(entry, dict)
            and wanted_entry.items() <= entry.items()
            and _significant(entry) == wanted_entry
        ):
            return True
    return False


def _significant(entry: Any) -> Any:
    """Return the entry without absent, null and empty members, which mean the same to the API server."""
    if not isinstance(entry, dict):
        return entry
    return {name: value for name, value in entry.items() if value is not None and value != ""}
