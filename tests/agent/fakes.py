"""An in-memory node: fakes of the agent's interfaces, with faults on demand."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from agent.absent import (
    NoBootingMachines,
    NoContainerWatch,
    NoDeviceClaims,
    NoDevices,
    NoObservedCPUs,
    NoWrappers,
)
from agent.clock import Clock
from agent.errors import AgentError, Gone, Refused, Unavailable
from agent.interfaces import (
    Cgroups,
    Interfaces,
    RuntimeChange,
    RuntimeContainer,
    StartState,
    StrayTasks,
)
from agent.kept_pod import PodDecoder
from agent.main import load
from agent.process import Agent, Parts
from agent.reconcile.checkpoint import StateDir
from agent.reconcile.reconciler import Settings
from pinning.contract import AGENT_NAMESPACE
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import Topology
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import State
from pinning.planning.quota import Bandwidth
from tests.agent.reconcile.mixed.fake_tasks import FakeTasks
from tests.agent.reconcile.sandboxes.kata import Kata
from tests.agent.vm.fake_vms import FakeVMs
from tests.environments.waiting import background
from tests.pinning.machines import FLAT
from tests.pinning.world import Wish, pod_document

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from agent.claim_interfaces import DeviceClaims
    from agent.interfaces import ContainerWatch, Devices, ObservedCPUs, RuntimeSandbox, Wrappers
    from agent.node_state import NodeState
    from agent.reconcile.between_passes import MachineWatch
    from agent.vm_interfaces import BootingMachines
    from pinning.pods.types import Pod

TURNS = 100  # turns of the event loop: more than a call that is answered at once needs
_decoder = PodDecoder(AGENT_NAMESPACE)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Time:
    """A clock that the test sets."""

    now: float = 1000.0

    def clock(self) -> Clock:
        """Return the clock in the agent's form."""
        return Clock(lambda: self.now, lambda: EPOCH + timedelta(seconds=self.now))


@dataclass
class FakeRuntime:
    """A fake runtime that can lose updates, fail or wait on request."""

    node: FakeNode
    name: str = "fake 1.0"
    lost: int = 0  # updates that are answered OK and not done
    down: bool = False
    unlisted: AgentError | None = None  # raised by lists, while updates succeed
    errors: dict[str, AgentError] = field(default_factory=dict)  # error of an update, by container id
    gate: asyncio.Event | None = None  # updates wait for it
    calls: list[tuple[str, str]] = field(default_factory=list)
    flying: int = 0
    most_flying: int = 0
    changed: Callable[[], None] = lambda: None
    known: tuple[RuntimeContainer, ...] | None = None  # containers by the runtime's events; None: not known
    told: tuple[RuntimeChange, ...] | None = None  # changes by events; None: unknown

    async def containers(self) -> tuple[RuntimeContainer, ...]:
        """Return every container."""
        if self.down:
            raise Unavailable("the socket refuses")
        if self.unlisted:
            raise self.unlisted
        return tuple(self.node.containers.values())

    async def known_containers(self) -> tuple[RuntimeContainer, ...] | None:
        """Return the containers known from events, or None without events."""
        return self.known

    def changes(self) -> tuple[RuntimeChange, ...] | None:
        """Return the changes from events since the last call."""
        changes, self.told = self.told, () if self.told is not None else None
        return changes

    def sandboxes(self) -> tuple[RuntimeSandbox, ...]:
        """Return every virtual machine."""
        return tuple(self.node.kata.sandboxes())

    async def update_cpus(self, container_id: str, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Write a container's cgroup and record, as a runtime does."""
        self.calls.append((container_id, str(cpus)))
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)
        try:
            if self.gate:
                await self.gate.wait()
            self._update(container_id, cpus, mems)
        finally:
            self.flying -= 1

    def _update(self, container_id: str, cpus: CPUSet, mems: CPUSet) -> None:
        if self.down:
            raise Unavailable("the socket refuses")
        if container_id in self.errors:
            raise self.errors[container_id]
        container = self.node.containers.get(container_id)
        if container is None:
            raise Gone(container_id)
        if self.lost:
            self.lost -= 1
            return
        self.node.asked(container_id, str(cpus))
        self.node.records[container_id] = cpus
        if container.sandbox:
            self.node.kata.machines[container.sandbox].tell(container_id, cpus)
        if mems:
            self.node.mems[container.cgroup or ""] = mems
        if container.cgroup in self.node.cpusets:
            self.node.cpusets[container.cgroup] = cpus

    async def watch(self, changed: Callable[[], None]) -> None:
        """Report changes until cancelled."""
        self.changed = changed
        await asyncio.get_running_loop().create_future()


