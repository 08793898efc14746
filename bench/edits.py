"""Edit one pod again and again: the time until the kernel was read back for every container of the node, and its cost.

Agent, stop watch and an API server that says yes to everything are in one process. Its CPU time is what the agent
needs on any machine; the time on the clock is that and what others took of the CPUs and of the disk meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import httpx

from agent.config import AgentConfig
from agent.kubeapi import Access, Api
from agent.process import Agent, Listeners
from agent.wiring import build, reporters

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from agent.checkpoint import Saved, StateDir
    from agent.state import ContainerState, NodeState

CRANE: Final = "qos.gocrane.io/cpu-manager"
POLICIES: Final = ("exclusive", "none", "share", "exclusive", "share", "none", "exclusive", "none")
PAUSE_SECONDS: Final = 0.01  # between two edits
TARGET_SECONDS: Final = 0.05  # design section 7
POD: Final = """\
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  uid: uid-{name}
  annotations: {{{annotations}}}
spec:
  containers:
  - name: main
    command: [sleep, "100000"]
    resources: {{limits: {{cpu: {cpu}}}}}
"""


def config(folder: Path) -> AgentConfig:
    """Return an agent that runs the pods of a folder."""
    (folder / "pods").mkdir(exist_ok=True)
    return AgentConfig("bench", folder / "state", runtime="local", pods_dir=folder / "pods")


def write_bystanders(folder: Path, count: int) -> None:
    """Write pods that ask for nothing, all in one file."""
    pods = [POD.format(name=f"pod-{number}", annotations="", cpu="100m") for number in range(count)]
    (folder / "pods").mkdir(exist_ok=True)
    (folder / "pods/bystanders.yaml").write_text("---\n".join(pods))


def edit(folder: Path, policy: str) -> None:
    """Replace the manifest of the pod that is edited."""
    new = folder / "edited.new"
    new.write_text(POD.format(name="edited", annotations=f"{CRANE}: {policy}", cpu="1"))
    new.replace(folder / "pods/edited.yaml")


@dataclass
class Taken:
    """What the edits took."""

    wall: dict[str, list[float]] = field(
        default_factory=dict
    )  # seconds until the read back, by kind of change
    cpu: dict[str, list[float]] = field(default_factory=dict)  # of the process until then
    disk: list[float] = field(default_factory=list)  # seconds until the checkpoint was on disk, once each
    whole_cpu: float = 0.0  # of the process for all edits, with what comes after the read back
    requests: Counter[str] = field(default_factory=Counter)  # to the API server, by kind

    @property
    def count(self) -> int:
        """How many edits there were."""
        return sum(map(len, self.wall.values()))


class YesServer:
    """An API server that takes everything."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Count a request, and agree."""
        parts = request.url.path.split("/")
        kinds = [part for part in parts if part in {"pods", "nodes", "events", "configmaps"}]
        self.requests[f"{request.method} {kinds[-1] if kinds else request.url.path}"] += 1
        version = str(self.requests.total())
        return httpx.Response(httpx.codes.OK, json={"metadata": {"resourceVersion": version}, "status": {}})


def time_saves(state_dir: StateDir, times: list[float]) -> None:
    """Note how long each checkpoint takes."""
    save = state_dir.save

    def timed(saved: Saved) -> None:
        began = time.perf_counter()
        save(saved)
        times.append(time.perf_counter() - began)

    state_dir.save = timed  # type: ignore[method-assign]


class StopWatch:
    """Sees every state that the agent tells, as a reporter in front of all others."""

    def __init__(self, agent: Agent) -> None:
        self._tell = agent.publisher.tell
        self._news = asyncio.Event()
        self._state: NodeState | None = None
        agent.publisher.tell = self._told  # type: ignore[method-assign]

    def _told(self, state: NodeState) -> None:
        self._state = state
        self._tell(state)
        self._news.set()

    async def until(self, policy: str, count: int) -> None:
        """Wait until the edited pod has a policy, and every container of the node is where it shall be."""
        while not (self._state and is_settled(self._state, policy, count)):
            await self._news.wait()
            self._news.clear()


