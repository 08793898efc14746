"""Why a container did not get what it asked for: a value for events, the status annotation, metrics and people."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinning.planning.observed import Owner


class Reason(StrEnum):
    """Why, in one word; metrics count by it."""

    INVALID = "Invalid"  # its annotations or resources cannot be read
    NOT_ENOUGH = "NotEnoughCPUs"
    SHARED_EMPTY = "SharedSetWouldBeEmpty"
    KEEPS_FEWER = "KeepsFewerCPUs"  # it has CPUs, not as many as it asks for
    KEEPS_OLD_POLICY = "KeepsOldPolicy"  # it has CPUs, under the policy it had before
    MEMORY_FREE = "MemoryNotBound"  # it has CPUs, and its memory may lie anywhere
    RUNNING_VM = "RunningVM"
    UNCOUNTED = "Uncounted"  # the scheduler does not count its cores
    OBSERVING = "ObserveMode"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One claim that is not fulfilled, or not wholly."""

    owner: Owner  # container is "" when the whole pod is meant
    namespace: str
    pod: str
    reason: Reason
    message: str
    blocks_start: bool = False  # the container may not start unpinned

    @property
    def name(self) -> str:
        """What people call the container: namespace/pod/container."""
        return "/".join(filter(None, (self.namespace, self.pod, self.owner.container)))

    @property
    def text(self) -> str:
        """What its event says, and the runtime when it holds the container back."""
        return f"{self.reason}: {self.message}"
