"""Repeated edits of one pod: time and cost until the kernel's read-back for every container of the node.

Agent, stop watch and an API server that accepts everything are in one process. Because times depend on the
machine, the same cpusets are written and read back without the agent between two edits, and the target is a
ratio. The clock starts when the watch has delivered the edit, and stops at the last read-back of its pass.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING, Final

import httpx

from agent.config import AgentConfig
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy
from agent.main import build, reporters
from agent.process import Agent, Listeners
from apiserver.access import Access
from apiserver.client import Api
from bench import percentile
from bench.bare import Moment, bare_writes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from agent.interfaces import Interfaces
    from agent.node_state import ContainerState, NodeState
    from agent.reconcile.checkpoint import Saved, StateDir
    from pinning.machine.cpuset import CPUSet

CRANE: Final = "qos.gocrane.io/cpu-manager"
POLICIES: Final = ("exclusive", "none", "share", "exclusive", "share", "none", "exclusive", "none")
LOOK_SECONDS: Final = 0.01  # poll interval of the idle check
IDLE_SHARE: Final = 0.05  # CPU share of an idle agent
LIMITS: Final = ((0.5, 3.0), (0.99, 5.0))  # percentile, and its limit in medians of the baseline
MOVING: Final = "that move every container"
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
    """Write pods without claims, all in one file."""
    pods = [POD.format(name=f"pod-{number}", annotations="", cpu="100m") for number in range(count)]
    (folder / "pods").mkdir(exist_ok=True)
    (folder / "pods/bystanders.yaml").write_text("---\n".join(pods))


def edit(folder: Path, policy: str) -> None:
    """Replace the manifest of the edited pod."""
    new = folder / "edited.new"
    new.write_text(POD.format(name="edited", annotations=f"{CRANE}: {policy}", cpu="1"))
    new.replace(folder / "pods/edited.yaml")


@dataclass
class Taken:
    """The times of the edits, in seconds."""

    # from the delivery to the last read-back, by kind
    edits: dict[str, list[Moment]] = field(default_factory=dict)
    bare: list[Moment] = field(default_factory=list)  # baseline: the same number of writes, each read back
    delivery: list[float] = field(default_factory=list)  # from the edit until the watch delivered it
    # until the checkpoint was written; it is flushed after the edit
    disk: list[float] = field(default_factory=list)
    whole_cpu: float = 0.0  # CPU time of the process for all edits, including work after the read-back
    requests: Counter[str] = field(default_factory=Counter)  # to the API server, by kind


class YesServer:
    """An API server that accepts everything."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Count a request, and accept it."""
        parts = request.url.path.split("/")
        kinds = [part for part in parts if part in {"pods", "nodes", "events", "configmaps"}]
        self.requests[f"{request.method} {kinds[-1] if kinds else request.url.path}"] += 1
        version = str(self.requests.total())
        return httpx.Response(httpx.codes.OK, json={"metadata": {"resourceVersion": version}, "status": {}})


def time_saves(state_dir: StateDir, times: list[float]) -> None:
    """Record the time of each checkpoint."""
    save = state_dir.save

    def timed(saved: Saved) -> None:
        began = time.perf_counter()
        save(saved)
        times.append(time.perf_counter() - began)

    state_dir.save = timed  # type: ignore[method-assign]


class StopWatch:
    """Records each delivery of the pod source, each read of a cpuset, and every state before reporters."""

    def __init__(self, agent: Agent, interfaces: Interfaces) -> None:
        self.delivered = self.read_back = Moment.now()
        self._last = (
            0.0  # wall time of the last read; the CPU time is not taken, because that costs more than a read
        )
        self._submit, self._watch, self._read = (
            agent.publisher.submit,
            interfaces.pods.watch,
            interfaces.cgroups.cpusets.read,
        )
        self.machine = interfaces.machine
        self._news = asyncio.Event()
        self._state: NodeState | None = None
        agent.publisher.submit = self._received  # type: ignore[method-assign]
        interfaces.pods.watch = self._watched  # type: ignore[method-assign]
        interfaces.cgroups.cpusets.read = self._was_read  # type: ignore[method-assign]

    async def _watched(self, changed: Callable[[], None]) -> None:
        def delivered() -> None:
            self.delivered = Moment.now()
            changed()

        await self._watch(delivered)

    def _was_read(self, cgroup: str) -> CPUSet:
        found = self._read(cgroup)
        self._last = time.perf_counter()
        return found

    def _received(self, state: NodeState) -> None:
        self._state, self.read_back = state, Moment(self._last, time.process_time())
        self._submit(state)
        self._news.set()

    async def until(self, policy: str, count: int) -> None:
        """Wait until the edited pod has a policy, and every container of the node has reached its CPUs."""
        while not (self._state and is_settled(self._state, policy, count)):
            await self._news.wait()
            self._news.clear()


def is_settled(state: NodeState, policy: str, count: int) -> bool:
    """Return whether the read-back of every container has its CPUs."""
    found: dict[str, ContainerState] = {
        pod.name: container for pod in state.pods for container in pod.containers
    }
    edited = found.get("edited")
    is_there = edited is not None and str(edited.policy or "none") == policy
    return (
        is_there
        and len(found) == count
        and all(container.applied == container.cpus for container in found.values())
    )


