"""An in-memory node whose containers run real processes on a real socket; affinities are only recorded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any, NamedTuple

from agent.errors import AgentError
from agent.interfaces import ContainerExit, PassedContainer
from agent.kernel.affinity import Affinities
from agent.kernel.cgroupfs import V2, Hierarchy
from agent.kernel.process_exit import was_killed
from agent.kernel.procfs import PARENT, stat_fields
from agent.node_state import NodeState
from agent.wrappers.peer import Peer, connected
from agent.wrappers.service import Dependencies, WrapperService
from agent.wrappers.store import FILE, Store
from pinning.contract import CMK_SOCKET, PoolUse
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Owner
from pinning.pods.types import Pod
from tests.agent.states import MACHINE, bound, state_of
from tests.pods import CORES, container

SCRIPT = Path(__file__).with_name("forker.py")
SECONDS = 60.0  # time limit for each step of a test
CYCLES_AT_ONCE = 50


class Asked(NamedTuple):
    """A process that sent a request, and the answer."""

    pid: int
    word: str  # ok or error; empty if the answer is incomplete
    text: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables in the answer."""
        return dict(line.split("=", 1) for line in self.text.splitlines())


def isolate(pool: str, **values: str) -> str:
    """Return a request of `cmk isolate`."""
    lines = "".join(f"{key}={value}\n" for key, value in {"pool": pool, **values}.items())
    return f"cmk 1 isolate\n{lines}\n"


class Forker:
    """A container: a process whose children send requests."""

    def __init__(self, process: asyncio.subprocess.Process, path: str) -> None:
        self._process = process
        self._path = path
        self.pid = process.pid

    async def asks(self, request: str, times: int = 1) -> list[Asked]:
        """Let this many processes send the request at once; return the answers."""
        for _ in range(times):
            self.begin(request)
        return [await self.answer() for _ in range(times)]

    def begin(self, request: str) -> None:
        """Let one process send a request, without waiting for the answer."""
        self.order({"ask": [self._path, request, request]})

    async def ask(self, request: str, later: str = "") -> Asked:
        """Let one process send a request, with `later` as its next one."""
        self.order({"ask": [self._path, request, later or request]})
        return await self.answer()

    async def answer(self) -> Asked:
        """Return the next answer that a process got."""
        return _asked(await self.told())

    async def ask_again(self, asked: Asked) -> Asked:
        """Let a process send its next request."""
        self.order({"again": asked.pid})
        return await self.answer()

    async def kill(self, asked: Asked, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill a process."""
        self.order({"kill": asked.pid, "signal": number})
        await self.told()

    async def cycle(self, request: str, times: int) -> list[str]:
        """Let processes send a request and exit, one after the other; return the distinct answers.

        Each part has its own time limit, because a thousand forks take over a minute on a loaded machine.
        """
        answers: set[str] = set()
        for first in range(0, times, CYCLES_AT_ONCE):
            self.order({"cycle": [self._path, request, min(CYCLES_AT_ONCE, times - first)]})
            answers |= set((await self.told())["answers"])
        return sorted(answers)

    def order(self, what: object) -> None:
        """Send a command to the forker."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(what)}\n".encode())

    async def told(self) -> dict[str, Any]:
        """Return the next line that the forker writes."""
        assert self._process.stdout is not None
        async with asyncio.timeout(SECONDS):
            return dict(json.loads(await self._process.stdout.readline()))


def _asked(told: Mapping[str, Any]) -> Asked:
    head, _, body = told["answer"].partition("\n")
    word, _, length = head.partition(" ")
    is_whole = length.isdecimal() and int(length) == len(body.encode())
    return Asked(told["pid"], word if is_whole else "", body)


class Masks:
    """Affinities that were set, limited to CPUs that the kernel allows."""

    def __init__(self) -> None:
        self.put: dict[int, CPUSet] = {}
        self.allowed = CPUSet(range(4096))  # CPUs that the kernel allows

    def read(self, task: int) -> CPUSet:
        """Return the effective affinity of a thread."""
        return self.put.get(task, self.allowed) & self.allowed

    def set(self, task: int, cpus: CPUSet) -> CPUSet:
        """Set the affinity of a thread."""
        self.put[task] = cpus
        return self.read(task)

    @property
    def as_affinities(self) -> Affinities:
        """These affinities as the agent's interface."""
        return Affinities(self.read, self.set, lambda _: True)


