"""One pod of the runtime `local`, from its first container to its last; a kubelet's part, done in steps.

Each step looks at what runs and does what is due (`agent.local.spec` says what that is). Nothing waits in here:
whoever calls is hinted when the next step is worth it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.interfaces import RuntimeContainer
from agent.local.affinity import MARK
from agent.local.process import Process, adopt, kill_all, spawn
from agent.local.spec import ContainerSpec, Ended, PodRun, due, final_phase
from apiserver.backoff import Backoff
from pinning.planning.observed import State
from pinning.pods.resources import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.local.cgroups import ContainerCgroups

logger = logging.getLogger(__name__)

FIRST_RESTART_SECONDS: Final = 1.0
LONGEST_RESTART_SECONDS: Final = 60.0
LOOK_AGAIN_SECONDS: Final = 0.02  # until killed processes have left their cgroup
GRACE_SECONDS: Final = 30.0
NOT_STARTED: Final = 128  # the code of a container whose process could not be started
_numbers: Final = count(1)


@dataclass(slots=True, eq=False)
class LocalContainer:
    """One start of a container."""

    id: str
    name: str
    cgroup: str
    process: Process | None = None
    end: Ended | None = None
    is_shown: bool = False  # the agent has seen it created
    is_asked: bool = False  # to end
    has_home: bool = True  # its cgroup is there

    @property
    def state(self) -> State:
        """Where it is in its life."""
        if self.end:
            return State.EXITED
        return State.RUNNING if self.process else State.CREATED


@dataclass(slots=True)
class LocalPod:
    """The containers of one pod."""

    uid: str
    cgroup: str
    homes: ContainerCgroups
    logs: Path | None
    hint: Callable[[], None]
    run: PodRun | None = None  # None: an earlier agent began it, and no manifest was seen yet
    containers: dict[str, LocalContainer] = field(default_factory=dict)
    phase: str | None = None  # once it is final
    is_ending: bool = False  # its manifest is gone
    _stops_at: float | None = None  # when its processes are killed; None: nobody asked them to end
    _backoffs: dict[str, Backoff] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)

    @property
    def live(self) -> frozenset[str]:
        """The containers that run, or will."""
        return frozenset(name for name, one in self.containers.items() if not one.end)

    @property
    def ended(self) -> dict[str, Ended]:
        """How containers ended."""
        return {name: one.end for name, one in self.containers.items() if one.end}

    @property
    def is_gone(self) -> bool:
        """Say whether nothing of it is left that anybody wants."""
        return self.is_ending and not any(not one.end or one.has_home for one in self.containers.values())

    @property
    def _is_running(self) -> bool:
        """Say whether all that its manifest names runs, and nothing else is due."""
        if self.run is None or self.is_ending or self.phase:
            return False
        are_there = all(one.name in self.containers for one in self.run.containers)
        return are_there and all(one.process and not one.end for one in self.containers.values())

    def listed(self) -> Iterator[RuntimeContainer]:
        """Yield its containers as the agent sees them."""
        for one in self.containers.values():
            yield RuntimeContainer(
                id=one.id,
                pod_uid=self.uid,
                namespace=self.run.namespace if self.run else "",
                pod=self.run.name if self.run else self.uid,
                name=one.name,
                state=one.state,
                pid=one.process.pid if one.process and not one.end else 0,
                cgroup=one.cgroup,
            )
            if one.state is State.CREATED:
                one.is_shown = True
                self.hint()

    def find(self, container_id: str) -> LocalContainer | None:
        """Return the live container of an id."""
        return next((one for one in self.containers.values() if one.id == container_id and not one.end), None)

    def adopt(self, name: str) -> None:
        """Take over a container that an earlier agent started."""
        container = self._new(name)
        container.process = adopt(self.homes.pids(container.cgroup))
        if container.process:
            container.process.watch(lambda: self._over(container))
            self.containers[name] = container

    def begin(self, run: PodRun) -> None:
        """Run what a manifest says. Init containers before one that runs already have done their work."""
        is_new, self.run = self.run is None, run
        if not is_new:
            return
        names = [one.name for one in run.containers]
        reached = max((names.index(name) for name in self.live if name in names), default=0)
        for one in run.containers[:reached]:
            if one.role is Role.INIT and one.name not in self.containers:
                container = self.containers[one.name] = self._new(one.name)
                container.end, container.has_home = Ended(0), False

    def step(self) -> None:
        """Do what is due."""
        if self._is_running:
            return
        if self.run and not self.is_ending and self.phase is None:
            self._start_created()
            self._create_due(self.run)
            self.phase = final_phase(self.run, self.live, self.ended)
        if self.is_ending or self.phase:
            self._stop()
        self._clean()

    def start(self, container: LocalContainer) -> None:
        """Start a container that is created, inside its cgroup from its first instruction."""
        spec = self._spec(container.name)
        if container.state is not State.CREATED or spec is None:
            return
        try:
            container.process = spawn(spec.command, self._environment(spec, container), self._log(spec))
            container.process.watch(lambda: self._over(container))
            self.homes.enter(container.cgroup, container.process.pid)
            container.process.let_go()
        except AgentError as error:
            self._failed(container, error)
        self.hint()

    def end(self) -> None:
        """Let everything end: the manifest is gone."""
        self.is_ending = True

    def close(self) -> None:
        """Leave every process as it is."""
        for one in self.containers.values():
            if one.process:
                one.process.close()

    def _new(self, name: str) -> LocalContainer:
        return LocalContainer(f"{self.uid}/{name}/{next(_numbers)}", name, f"{self.cgroup}/{name}")

    def _spec(self, name: str) -> ContainerSpec | None:
        return next((one for one in self.run.containers if one.name == name), None) if self.run else None

    def _environment(self, spec: ContainerSpec, container: LocalContainer) -> dict[str, str]:
        return {**spec.environment, MARK: container.cgroup}

    def _log(self, spec: ContainerSpec) -> Path | None:
        return (
            self.logs / f"{self.run.namespace}_{self.run.name}_{spec.name}.log"
            if self.logs and self.run
            else None
        )

    def _start_created(self) -> None:
        """Start what the agent has seen created and sent no CPUs for: it is right as it is, or cannot be helped."""
        for one in list(self.containers.values()):
            if one.state is State.CREATED and one.is_shown:
                self.start(one)

    def _create_due(self, run: PodRun) -> None:
        for spec in due(run, self.live, self.ended):
            if time.monotonic() < self._not_before.get(spec.name, 0.0):
                continue
            container = self._new(spec.name)
            try:
                self.homes.make(container.cgroup)
            except AgentError as error:
                container.has_home = False
                self._failed(container, error)
            self.containers[spec.name] = container

    def _failed(self, container: LocalContainer, error: AgentError) -> None:
        facts = {"container": container.name, "pod": self.run.name if self.run else self.uid}
        logger.warning("container not started", extra={"facts": {**facts, "reason": str(error)}})
        if container.process is None:
            self._over(container, NOT_STARTED)
            return
        container.process.signal(signal.SIGKILL)

    def _over(self, container: LocalContainer, code: int | None = None) -> None:
        """Take note of an end, and of when the container may start again."""
        if code is None and container.process:
            code = container.process.code
        container.end = Ended(code)
        backoff = self._backoffs.setdefault(
            container.name, Backoff(FIRST_RESTART_SECONDS, LONGEST_RESTART_SECONDS)
        )
        wait = backoff.next()
        self._not_before[container.name] = time.monotonic() + wait
        self._later(wait)
        self.hint()

    def _stop(self) -> None:
        """Ask everything to end, sidecars last; after the time of grace do not ask."""
        if self._stops_at is None:
            grace = self.run.grace_seconds if self.run else GRACE_SECONDS
            self._stops_at = time.monotonic() + grace
            self._later(grace)
        for one in list(self.containers.values()):
            if one.state is State.CREATED:
                one.end = Ended(None)
            elif not one.end and time.monotonic() >= self._stops_at:
                kill_all(partial(self.homes.pids, one.cgroup))
        for one in self._first_to_end():
            if one.process and not one.is_asked:
                one.is_asked = True
                one.process.signal(signal.SIGTERM)

    def _first_to_end(self) -> list[LocalContainer]:
        live = [one for one in self.containers.values() if not one.end]
        specs = [(one, self._spec(one.name)) for one in live]
        return [one for one, spec in specs if not spec or spec.role is not Role.SIDECAR] or live

    def _clean(self) -> None:
        """Kill what ended containers left running, and remove their cgroups once nothing will run there again."""
        for one in self.containers.values():
            if one.end and one.has_home:
                self._clean_home(one, is_over=self.is_ending or self.phase is not None)

    def _clean_home(self, one: LocalContainer, *, is_over: bool) -> None:
        left = self.homes.pids(one.cgroup)
        if left:
            kill_all(partial(self.homes.pids, one.cgroup))
        elif is_over:
            one.has_home = not self.homes.remove(one.cgroup)
        if left or (is_over and one.has_home):
            self._later(LOOK_AGAIN_SECONDS)

    def _later(self, seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, self.hint)
