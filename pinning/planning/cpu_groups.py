"""Groups of nodes with a common configuration: the key of the agents' ConfigMap that the agent of a node reads.

The label `corepin.io/cpu-group: NAME` of a node chooses the key `config.NAME.yaml`; without the label the key is
`config.yaml`. A missing key is never replaced by `config.yaml`, because its CPU numbers may not fit the machine.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import CPU_GROUP_LABEL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

KEY: Final = "config.yaml"  # key of the ConfigMap for nodes without a group
NO_GROUP: Final = ""
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")  # the syntax of label values


class Waiting(NamedTuple):
    """The reason why an agent waits instead of starting with a configuration."""

    reason: str  # reason of the node condition, in CamelCase
    message: str


def is_group(name: str) -> bool:
    """Return whether a text can be the name of a group."""
    return _NAME.fullmatch(name) is not None


def key_of(group: str, default: str = KEY) -> str:
    """Return the key (or file name) of a group's configuration."""
    file = PurePath(default)
    return f"{file.stem}.{group}{file.suffix}" if group else default


def groups_among(keys: Iterable[str], default: str = KEY) -> frozenset[str]:
    """Return the groups that have a key among the given ones."""
    file = PurePath(default)
    start, end = f"{file.stem}.", file.suffix
    named = (
        key[len(start) : len(key) - len(end)] for key in keys if key.startswith(start) and key.endswith(end)
    )
    return frozenset(name for name in named if is_group(name))


def choose_group(
    labelled: str | None, remembered: str | None, there: Collection[str], default: str = KEY
) -> str | Waiting:
    """Return the group whose key an agent takes at its start, or why it waits.

    `labelled` is the label's value, empty if the node has none; `remembered` is the choice of the last start.
    Each of the two is None while it is not known. `there` are the groups with a key.
    """
    group = remembered if labelled is None else labelled
    if group is None:
        return _not_known() if there else NO_GROUP
    if group != NO_GROUP and not is_group(group):
        return Waiting(
            "BadGroup", f"label {CPU_GROUP_LABEL}: {group[:70]!r} is not a valid group name: change the label"
        )
    if group != NO_GROUP and group not in there:
        return _no_key(group, key_of(group, default), is_labelled=labelled is not None)
    return group


def _not_known() -> Waiting:
    message = (
        f"the API server does not say whether this node has a label {CPU_GROUP_LABEL}, no earlier start is"
        f" remembered, and {KEY} may not fit a node of a group: let the agent reach the API server"
    )
    return Waiting("GroupNotKnown", message)


def _no_key(group: str, key: str, *, is_labelled: bool) -> Waiting:
    whence = (
        f"label {CPU_GROUP_LABEL}={group}"
        if is_labelled
        else f"the last start took group {group} (the label cannot be read from the API server now)"
    )
    message = f"{whence}, but the agents' ConfigMap has no key {key}: add the key, or change the label"
    return Waiting("NoGroupConfiguration", message)
