"""Refusals: why a claim is not fulfilled, for events, the status annotation and metrics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pinning.planning.observed import Owner


class Reason(StrEnum):
    """The reason of a refusal in one word, also the label of its metric."""

    INVALID = "Invalid"  # annotations or resources of the container cannot be read
    NOT_ENOUGH = "NotEnoughCPUs"
    NOT_NEAR = "NotNear"  # too few CPUs are free near its devices, which its policy requires
    DEVICES_UNKNOWN = "DevicesUnknown"  # its policy requires CPUs near its devices, and these are not known
    # It is not known whether a ResourceClaim that it names is reserved for its pod.
    NOT_RESERVED = "ClaimNotReserved"
    SHARED_EMPTY = "SharedSetWouldBeEmpty"
    KEEPS_FEWER = "KeepsFewerCPUs"  # the container has fewer CPUs than it asks for
    KEEPS_OLD_POLICY = "KeepsOldPolicy"  # the container has CPUs under its previous policy
    MEMORY_FREE = "MemoryNotBound"  # the container has CPUs, and its memory is not bound
    RUNNING_VM = "RunningVM"
    UNCOUNTED = "Uncounted"  # the scheduler does not count the cores of the container
    POOL_EMPTY = "PodPoolEmpty"  # the pod's containers run in the shared set, because its pool has no CPUs
    OBSERVING = "ObserveMode"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One claim that is not or only partly fulfilled."""

    owner: Owner  # an empty container name means the whole pod
    namespace: str
    pod: str
    reason: Reason
    message: str
    blocks_start: bool = False  # the container must not start unpinned

    @property
    def name(self) -> str:
        """The container's name in messages: namespace/pod/container."""
        return "/".join(filter(None, (self.namespace, self.pod, self.owner.container)))

    @property
    def text(self) -> str:
        """The message of its event, also returned to the runtime when the container is held back."""
        return f"{self.reason}: {self.message}"
