"""Parts of owners' names, and refusals and CPU lists from status annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboard.model.records import MOST_MESSAGE, MOST_WORD
from pinning.errors import PinningError
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dashboard.model.records import Pod
    from published.pod_status import Refusal


def pod_of(owner: str) -> str:
    """Return the part namespace/pod of the text namespace/pod/container."""
    return owner.rpartition("/")[0]


def container_of(owner: str) -> str:
    """Return the name of the container in the text namespace/pod/container."""
    return owner.rpartition("/")[2]


def refusals(pod: Pod) -> Iterator[tuple[str, str, str]]:
    """Yield container ("" for the whole pod), reason and message of each refused claim."""
    if pod.status is None:
        return
    if refused := pod.status.refusal:
        yield "", *_cut(refused)
    for name, container in pod.status.containers.items():
        if refused := container.refusal:
            yield name, *_cut(refused)


def _cut(refused: Refusal) -> tuple[str, str]:
    """Return reason and message of a refusal, truncated, because a list may have hundreds."""
    return refused.reason[:MOST_WORD], refused.message[:MOST_MESSAGE]


def cpus_in(text: str) -> CPUSet:
    """Return the CPU list in an untrusted text; empty if it is invalid."""
    try:
        return CPUSet.parse(text)
    except PinningError:
        return EMPTY