def is_settled(state: NodeState, policy: str, count: int) -> bool:
    """Say whether the kernel was read back right for every container."""
    found: dict[str, ContainerState] = {pod.name: one for pod in state.pods for one in pod.containers}
    edited = found.get("edited")
    is_there = edited is not None and str(edited.policy or "none") == policy
    return is_there and len(found) == count and all(one.applied == one.cpus for one in found.values())


async def _agent(folder: Path, server: YesServer, taken: Taken) -> Agent:
    """Return an agent that tells a server."""
    chosen = config(folder)
    parts = (await build(chosen))._parts  # noqa: SLF001 the same agent, but for whom it tells
    time_saves(parts.state_dir, taken.disk)
    api = Api(Access("https://bench"), httpx.MockTransport(server.answer))
    told = reporters(chosen, api, parts.seams.pods, parts.metrics)
    return Agent(replace(parts, reporters=told))


async def measure_edits(folder: Path, pods: int, edits: int) -> Taken:
    """Edit one pod again and again."""
    write_bystanders(folder, pods - 1)
    edit(folder, "none")
    server, taken = YesServer(), Taken()
    agent = await _agent(folder, server, taken)
    watch = StopWatch(agent)
    serving = asyncio.create_task(agent.serve(Listeners()))
    await watch.until("none", pods)
    server.requests.clear()
    taken.disk.clear()
    whole, before = time.process_time(), "none"
    for number in range(edits):
        policy = POLICIES[number % len(POLICIES)]
        wall, cpu = time.perf_counter(), time.process_time()
        edit(folder, policy)
        await watch.until(policy, pods)
        kind = f"{before} -> {policy}"
        taken.wall.setdefault(kind, []).append(time.perf_counter() - wall)
        taken.cpu.setdefault(kind, []).append(time.process_time() - cpu)
        before = policy
        await asyncio.sleep(PAUSE_SECONDS)
    taken.whole_cpu = time.process_time() - whole
    taken.requests = server.requests
    serving.cancel()
    await asyncio.wait([serving])
    return taken


def table(taken: Taken) -> Iterator[str]:
    """Yield the lines: clock and CPU time by kind of change, the whole cost of an edit, and the verdict."""
    kinds = [*taken.wall, "all"]
    wall, cpu = (
        {**by, "all": [one for kind in by.values() for one in kind]} for by in (taken.wall, taken.cpu)
    )
    yield f"  {'':22} {'':>5}    clock: p50     p90     p99     max    CPU: p50     p99  (ms)"
    for kind in kinds:
        clock = "".join(f"{_at(wall[kind], share) * 1e3:8.1f}" for share in (0.5, 0.9, 0.99, 1.0))
        own = "".join(f"{_at(cpu[kind], share) * 1e3:8.1f}" for share in (0.5, 0.99))
        yield f"  {kind:22} {len(wall[kind]):5}    {clock}    {own}"
    saves = "".join(f"{_at(taken.disk, share) * 1e3:8.1f}" for share in (0.5, 0.9, 0.99, 1.0))
    yield f"  {'of it the checkpoint':22} {len(taken.disk):5}    {saves}"
    yield f"  CPU of one edit with its proof, its reports and the runtime: {taken.whole_cpu / taken.count * 1e3:.1f} ms"
    told = ", ".join(f"{number / taken.count:.2f} {kind}" for kind, number in sorted(taken.requests.items()))
    yield f"  requests to the API server for one edit: {told or 'none'}"
    found = _at(wall["all"], 0.99)
    yield f"{'holds ' if found < TARGET_SECONDS else 'MISSED'}  p99 {found * 1e3:.1f} ms, target {TARGET_SECONDS * 1e3:.0f} ms"


def _at(times: Sequence[float], share: float) -> float:
    """Return what a share of the times is not above."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