class Scene:
    """Containers of a node, and the wrapper service of its agent, which can restart."""

    def __init__(self, folder: Path, *pods: Pod, config: NodeConfig = NodeConfig()) -> None:
        self.folder = folder
        self.pods = pods
        self.config = config
        self.machine = MACHINE
        self.ledger: Ledger | None = None
        self.masks = Masks()
        self.is_right = True
        self.passes = 0
        self.uses: Mapping[Owner, frozenset[PoolUse]] = {}
        self.gone: set[str] = set()  # exited containers
        self.shown: NodeState | None = None
        self.cgroups: dict[int, str] = {}
        self.observes = False
        self.peer_failures: list[OSError] = []  # raised by the next connections
        self.first_pids: dict[str, int] = {}  # pids of containers' first processes
        # Exit statuses are lost once the parent has reaped its child, as on kernels before 6.15.
        self.forgets_ends = False
        # Exits that the runtime reports, by container.
        self.exits: dict[str, ContainerExit | AgentError | None] = {}
        self.asked_exits: list[str] = []
        self.texts: dict[str, Callable[[NodeState], str]] = {
            "describe": lambda state: f"{len(state.tasks)}\n"
        }
        self.store = Store(folder / FILE, "boot-1")
        self.keeper = self._keeper()

    def _keeper(self) -> WrapperService:
        def peer_of(connection: socket) -> Peer:
            if self.peer_failures:
                raise self.peer_failures.pop()
            return connected(connection)

        def cgroup_of(pid: int, _: int) -> str:  # the cgroup of the forker that is its parent
            fields = stat_fields(pid)
            return self.cgroups.get(int(fields[PARENT]), "/elsewhere") if fields else "/elsewhere"

        async def exit_of(container_id: str) -> ContainerExit | None:
            self.asked_exits.append(container_id)
            said = self.exits[container_id]
            if isinstance(said, AgentError):
                raise said
            return said

        edges = Dependencies(
            Hierarchy(V2, self.folder, self.folder),
            peer_of,
            cgroup_of,
            self.masks.as_affinities,
            was_killed=lambda *process: None if self.forgets_ends else was_killed(*process),
            exit_of=exit_of,
        )
        return WrapperService(
            self.folder / "install", edges, self.store, self.texts, is_strict=self.config.strict_threads
        )

    def state(self) -> NodeState:
        """Return the node state of a pass."""
        config = replace(self.config, observe=self.observes)
        return state_of(*self.pods, config=config, machine=self.machine, ledger=self.ledger)

    def run_pass(self) -> None:
        """Do what a pass of the agent does for wrappers."""
        self.passes += 1
        self.uses = self.keeper.uses()
        state = self.state()
        self.ledger = state.ledger
        self.keeper.passed(state, self.passed_containers(state))
        self.show()

    def passed_containers(self, state: NodeState) -> list[PassedContainer]:
        """Return the live containers of a pass."""
        return [
            PassedContainer(
                f"{pod.uid}/{each.name}",
                Owner(pod.uid, each.name),
                f"{pod.namespace}/{pod.name}/{each.name}",
                f"/pods/{pod.uid}/{each.name}",
                each.cpus,
                self.first_pids.get(f"{pod.uid}/{each.name}", 0),
                is_right=self.is_right,
            )
            for pod in state.pods
            for each in pod.containers
            if f"{pod.uid}/{each.name}" not in self.gone
        ]

    def show(self) -> None:
        """Update the published state."""
        if self.ledger is not None:
            self.shown = self.keeper.shown(self.state())

    @property
    def reclaimed(self) -> list[tuple[int, str, str]]:
        """The process, pool and CPU list of each reclaimed entry."""
        entries = self.shown.reclaimed if self.shown else ()
        return [(entry.pid, entry.pool, entry.cpus) for entry in entries]

    @property
    def tasks(self) -> dict[int, str]:
        """The CPUs of each process in the published state."""
        return {task.pid: str(task.cpus) for task in self.shown.tasks} if self.shown else {}

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[None]:
        """Run the wrapper service; requested passes run in the event loop."""
        loop, place = asyncio.get_running_loop(), self.folder / "install" / CMK_SOCKET
        before = place.stat().st_ino if place.exists() else 0
        running = loop.create_task(self.keeper.run(lambda: _soon(loop, self.run_pass), self.show))
        try:
            async with asyncio.timeout(SECONDS):
                while not place.exists() or place.stat().st_ino == before:
                    await asyncio.sleep(0.001)
            yield
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    def restart(self) -> None:
        """Replace the agent by a new one on the same state directory."""
        self.shown = None
        self.keeper = self._keeper()

    @asynccontextmanager
    async def container(self, pod: str = "p", name: str = "main") -> AsyncIterator[Forker]:
        """Run a container, and kill all its processes at the end."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(SCRIPT)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=2**22,
        )
        self.cgroups[process.pid] = f"/pods/{pod}/{name}"
        try:
            yield Forker(process, str(self.folder / "install" / CMK_SOCKET))
        finally:
            end_session(process.pid)
            await process.wait()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        async with asyncio.timeout(SECONDS):
            while not is_true():
                await asyncio.sleep(0.001)


def _soon(loop: asyncio.AbstractEventLoop, run_pass: Callable[[], None]) -> None:
    loop.call_soon(run_pass)


def end_session(pid: int) -> None:
    """Kill a process and everything that it forked."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def cmk_pod(name: str = "p", cores: int = 2, **more: Any) -> Pod:
    """Return a pod with CMK's resource, as CMK's webhook leaves it."""
    return bound(
        name, container("main", {CORES: str(cores), "cpu": "4"}, {CORES: str(cores), "cpu": "4"}), **more
    )


def plain_pod(name: str = "q") -> Pod:
    """Return a pod without CPUs of its own."""
    return bound(name, container("main"))
