"""Interface between the protocol and a plugin: the plugin's name, events and handlers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agent.nri.wire import nri_pb2 as pb


class Event(IntEnum):
    """Events of the runtime; bit `number - 1` of a plugin's mask subscribes to one."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    REMOVE_POD_SANDBOX = 3
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    START_CONTAINER = 6
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    POST_UPDATE_CONTAINER = 9
    STOP_CONTAINER = 10
    REMOVE_CONTAINER = 11
    UPDATE_POD_SANDBOX = 12
    POST_UPDATE_POD_SANDBOX = 13
    VALIDATE_CONTAINER_ADJUSTMENT = 14


def mask(*events: Event) -> int:
    """Return the mask of some events."""
    return sum(1 << (event - 1) for event in set(events))


GUARD_EVENTS: Final = mask(Event.VALIDATE_CONTAINER_ADJUSTMENT)
# Accepted by every runtime. The runtime waits for the answer to each event, so events that the plugin does not need are
# left out.
WORKER_EVENTS_OLD: Final = mask(
    *(Event.RUN_POD_SANDBOX, Event.CREATE_CONTAINER, Event.START_CONTAINER),
    *(Event.UPDATE_CONTAINER, Event.REMOVE_CONTAINER),
)
# If a validating plugin does not answer, the creation fails; otherwise the container starts unadjusted.
WORKER_EVENTS: Final = WORKER_EVENTS_OLD | GUARD_EVENTS
_VALIDATES: Final = (2, 2)  # first version of containerd that knows all events
_CONTAINERD: Final = re.compile(r"containerd v?(\d+)\.(\d+)")
CPUSET_CPUS: Final = 21  # key of `cpuset.cpus` in the map `FieldOwners.simple`
CPUSET_MEMS: Final = 22


def may_be_unknown(events: int, runtime: str) -> bool:
    """Return whether a runtime, by name and version, may not know one of these events."""
    if not events & ~WORKER_EVENTS_OLD:
        return False
    containerd = _CONTAINERD.match(runtime)
    return containerd is None or (int(containerd[1]), int(containerd[2])) < _VALIDATES


@dataclass(frozen=True, slots=True)
class PluginName:
    """A plugin's name and index; the runtime calls lower indexes first."""

    name: str
    index: int

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", self.name):
            raise ValueError(f"the name of a plugin has letters, digits and _.+-, not {self.name!r}")
        if not 0 <= self.index <= 99:
            raise ValueError(f"the index of a plugin has two digits, not {self.index}")

    def __str__(self) -> str:
        return f"{self.index:02}-{self.name}"


class Handlers(Protocol):
    """A plugin's handlers, called one at a time in the connection's thread.

    Each may raise Reject; any other exception is logged, and the runtime gets an error too. The runtime waits for each
    answer, and disconnects the plugin after two seconds.
    """

    def configure(self, request: pb.ConfigureRequest) -> None:
        """Handle Configure: the runtime's name, version and timeouts."""

    def synchronize(
        self, pods: Sequence[pb.KnownPodSandbox], containers: Sequence[pb.KnownContainer]
    ) -> Iterable[pb.ContainerUpdate]:
        """Handle Synchronize: existing pods and containers in, updates out."""

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Handle CreateContainer: return the adjustment of the container, and updates of others."""

    def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """Handle UpdateContainer: return updates of the container and of others."""

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Handle ValidateContainerAdjustment: return why the container must not be created, "" if it may."""

    def event(self, event: int, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> None:
        """Handle any other event; the container is empty for events of pods."""