async def _agent(folder: Path, server: YesServer, taken: Taken) -> tuple[Agent, StopWatch]:
    """Return an agent that reports to a server, and its stop watch."""
    chosen = config(folder)
    parts = (await build(chosen))._parts  # noqa: SLF001 the same agent, but for whom it tells
    time_saves(parts.state_dir, taken.disk)
    api = Api(Access("https://bench"), "bench", httpx.MockTransport(server.answer))
    reporting = reporters(chosen, api, parts.interfaces.pods, parts.metrics)
    agent = Agent(replace(parts, reporters=reporting))
    gc.collect()
    gc.freeze()  # as the agent's process does
    return agent, StopWatch(agent, parts.interfaces)


async def measure_edits(folder: Path, pods: int, edits: int) -> Taken:
    """Edit one pod repeatedly."""
    write_bystanders(folder, pods - 1)
    edit(folder, "none")
    server, taken = YesServer(), Taken()
    agent, watch = await _agent(folder, server, taken)
    serving = asyncio.create_task(agent.serve(Listeners()))
    await watch.until("none", pods)
    server.requests.clear()
    taken.disk.clear()
    before = "none"
    for number in range(edits):
        policy = POLICIES[number % len(POLICIES)]
        await _measure_bare(agent, watch, taken)
        await _measure_edit(folder, watch, taken, (before, policy), pods)
        before = policy
    taken.requests = server.requests
    serving.cancel()
    await asyncio.wait([serving])
    return taken


async def _measure_bare(agent: Agent, watch: StopWatch, taken: Taken) -> None:
    """Measure the baseline writes, after which all cpusets have the agent's values again."""
    records = agent.reconciler.observer.records.values()
    cpusets = {record.cgroup: record.applied for record in records if record.cgroup}
    taken.bare += bare_writes(
        find_hierarchy(DEFAULT_ROOT), cpusets, watch.machine.universe(watch.machine.topology())
    )
    await _until_idle()


async def _measure_edit(
    folder: Path, watch: StopWatch, taken: Taken, change: tuple[str, str], pods: int
) -> None:
    began = Moment.now()
    edit(folder, change[1])
    await watch.until(change[1], pods)
    taken.delivery.append(watch.delivered.since(began).wall)
    taken.edits.setdefault(" -> ".join(change), []).append(watch.read_back.since(watch.delivered))
    await _until_idle()
    taken.whole_cpu += Moment.now().since(began).cpu


async def _until_idle() -> None:
    """Wait until the agent's CPU share is below IDLE_SHARE, so that checks, reports and runtime updates are done."""
    while True:
        began = Moment.now()
        await asyncio.sleep(LOOK_SECONDS)
        taken = Moment.now().since(began)
        if taken.cpu < IDLE_SHARE * taken.wall:
            return


def table(taken: Taken) -> Iterator[str]:
    """Yield the lines: clock and CPU time by kind of change, the total cost of an edit, and the verdicts."""
    yield f"  {'ms':27} {'':>5}     p50     p90     p99     max    CPU: p50     p99"
    moving = [moment for kind, times in taken.edits.items() if "exclusive" in kind for moment in times]
    lines = {**taken.edits, MOVING: moving, "bare writes, read back": taken.bare}
    for name, times in lines.items():
        own = "".join(
            f"{percentile((moment.cpu for moment in times), share) * 1e3:8.1f}" for share in (0.5, 0.99)
        )
        yield f"{_times(name, [moment.wall for moment in times])}    {own}"
    yield _times("checkpoint, within the edit", taken.disk)
    yield _times("delivery, before the edit", taken.delivery)
    count = len(taken.delivery)
    yield f"  CPU of one edit with its delivery, proof, reports and runtime: {taken.whole_cpu / count * 1e3:.1f} ms"
    requests = ", ".join(f"{number / count:.2f} {kind}" for kind, number in sorted(taken.requests.items()))
    yield f"  requests to the API server for one edit: {requests or 'none'}"
    yield from _verdicts(moving, taken.bare)


def _verdicts(edits: Sequence[Moment], bare: Sequence[Moment]) -> Iterator[str]:
    """Yield whether the edits that move every container are within their multiples of the baseline's median."""
    (wall, bare_wall), (cpu, bare_cpu) = (
        ([getattr(moment, clock) for moment in edits], [getattr(moment, clock) for moment in bare])
        for clock in Moment._fields
    )
    for share, limit in LIMITS:
        found = percentile(wall, share) / median(bare_wall)
        alike = percentile(wall, share) / percentile(bare_wall, share)
        beside = f"CPU time {percentile(cpu, share) / median(bare_cpu):.2f} x; {alike:.2f} x their own p{share * 100:.0f}"
        verdict = "holds " if found <= limit else "MISSED"
        sentence = f"{found:.2f} x the median of the bare writes, target {limit:.0f} x ({beside})"
        yield f"{verdict}  p{share * 100:.0f} of the edits {MOVING}: {sentence}"


def _times(name: str, times: Iterable[float]) -> str:
    kept = list(times)
    shown = "".join(f"{percentile(kept, share) * 1e3:8.1f}" for share in (0.5, 0.9, 0.99, 1.0))
    return f"  {name:27} {len(kept):5}{shown}"
