"""Lifecycle of one pod of the runtime `local`, as the kubelet runs it, in steps.

Each step compares the running containers with `agent.local.spec`, and starts or stops those that differ. No step waits;
a callback reports when the next step is due.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.interfaces import RuntimeContainer, RuntimeSandbox
from agent.local.affinity import MARK
from agent.local.container import ID, LocalContainer
from agent.local.pod_shutdown import PodShutdown
from agent.local.process import adopt, spawn
from agent.local.spec import ContainerSpec, Ended, PodRun, due, final_phase
from apiserver.backoff import Backoff
from pinning.planning.observed import State
from pinning.pods.resources import Role
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.local.cgroups import ContainerCgroups

logger = logging.getLogger(__name__)

FIRST_RESTART_SECONDS: Final = 1.0
LONGEST_RESTART_SECONDS: Final = 60.0
GRACE_SECONDS: Final = 30.0
CLASS: Final = "COREPIN_LOCAL_CLASS"  # environment variable with the runtime class of a process
NOT_STARTED: Final = 128  # exit code of a container whose process could not be started


class LocalPod:
    """The containers of one pod; `changed` is called when the next step is due."""

    def __init__(
        self, uid: str, cgroup: str, cgroups: ContainerCgroups, logs: Path | None, changed: Callable[[], None]
    ) -> None:
        self.uid = uid
        # The pod by its manifest; None: an earlier agent started the pod, and its manifest was not read yet.
        self.run: PodRun | None = None
        self.phase: str | None = None  # the pod's final phase; None: it has not ended
        self.is_ending = False  # the manifest was removed
        # Runtime class by the manifest, or by a process that an earlier agent started.
        self._runtime_class = ""
        self._cgroup = cgroup
        self._cgroups = cgroups
        self._logs = logs
        self._changed = changed
        self._containers: dict[str, LocalContainer] = {}
        self._shutdown = PodShutdown(cgroups, self._later)
        self._backoffs: dict[str, Backoff] = {}
        self._not_before: dict[str, float] = {}

    @property
    def live(self) -> frozenset[str]:
        """The containers that run or are created."""
        return frozenset(name for name, container in self._containers.items() if not container.end)

    @property
    def ended(self) -> dict[str, Ended]:
        """How each exited container ended, by container name."""
        return {name: container.end for name, container in self._containers.items() if container.end}

    @property
    def is_gone(self) -> bool:
        """Return whether the pod has ended and can be removed."""
        containers = self._containers.values()
        return self.is_ending and all(container.end and not container.has_cgroup for container in containers)

    @property
    def _is_running(self) -> bool:
        """Return whether every container of the manifest runs, so that no step is due."""
        if self.run is None or self.is_ending or self.phase:
            return False
        are_there = all(spec.name in self._containers for spec in self.run.containers)
        return are_there and all(container.pid for container in self._containers.values())

    @property
    def sandbox(self) -> RuntimeSandbox | None:
        """The sandbox in the pod's cgroup, if the pod's runtime class is for VMs and a container is live; else None."""
        if is_vm_handler(self._runtime_class) and self.live:
            return _sandbox(self.uid, self._cgroup, self._runtime_class, self.run)
        return None

    def listed(self) -> Iterator[RuntimeContainer]:
        """Yield the pod's containers in the form of a runtime's list; mark created ones as listed."""
        in_vm = is_vm_handler(self._runtime_class)
        for container in self._containers.values():
            yield RuntimeContainer(
                id=container.id,
                pod_uid=self.uid,
                namespace=self.run.namespace if self.run else "",
                pod=self.run.name if self.run else self.uid,
                name=container.name,
                state=container.state,
                pid=container.pid,
                cgroup=None if in_vm else container.cgroup,
                in_vm=in_vm,
                sandbox=self.uid if in_vm else "",
            )
            if container.state is State.CREATED:
                container.is_shown = True
                self._changed()

    def find(self, container_id: str) -> LocalContainer | None:
        """Return the live container with an id; None if there is none."""
        live = (container for container in self._containers.values() if not container.end)
        return next((container for container in live if container.id == container_id), None)

    def adopt(self, name: str) -> None:
        """Adopt a container that an earlier agent started."""
        container = self._new(name)
        container.process = adopt(self._cgroups.pids(container.cgroup))
        if container.process:
            container.id = container.known_by(container.process.variable(ID))
            self._runtime_class = self._runtime_class or container.process.variable(CLASS) or ""
            container.process.watch(lambda: self._over(container))
            self._containers[name] = container

    def begin(self, run: PodRun) -> None:
        """Run a manifest; init containers that come before a running container are taken for completed."""
        is_new, self.run, self._runtime_class = self.run is None, run, run.runtime_class
        if not is_new:
            return
        names = [spec.name for spec in run.containers]
        reached = max((names.index(name) for name in self.live if name in names), default=0)
        for spec in run.containers[:reached]:
            if spec.role is Role.INIT and spec.name not in self._containers:
                container = self._containers[spec.name] = self._new(spec.name)
                container.end, container.has_cgroup = Ended(0), False

    def step(self) -> None:
        """Start and stop the containers that are due."""
        if self._is_running:
            return
        if self.run and not self.is_ending and self.phase is None:
            self._start_created()
            self._create_due(self.run)
            self.phase = final_phase(self.run, self.live, self.ended)
        if self.is_ending or self.phase:
            grace_seconds = self.run.grace_seconds if self.run else GRACE_SECONDS
            self._shutdown.stop(self._containers.values(), self._sidecars(), grace_seconds)
        self._shutdown.clean(self._containers.values(), is_over=self.is_ending or self.phase is not None)

    def start(self, container: LocalContainer) -> None:
        """Start a container that is created, inside its cgroup from its first instruction."""
        spec = self._spec(container.name)
        if container.state is not State.CREATED or spec is None:
            return
        try:
            container.process = spawn(
                spec.command,
                {**spec.environment, MARK: container.cgroup, ID: container.id, CLASS: self._runtime_class},
                self._log(spec),
            )
            container.process.watch(lambda: self._over(container))
            self._cgroups.enter(container.cgroup, container.process.pid)
            container.process.let_go()
        except AgentError as error:
            self._failed(container, error)
        self._changed()

    def end(self) -> None:
        """End all containers, because the manifest was removed."""
        self.is_ending = True

    def close(self) -> None:
        """Stop watching the processes, which keep running."""
        for container in self._containers.values():
            if container.process:
                container.process.close()

    def _new(self, name: str) -> LocalContainer:
        return LocalContainer.new(self.uid, name, self._cgroup)

    def _spec(self, name: str) -> ContainerSpec | None:
        return next((spec for spec in self.run.containers if spec.name == name), None) if self.run else None

    def _sidecars(self) -> frozenset[str]:
        specs = self.run.containers if self.run else ()
        return frozenset(spec.name for spec in specs if spec.role is Role.SIDECAR)

    def _log(self, spec: ContainerSpec) -> Path | None:
        return (
            self._logs / f"{self.run.namespace}_{self.run.name}_{spec.name}.log"
            if self._logs and self.run
            else None
        )

    def _start_created(self) -> None:
        """Start the created containers that a pass has listed and sent no CPUs to."""
        for container in list(self._containers.values()):
            if container.state is State.CREATED and container.is_shown:
                self.start(container)

    def _create_due(self, run: PodRun) -> None:
        for spec in due(run, self.live, self.ended):
            if time.monotonic() < self._not_before.get(spec.name, 0.0):
                continue
            container = self._new(spec.name)
            try:
                self._cgroups.make(container.cgroup)
            except AgentError as error:
                container.has_cgroup = False
                self._failed(container, error)
            self._containers[spec.name] = container

    def _failed(self, container: LocalContainer, error: AgentError) -> None:
        facts = {"container": container.name, "pod": self.run.name if self.run else self.uid}
        logger.warning("container not started", extra={"facts": {**facts, "reason": str(error)}})
        if container.process is None:
            self._over(container, NOT_STARTED)
            return
        container.process.signal(signal.SIGKILL)

    def _over(self, container: LocalContainer, code: int | None = None) -> None:
        """Record the end of a container, and when it may start again."""
        if code is None and container.process:
            code = container.process.code
        container.end = Ended(code)
        backoff = self._backoffs.setdefault(
            container.name, Backoff(FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS)
        )
        wait = backoff.next()
        self._not_before[container.name] = time.monotonic() + wait
        self._later(wait)
        self._changed()

    def _later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self._changed)


def _sandbox(uid: str, cgroup: str, runtime_class: str, run: PodRun | None) -> RuntimeSandbox:
    """Return the virtual machine of a pod; without a manifest its names and limits are unknown."""
    names = (run.namespace, run.name) if run else ("", uid)
    has_quota = run is not None and run.has_cpu_limit
    return RuntimeSandbox(uid, uid, *names, runtime_class, cgroup=cgroup, has_quota=has_quota)
