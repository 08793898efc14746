"""Refusals: why a claim is not fulfilled, for events, the status annotation and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinning.planning.observed import Owner


class Reason(StrEnum):
    """The reason of a refusal in one word, also the label of its metric."""

    INVALID = "Invalid"  # its annotations or resources cannot be read
    NOT_ENOUGH = "NotEnoughCPUs"
    NOT_NEAR = "NotNear"  # too few CPUs beside its devices, which it requires
    DEVICES_UNKNOWN = "DevicesUnknown"  # it requires CPUs beside its devices, and these are not known
    NOT_RESERVED = "ClaimNotReserved"  # a ResourceClaim that it names is not known to be reserved for its pod
    SHARED_EMPTY = "SharedSetWouldBeEmpty"
    KEEPS_FEWER = "KeepsFewerCPUs"  # it has fewer CPUs than it asks for
    KEEPS_OLD_POLICY = "KeepsOldPolicy"  # it has CPUs under its previous policy
    MEMORY_FREE = "MemoryNotBound"  # it has CPUs, and its memory is not bound
    RUNNING_VM = "RunningVM"
    UNCOUNTED = "Uncounted"  # the scheduler does not count its cores
    POOL_EMPTY = "PodPoolEmpty"  # containers of its pod run in the shared set instead of the pod's pool
    OBSERVING = "ObserveMode"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One claim that is not or only partly fulfilled."""

    owner: Owner  # the container name is empty if the whole pod is meant
    namespace: str
    pod: str
    reason: Reason
    message: str
    blocks_start: bool = False  # the container may not start unpinned

    @property
    def name(self) -> str:
        """The container's name in messages: namespace/pod/container."""
        return "/".join(filter(None, (self.namespace, self.pod, self.owner.container)))

    @property
    def text(self) -> str:
        """The message of its event, also returned to the runtime when the container is held back."""
        return f"{self.reason}: {self.message}"
