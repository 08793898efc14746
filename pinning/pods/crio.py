"""CRI-O's annotations on a pod: those that corepin applies under other runtimes, and those that it ignores. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.contract import CRIO_DISABLE, CRIO_FOLLOWED, CRIO_UNFOLLOWED
from pinning.errors import Cause
from pinning.pods.annotations import annotation_field

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

UNFOLLOWED: Final = "corepin does not follow it under any runtime; CRI-O does where it allows the annotation"
_READ: Final = frozenset({*CRIO_FOLLOWED, *CRIO_UNFOLLOWED})
_OF_CONTAINERS: Final = tuple(f"{word}/" for word in sorted(_READ))


def is_crio_key(key: str) -> bool:
    """Return whether an annotation key is one of CRI-O's that are read, for the pod or for a container."""
    return key in _READ or key.startswith(_OF_CONTAINERS)


def is_disabled(annotations: Mapping[str, str], key: str, container: str) -> bool:
    """Return whether one of CRI-O's annotations disables something for a container."""
    return CRIO_DISABLE in (annotations.get(key), annotations.get(f"{key}/{container}"))


def unfollowed(annotations: Mapping[str, str], exclusive: Collection[str]) -> Iterator[Cause]:
    """Warn about CRI-O's annotations for exclusive containers that corepin does not follow."""
    if not exclusive:
        return
    for word in CRIO_UNFOLLOWED:
        for key in (word, *(f"{word}/{name}" for name in sorted(exclusive))):
            if key in annotations:
                yield Cause(annotation_field(key), UNFOLLOWED, flaw=("unfollowed", key))
