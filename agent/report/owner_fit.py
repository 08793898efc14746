"""Limit the owners of CPUs in a Node's annotation, so that the Node has room for other annotations. Pure.

The API server refuses a write that leaves a Node with more than 256 KiB of annotations, which would also stop updates
of conditions and resources. A pod that requests one CPU may have 199 init containers, each an owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from published.node_pools import Owner

# Size of the owners' JSON, enough for 300 owners with the longest names or 800 with usual ones.
MOST_BYTES: Final = 128 * 2**10
_MARKS: Final = 4  # bytes besides a name and its owner: quotes, colon, comma


def fitting_owners(owners: Mapping[str, Owner], most: int = MOST_BYTES) -> dict[str, Owner]:
    """Return the owners that fit into `most` bytes of JSON; the largest namespaces lose their last owners by name."""
    sizes = {name: len(name) + len(msgspec.json.encode(owner)) + _MARKS for name, owner in owners.items()}
    if sum(sizes.values()) <= most:
        return dict(owners)
    namespaces: dict[str, list[str]] = {}
    for name in owners:
        namespaces.setdefault(name.partition("/")[0], []).append(name)
    smallest_first = sorted(
        namespaces.values(), key=lambda names: (sum(map(sizes.__getitem__, names)), names)
    )
    kept, left = set[str](), most
    for number, names in enumerate(smallest_first):
        share = left // (len(smallest_first) - number)
        for name in sorted(names):
            if sizes[name] > share:
                break
            kept.add(name)
            share, left = share - sizes[name], left - sizes[name]
    return {name: owner for name, owner in owners.items() if name in kept}
