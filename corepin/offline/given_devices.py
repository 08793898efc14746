"""The file of `corepin plan --devices`: the NUMA nodes of devices that the kubelet assigned to pods."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from corepin.documents import read_values
from corepin.errors import CommandFailed
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.truncate import KEY, VALUE, truncate

if TYPE_CHECKING:
    from collections.abc import Iterator

_NODES: Final = re.compile(r"-1|[0-9]{1,4}(\+[0-9]{1,4})*", re.ASCII)
_EXAMPLE: Final = "write for example {default/trainer: {main: {nvidia.com/gpu: [0, 1]}}}"


class Use(NamedTuple):
    """A container and a device resource that it requests."""

    container: str
    resource: str


# NUMA nodes of each device, by namespace/name of the pod and by use.
Given = dict[str, dict[Use, tuple[CPUSet, ...]]]


def read_given(source: str | None) -> Given:
    """Return the content of a file; raise CommandFailed with the place of an error."""
    if source is None:
        return {}
    documents = read_values(source)
    if len(documents) != 1:
        raise CommandFailed(f"{source}: has {len(documents)} documents instead of one: {_EXAMPLE}")
    pods = _entries(documents[0][1], source)
    return {pod: dict(_uses(containers, f"{source}: {truncate(pod, KEY)}")) for pod, containers in pods}


def nodes_of_text(text: str, place: str) -> CPUSet:
    """Return the NUMA nodes of one device, an empty set for -1; raise CommandFailed with the place in the file."""
    if not _NODES.fullmatch(text):
        raise CommandFailed(
            f"{place}: {truncate(text, VALUE)!r} is not a NUMA node: write its number, -1 for a device without a"
            " node, or 0+1 for one that is near both"
        )
    return EMPTY if text == "-1" else CPUSet(map(int, text.split("+")))


def _uses(given: Any, place: str) -> Iterator[tuple[Use, tuple[CPUSet, ...]]]:
    for container, resources in _entries(given, place):
        for resource, nodes in _entries(resources, f"{place}: {truncate(container, KEY)}"):
            where = f"{place}: {truncate(container, KEY)}: {truncate(resource, KEY)}"
            if not isinstance(nodes, list):
                raise CommandFailed(f"{where}: {truncate(str(nodes), VALUE)!r} is not a list: {_EXAMPLE}")
            yield Use(container, resource), tuple(nodes_of_text(str(node), where) for node in nodes)


def _entries(given: Any, place: str) -> list[tuple[str, Any]]:
    if not isinstance(given, dict):
        raise CommandFailed(f"{place}: {truncate(str(given), VALUE)!r} is not a mapping of names: {_EXAMPLE}")
    return list(given.items())