@dataclass
class FakeCgroups:
    """Fake kernel cgroups: cpusets with their watch, tasks and quotas."""

    node: FakeNode
    version: int = 2
    writable: bool = True
    errors: dict[str, AgentError] = field(default_factory=dict)  # error of a write, by cgroup
    unreadable: dict[str, AgentError] = field(default_factory=dict)  # error of reads and writes, by cgroup
    unlisted: dict[str, AgentError] = field(default_factory=dict)  # cgroups whose processes cannot be listed
    lost: int = 0  # writes that change nothing
    ceiling: dict[str, CPUSet] = field(default_factory=dict)  # CPUs of a narrower parent, by cgroup
    strays: dict[str, StrayTasks] = field(default_factory=dict)
    quotas: dict[str, Bandwidth] = field(default_factory=dict)
    quota_errors: dict[str, AgentError] = field(default_factory=dict)
    writes: list[tuple[str, str]] = field(default_factory=list)
    widened: list[tuple[str, int]] = field(default_factory=list)
    ages: dict[str, float | None] = field(
        default_factory=dict
    )  # first process of the container, by cgroup; None: not known
    begun: set[str] = field(default_factory=set)  # cgroups whose start is not reported yet
    # For each write: the cgroup, and the CPUs that it had before.
    befores: list[tuple[str, str]] = field(default_factory=list)
    followed: frozenset[str] = frozenset()
    unwatched: Refused | None = None  # raised instead of watching cgroups
    written: Callable[[str], None] = lambda _: None

    def read(self, cgroup: str) -> CPUSet:
        """Return the effective CPUs."""
        if cgroup not in self.node.cpusets:
            raise Gone(cgroup)
        if cgroup in self.unreadable:
            raise self.unreadable[cgroup]
        online = self.node.topology.online
        cpus = (self.node.cpusets[cgroup] & online) or online
        return cpus & self.ceiling.get(cgroup, cpus)

    def mems(self, cgroup: str) -> CPUSet:
        """Return the memory nodes that the runtime was sent, otherwise all with memory."""
        self.read(cgroup)
        return self.node.mems.get(cgroup, self.node.topology.memory_nodes)

    def write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Write a cpuset."""
        if not cpus:
            raise ValueError(cgroup)
        if cgroup in self.errors:
            raise self.errors[cgroup]
        self.read(cgroup)
        if self.lost:
            self.lost -= 1
            return
        self.writes.append((cgroup, str(cpus)))
        self.befores.append((cgroup, str(before)))
        self.node.cpusets[cgroup] = cpus
        self.node.check()

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Return the stray tasks that the test set."""
        return self.strays.get(cgroup, StrayTasks())

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Clear the narrowed tasks of a cgroup and return their number."""
        self.read(cgroup)
        self.widened.append((cgroup, first))
        before = self.strays.get(cgroup, StrayTasks())
        self.strays[cgroup] = replace(before, narrowed=())
        return len(before.narrowed)

    def start_state(self, cgroup: str) -> StartState:
        """Return the start state with the age that the test set, or not started while created."""
        self.read(cgroup)
        if cgroup in self.unlisted:
            raise self.unlisted[cgroup]
        container = next(it for it in self.node.containers.values() if it.cgroup == cgroup)
        is_running = container.state is State.RUNNING or cgroup in self.begun
        return StartState(self.ages.get(cgroup, 0.0) if is_running else None, has_begun=is_running)

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Do nothing, because tests call `written` themselves."""

    def follow(self, cgroups: Iterable[str], *, anew: bool = True) -> None:
        """Record the watched cgroups."""
        if self.unwatched:
            raise self.unwatched
        self.followed = frozenset(cgroups)

    async def watch(self, written: Callable[[str], None]) -> None:
        """Report foreign writes until cancelled."""
        self.written = written
        await asyncio.get_running_loop().create_future()

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing: tests call `written` themselves."""
        return nullcontext()

    def quota(self, cgroup: str) -> Bandwidth | None:
        """Return the quota."""
        self.fail_quota(cgroup)
        return self.quotas.get(cgroup)

    def set_quota(self, cgroup: str, bandwidth: Bandwidth) -> None:
        """Set a quota."""
        self.fail_quota(cgroup)
        self.quotas[cgroup] = bandwidth

    def fail_quota(self, cgroup: str) -> None:
        """Raise the error that the test set for the quota of a cgroup."""
        if error := self.quota_errors.get(cgroup):
            raise error

    def unset_quota(self, cgroup: str) -> None:
        """Remove the quota."""
        del self.quotas[cgroup]

    def times_throttled(self, cgroup: str) -> int:
        """Return a constant count."""
        return 7


class Shown(NamedTuple):
    """A pod of the test, and what the watch keeps of it."""

    document: dict[str, Any]
    text: bytes
    pod: Pod


@dataclass
class FakePods:
    """Pods of the API."""

    node: FakeNode
    complete: bool = True
    missed: dict[str, Any] = field(default_factory=dict)  # pods that look_up finds, by namespace/name
    failures: list[AgentError] = field(default_factory=list)  # errors of the next calls of look_up
    asked: list[str] = field(default_factory=list)
    changed: Callable[[], None] = lambda: None
    _shown: dict[str, Shown] = field(default_factory=dict)

    async def look_up(self, namespace: str, name: str) -> Any:
        """Return a pod that the watch missed, or raise the next failure."""
        self.asked.append(f"{namespace}/{name}")
        if self.failures:
            raise self.failures.pop()
        found = self.missed.get(f"{namespace}/{name}")
        return found and _decoder.decode(msgspec.json.encode(found))

    def pods(self) -> Mapping[str, Any]:
        """Return the pods by uid, with the fields that the watch keeps."""
        shown = self._shown
        self._shown = {
            uid: self._as_shown(shown.get(uid), document) for uid, document in self.node.documents.items()
        }
        return {uid: shown.pod for uid, shown in self._shown.items()}

    def _as_shown(self, before: Shown | None, document: dict[str, Any]) -> Shown:
        """Decode a pod as the watch does; one that the test has not replaced or changed is the same as before."""
        text = msgspec.json.encode(document)
        if before and before.document is document and before.text == text:
            return before
        return Shown(document, text, _decoder.decode(text))

    async def watch(self, changed: Callable[[], None]) -> None:
        """Report changes until cancelled."""
        self.changed = changed
        await asyncio.get_running_loop().create_future()


@dataclass
class FakeMachine:
    """The node's machine."""

    node: FakeNode
    boot: str = "boot-1"
    machine: str = "machine-1"

    def topology(self) -> Topology:
        """Return the topology."""
        return self.node.topology

    def universe(self, topology: Topology) -> CPUSet:
        """Return the online CPUs."""
        return topology.online

    def boot_id(self) -> str:
        """Return the boot id."""
        return self.boot

    def machine_id(self) -> str:
        """Return the machine id."""
        return self.machine


