"""Objects that an installation would change: each is applied with `dryRun=All` and compared. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.requests import APPLY_PATCH, find, send
from logs.printable import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from corepin.cmk.overlay import Object

NAMED: Final = 4  # fields per object in the output
# Members that the API server writes.
WRITTEN: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"})
COUNTED: Final = "deprecated.daemonset.template.generation"  # an annotation that it writes


def object_lines(
    api: Any, documents: Iterable[Object], path_of: Callable[[Object], str], query: str
) -> Iterator[str]:
    """Yield a line for each new or changed object, with its first changed fields."""
    for it in documents:
        path, name = path_of(it), f"{it['kind']} {it['metadata']['name']}"
        before = find(api, path)
        if before is None:
            yield f"{name}: is new"
            continue
        after = send(api, "PATCH", f"{path}?dryRun=All&{query}", it, APPLY_PATCH)
        changed = sorted(set(changed_fields(_own(before), _own(after))))
        if changed:
            more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
            yield plain(f"{name}: changes {', '.join(changed[:NAMED])}{more}")


def changed_fields(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths at which two objects differ; lists of equal length are compared item by item."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before.keys() | after.keys():
            yield from changed_fields(before.get(key), after.get(key), f"{path}.{key}" if path else key)
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from changed_fields(old, new, f"{path}[{number}]")
    elif before != after:
        yield path


def _own(it: Any) -> Any:
    """Return an object without the members that the API server writes."""
    metadata = {key: value for key, value in it["metadata"].items() if key not in WRITTEN}
    notes = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != COUNTED}
    metadata = {**metadata, "annotations": notes}
    return {**{key: value for key, value in it.items() if key != "status"}, "metadata": metadata}
