"""Dry run of an installation: apply each object with `dryRun=All`, and report changes and refusals. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from corepin.cmk.requests import APPLY_PATCH, NOT_FOUND, Answered, find, send
from corepin.errors import CommandFailed
from logs.printable import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from corepin.cmk.overlay import Object

NAMED: Final = 4  # most changed fields that the line of an object names
REFUSED: Final = 3  # most refusals that one error names
CONFLICT: Final = 409
MODIFIED: Final = "object has been modified"
# The API server's message about another program's webhook that has side effects.
NO_DRY_RUN: Final = "does not support dry run"
# Members of the metadata that the API server writes itself.
WRITTEN: Final = frozenset({"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"})
# An annotation that the API server increments itself.
COUNTED: Final = "deprecated.daemonset.template.generation"


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
        after = _apply(api, it, path, query)
        changed = sorted(set(changed_fields(_own(before), _own(after))))
        if changed:
            more = f" and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
            yield plain(f"{name}: changes {', '.join(changed[:NAMED])}{more}")


def check_applies(
    api: Any, documents: Iterable[Object], path_of: Callable[[Object], str], query: str
) -> None:
    """Raise CommandFailed if the API server would refuse an object.

    Without this check, a refusal in the middle would leave the installation half changed. Objects in a namespace that
    does not exist yet are left out: they are new and have no other field managers. Any other answer "not found" is a
    refusal, for example of a kind that the API server does not serve.
    """
    refusals = [refusal for it in documents if (refusal := _refusal(api, it, path_of(it), query)) is not None]
    if refusals:
        raise CommandFailed(f"{_shortened(refusals)}: nothing was changed: {_remedy(refusals)}")


def _refusal(api: Any, it: Object, path: str, query: str) -> Answered | None:
    """Return the refusal of an object; None if it would be applied, or a dry run cannot tell."""
    try:
        _apply(api, it, path, query)
    except Answered as error:
        waits = error.status == NOT_FOUND and not _has_namespace(api, it)
        return None if waits or NO_DRY_RUN in str(error) else error
    return None


def _has_namespace(api: Any, it: Object) -> bool:
    """Return whether an object's namespace exists; a cluster-scoped object needs none."""
    namespace = it["metadata"].get("namespace")
    return namespace is None or find(api, f"/api/v1/namespaces/{namespace}") is not None


def _shortened(refusals: Sequence[Answered]) -> str:
    more = f"; and {len(refusals) - REFUSED} objects more" if len(refusals) > REFUSED else ""
    return f"{'; '.join(map(str, refusals[:REFUSED]))}{more}"


def _remedy(refusals: Iterable[Answered]) -> str:
    """Return the remedy for refusals: if all are field conflicts, the user can override them with a flag."""
    if any(error.status != CONFLICT for error in refusals):
        return "correct what the API server refuses, and repeat this command"
    if any(MODIFIED in str(error) for error in refusals):
        return "repeat this command"
    return "to take these fields over, add --force-conflicts"


def _apply(api: Any, it: Object, path: str, query: str) -> Any:
    return send(api, "PATCH", f"{path}?dryRun=All&{query}", it, APPLY_PATCH)


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