class FakeNode:
    """Pods, containers and cpusets of one node, and its agents, one after the other."""

    def __init__(self, state_dir: Path, topology: Topology = FLAT, config: NodeConfig | None = None) -> None:
        self.topology = topology
        self.config = config or NodeConfig()
        self.documents: dict[str, dict[str, Any]] = {}
        self.containers: dict[str, RuntimeContainer] = {}
        self.cpusets: dict[str, CPUSet] = {}
        self.records: dict[str, CPUSet] = {}  # CPUs in the runtime's record
        self.mems: dict[str, CPUSet] = {}  # memory nodes by cgroup, where the runtime was sent any
        self.runtime = FakeRuntime(self)
        self.cgroups = FakeCgroups(self)
        self.tasks = FakeTasks(self)
        self.kata = Kata(self)
        self.container_watch: ContainerWatch = NoContainerWatch()  # container watch of the next agent
        self.asked: Callable[[str, str], None] = lambda *_: None  # called with each update of the runtime
        self.kubelet: ObservedCPUs = NoObservedCPUs()  # kubelet's CPUs, as the next agent reads them
        self.wrappers: Wrappers = NoWrappers()  # wrappers of the next agent
        self.boots: BootingMachines = NoBootingMachines()  # booting machines of the next agent
        self.devices: Devices = NoDevices()  # devices of the next agent
        self.machine_watch: MachineWatch | None = None  # machine watch of the next agent
        self.vms = FakeVMs(self.cpusets)
        self.pods = FakePods(self)
        self.machine = FakeMachine(self)
        self.time = Time()
        self.claims: DeviceClaims = NoDeviceClaims()
        self.owners: dict[str, CPUSet] = {}  # cgroups and ids of machines that own these CPUs; see `check`
        self.settings = Settings("node-1", self.config)
        self.folder = state_dir
        self.runner = asyncio.Runner()
        self._count = 0
        self.state_dir = StateDir(state_dir)
        self.agent = Agent(self.parts())

    def new_agent(self, *reporters: Any) -> Agent:
        """Start an agent from the checkpoint."""
        self.state_dir.close()
        self.state_dir = StateDir(self.folder)
        self.agent = Agent(self.parts(*reporters))
        return self.agent

    def restart(self, config: NodeConfig, *more: Any, **options: Any) -> None:
        """Start an agent with other settings from the checkpoint."""
        self.settings = Settings("node-1", config, *more, **options)
        self.new_agent()

    def close(self) -> None:
        """Close the last agent."""
        self.state_dir.close()
        self.runner.close()

    def run(self, passes: int = 1) -> NodeState:
        """Run passes, each followed by its background work."""

        async def run_all() -> NodeState:
            for _ in range(passes):
                state = await self.run_pass()
            return state

        return self.runner.run(run_all())

    def parts(self, *reporters: Any) -> Parts:
        """Return the parts of an agent of this node."""
        cgroups = Cgroups(self.cgroups, self.cgroups, self.cgroups, self.cgroups, self.tasks.split())
        edges = self.runtime, cgroups, self.pods, self.machine, self.container_watch
        beside = self.kubelet, self.kata, self.wrappers, self.boots, self.devices
        interfaces = Interfaces(*edges, *beside, self.claims)
        saved = load(self.state_dir, self.machine.machine_id())
        parts = Parts(interfaces, self.settings, self.state_dir, saved, reporters, clock=self.time.clock())
        return replace(parts, machine_watch=self.machine_watch)

    def add(self, uid: str, *wishes: Wish, vm: bool = False) -> None:
        """Create or replace a pod in the API; with `vm` it is KubeVirt's launcher."""
        before = self.documents.get(uid)
        self._count += 1
        document = pod_document(uid, list(wishes), created=self._count, vm=vm)
        if before:
            document["metadata"]["creationTimestamp"] = before["metadata"]["creationTimestamp"]
        self.documents[uid] = document

    def start(self, uid: str, name: str = "c0", state: State = State.RUNNING) -> str:
        """Add a container to the runtime on every CPU, without a cgroup if created; return its id."""
        self._count += 1
        number = f"{uid}-{name}-{self._count}"
        cgroup = f"/kubepods/{uid}/{number}"
        sandbox = f"s-{uid}" if f"s-{uid}" in self.kata.machines else ""
        self.containers[number] = RuntimeContainer(
            number, uid, "test", f"pod-{uid}", name, state, 1, cgroup, bool(sandbox), sandbox=sandbox
        )
        self.records[number] = self.topology.online
        if state is State.RUNNING and not sandbox:
            self.cpusets[cgroup] = self.topology.online
        return number

    def deploy(self, uid: str, *wishes: Wish, vm: bool = False, state: State = State.RUNNING) -> str:
        """Create or replace a pod and start its first container; return the container's id."""
        self.add(uid, *wishes, vm=vm)
        return self.start(uid, "compute" if vm else "c0", state)

    def begin(self, number: str, *, lost: bool = False) -> None:
        """Start a created container with the cpuset of the runtime's record."""
        container = self.containers[number]
        self.containers[number] = replace(container, state=State.RUNNING)
        self.cpusets[self.cgroup(number)] = self.topology.online if lost else self.records[number]

    def stop(self, number: str) -> None:
        """Stop a container; Kata counts its CPUs until it is removed."""
        self.containers[number] = replace(self.containers[number], state=State.EXITED)
        self.cpusets.pop(self.cgroup(number), None)

    def remove(self, number: str) -> None:
        """Remove a container from the runtime."""
        container = self.containers.pop(number)
        self.cpusets.pop(container.cgroup or "", None)
        if container.sandbox in self.kata.machines:
            self.kata.machines[container.sandbox].remove(number)

    def cgroup(self, number: str) -> str:
        """Return a container's cgroup."""
        return self.containers[number].cgroup or ""

    def cpus(self, number: str) -> str:
        """Return the effective CPUs of a container."""
        return str(self.cpusets[self.cgroup(number)])

    def check(self) -> None:
        """Check that no other container or machine runs on an owner's CPUs."""
        machines = {key: machine.cpus() for key, machine in self.kata.machines.items()}
        for cgroup, owned in self.owners.items():
            for other, cpus in {**self.cpusets, **machines}.items():
                assert other == cgroup or not cpus & owned, f"{other} is on {cpus}, {cgroup} owns {owned}"

    async def run_pass(self) -> NodeState:
        """Run one pass and its background work."""
        state = await self.agent.reconciler.run_pass()
        assert state is not None
        await self.drain()
        return state

    async def drain(self) -> None:
        """Run the background work until none is left, or it does not progress."""
        runtime_sync = self.agent.reconciler.runtime_sync
        async with background(runtime_sync.run()):
            waiting = asyncio.create_task(runtime_sync.drained())
            # Each worker tries once and then waits for its backoff, whatever the time limit is.
            if self.runtime.down:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
            else:
                await asyncio.wait({waiting}, timeout=60)
            waiting.cancel()
