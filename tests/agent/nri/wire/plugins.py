"""A plugin that records its calls, with answers and limits that tests share."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from agent.nri.wire import Client, Limits, PluginName, Status
from agent.nri.wire import nri_pb2 as pb

NAME = PluginName("pin", 10)
PATIENT = Limits(register=60, configure=60, synchronize=60, message=60, write=60)  # for slow machines
SOON = 0.2  # the deadline under test, in seconds


def resources(cpus: str) -> pb.LinuxResources:
    """Return resources with CPUs only."""
    return pb.LinuxResources(cpu=pb.LinuxCPU(cpus=cpus))


def update(container_id: str, cpus: str) -> pb.ContainerUpdate:
    """Return an update of CPUs only."""
    return pb.ContainerUpdate(
        container_id=container_id, linux=pb.LinuxContainerUpdate(resources=resources(cpus))
    )


def created(cpus: str, *updates: pb.ContainerUpdate) -> pb.CreateContainerResponse:
    """Return an adjustment of CPUs only, with updates of other containers."""
    adjust = pb.ContainerAdjustment(linux=pb.LinuxContainerAdjustment(resources=resources(cpus)))
    return pb.CreateContainerResponse(adjust=adjust, update=updates)


class Recorder:
    """Handlers that record their calls, raise `failure` once, and wait for `pause`."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.updates: list[pb.ContainerUpdate] = []
        self.reason = ""
        self.failure: Exception | None = None
        self.pause: threading.Event | None = None
        self.paused = threading.Event()

    def configure(self, request: pb.ConfigureRequest) -> None:
        """Record the runtime."""
        self._record("configure", request.runtime_name, request.request_timeout)

    def synchronize(
        self, pods: Sequence[pb.KnownPodSandbox], containers: Sequence[pb.KnownContainer]
    ) -> list[pb.ContainerUpdate]:
        """Record all names."""
        self._record("synchronize", [pod.name for pod in pods], [container.name for container in containers])
        return self.updates

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Give the container two CPUs."""
        self._record("create", pod.name, container.name)
        return created("2-3", *self.updates)

    def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, wanted: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """Assign the container's two CPUs again."""
        self._record("update", pod.name, container.name, wanted.cpu.cpus)
        return pb.UpdateContainerResponse(update=[update(container.id, "2-3")])

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Return the reason that the test has set."""
        self._record("validate", request.container.name, request.adjust.linux.resources.cpu.cpus)
        return self.reason

    def event(self, event: int, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> None:
        """Record the event."""
        self._record(event, pod.name, container.name)

    def _record(self, *facts: object) -> None:
        self.calls.append(facts)
        if self.pause is not None:
            self.paused.set()
            self.pause.wait(60)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure


class Changes:
    """The statuses of a client, in order."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Status] = SimpleQueue()

    def __call__(self, status: Status) -> None:
        """Record a status of the client."""
        self._queue.put(status)

    def next(self) -> Status:
        """Wait for the next status."""
        return self._queue.get(timeout=60)

    def until(self, *, is_connected: bool) -> Status:
        """Wait until the plugin is connected, or is not."""
        while (status := self.next()).is_connected is not is_connected:
            pass
        return status


@contextmanager
def running(
    path: Path, handlers: Recorder, *, changed: Changes | None = None, limits: Limits = PATIENT
) -> Iterator[Client]:
    """Keep a plugin registered until the block ends."""
    client = Client(path, NAME, handlers, changed=changed or Changes(), limits=limits)
    client.start()
    try:
        yield client
    finally:
        client.stop()
