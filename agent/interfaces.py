"""What the agent asks of the outside, so that each of these can be real, local or simulated.

The loop (`agent.reconcile.loop`) knows only these. They raise what is in `agent.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from agent.node_state import NodeState, StartWay
    from agent.vm_interfaces import BootingMachines, VirtualMachines
    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.observed import Owner, State
    from pinning.planning.quota import Bandwidth
    from pinning.planning.start_table import StartTable
    from pinning.planning.task_parts import Parts, Tally
    from pinning.pods.types import Pod


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """One container as the runtime knows it (sandboxes are none)."""

    id: str
    pod_uid: str  # as the runtime knows it: of a static pod the hash of its manifest
    namespace: str
    pod: str
    name: str
    state: State
    pid: int  # of its first process in the host's pid namespace; 0 when it has none
    cgroup: str | None  # below the mount of the cpuset hierarchy, e.g. "/kubepods/pod1/ab12"; None: not known
    in_vm: bool = False  # runs inside a VM sandbox (Kata): its cpuset is changed by the runtime alone
    started: float = 0.0  # in seconds since the epoch, as the runtime says; 0: not yet, or not known
    sandbox: str = ""  # the id of the virtual machine that it runs in

    @property
    def full_name(self) -> str:
        """What people call it: namespace/pod/container."""
        return f"{self.namespace}/{self.pod}/{self.name}"


@dataclass(frozen=True, slots=True)
class RuntimeSandbox:
    """The virtual machine that runs the containers of one pod (Kata), as the runtime knows it."""

    id: str
    pod_uid: str  # as the runtime knows it
    namespace: str
    pod: str
    handler: str  # of the pod's runtime class
    pid: int = 0  # of what runs the machine, in the host's pid namespace; 0: not known
    cgroup: str | None = None  # where the runtime wanted it; its last part may be another
    has_quota: bool = False  # a container of it has a quota of CPU time


class RuntimeChange(NamedTuple):
    """A container that came, began to run or ended, of a pod without a virtual machine."""

    id: str
    owner: Owner
    state: State  # EXITED also for a live container that was removed


class ContainerExit(NamedTuple):
    """How the first process of a container ended, as the runtime says."""

    code: int  # 128 + N: signal N ended it, or it exited with that code itself
    reason: str  # the runtime's word, e.g. "OOMKilled" or "Error"
    finished: float  # seconds since the epoch; 0: not known


class Runtime(Protocol):
    """The container runtime of the node."""

    name: str  # e.g. "containerd 2.4.2"

    async def containers(self) -> tuple[RuntimeContainer, ...]:
        """Return every container that is created, running or exited; raise Unavailable rather than a part of them."""
        ...

    async def known_containers(self) -> tuple[RuntimeContainer, ...] | None:
        """Return the containers by the last list and the events since; None: list them. Raises Unavailable.

        A lost event makes it wrong for some seconds, so nothing may be written or freed by it.
        """
        ...

    def changes(self) -> tuple[RuntimeChange, ...] | None:
        """Return what changed since the last call, as far as events said; None: it may be anything."""
        ...

    def sandboxes(self) -> tuple[RuntimeSandbox, ...]:
        """Return the virtual machines that were there when the containers were listed last, also those without any."""
        ...

    async def update_cpus(self, container_id: str, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Make the runtime put a container on `cpus` and remember it; an answer is no proof.

        `mems` are the NUMA nodes for the memory of one that does not run yet; empty: as they are. Raises Gone, Unavailable, Refused.
        """
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever containers may have changed, until cancelled; reconnects by itself."""
        ...


class Cpusets(Protocol):
    """The cpusets of cgroups, version 1 or 2. Paths are those of RuntimeContainer.cgroup."""

    @property
    def version(self) -> int:
        """The version of the hierarchy that has the cpuset controller; 0 where no cgroup stands behind this."""
        ...

    @property
    def writable(self) -> bool:
        """Say whether the agent may change cgroups; without it the runtime alone changes them."""
        ...

    def read(self, cgroup: str) -> CPUSet:
        """Return the CPUs that the kernel lets the cgroup use now (effective); raise Gone when it is not there."""
        ...

    def mems(self, cgroup: str) -> CPUSet:
        """Return the NUMA nodes that the cgroup gets memory from (effective); empty: not known. Raises Gone, Refused."""
        ...

    def write(self, cgroup: str, cpus: CPUSet) -> None:
        """Write `cpuset.cpus`; raise Gone, Refused (with the errno in words), or ValueError for an empty set."""
        ...


class CpusetWatch(Protocol):
    """Watches for cpuset writes by other processes."""

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Take `cpus` in the cgroup for our own writing: the runtime is about to write them for us."""
        ...

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch these cgroups and no others from now on; those that are gone are left out. Raises Refused."""
        ...

    async def watch(self, written: Callable[[str], None]) -> None:
        """Call `written` with each watched cgroup whose CPUs another process changed, until cancelled."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Delay reports of writes until the block ends: a pass reads every cpuset, and most writes are its own."""
        ...


class Tasks(Protocol):
    """The processes and threads in a container's cgroup and below it."""

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Compare where every task may run with `cpus`; raise Gone."""
        ...

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Let process `first`, allowed on less than its cgroup, and all that inherited its mask run on all of it.

        Returns how many tasks were widened; raises Gone.
        """
        ...

    def start_state(self, cgroup: str) -> StartState:
        """Return how far its container has come; raise Gone."""
        ...


class SplitTasks(Protocol):
    """Keeps the tasks of a container apart that runs on more CPUs than it owns."""

    def move(self, cgroup: str, before: Parts, after: Parts) -> None:
        """Change a cgroup's CPUs, and put every task on its part of them; raise Gone, Refused, Unsettled."""
        ...

    def pin(self, cgroup: str, before: Parts, after: Parts) -> None:
        """Put every task on its part, as far as the cgroup has its CPUs; raise Gone, Unsettled."""
        ...

    def look(self, cgroup: str, parts: Parts) -> Tally:
        """Count the tasks on each part; raise Gone."""
        ...


class Quotas(Protocol):
    """The CFS quotas of cgroups: how much CPU time each may use."""

    def quota(self, cgroup: str) -> Bandwidth | None:
        """Return the quota, None when there is none; raise Gone."""
        ...

    def set_quota(self, cgroup: str, bandwidth: Bandwidth) -> None:
        """Set the quota; raise Gone, Refused."""
        ...

    def unset_quota(self, cgroup: str) -> None:
        """Take the quota away; raise Gone, Refused."""
        ...

    def times_throttled(self, cgroup: str) -> int:
        """Return in how many periods the quota stopped the cgroup (nr_throttled); raise Gone."""
        ...


@dataclass(frozen=True, slots=True)
class Cgroups:
    """The cgroups of containers, by who uses them."""

    cpusets: Cpusets
    tasks: Tasks
    watch: CpusetWatch
    quotas: Quotas
    split: SplitTasks


@dataclass(frozen=True, slots=True)
class StrayTasks:
    """What the tasks of a cgroup may run on, compared with its assignment."""

    outside: tuple[int, ...] = ()  # task ids allowed on CPUs that are not theirs: drift
    narrowed: tuple[int, ...] = ()  # on fewer CPUs: their own choice, or a mask they inherited


class NewContainer(NamedTuple):
    """A container whose cgroup was made just now: its command does not run yet."""

    id: str
    owner: Owner
    cgroup: str


class ContainerWatch(Protocol):
    """Knows of the containers that a runtime which is not ours makes, as early as that runtime lets it."""

    @property
    def start_way(self) -> StartWay:
        """Return how new containers get their CPUs."""
        ...

    def publish(self, table: StartTable | None) -> None:
        """Let new containers get what the table says from now on; None: touch none.

        Called after the checkpoint, before any write, and again after the writes.
        """
        ...

    def started(self, container_id: str) -> CPUSet | None:
        """Return the CPUs that a container was made with by the table; None: not known, or not by it."""
        ...

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch where these containers and their pods were made, and where the kubelet makes pods. Raises Refused."""
        ...

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Tell what happens, until cancelled.

        `created` is called with each container that has its cgroup and not yet its CPUs, maybe twice, and some are
        missed; `changed` when it begins or ceases to hold, so that a pass has to look at everything.
        """
        ...


class StartState(NamedTuple):
    """How far a container has come."""

    seconds: float | None  # since its oldest process, the runtime's own at first; None while there is none
    has_begun: bool  # it runs its command, or may


class PodSource(Protocol):
    """Where the pods of this node come from."""

    @property
    def complete(self) -> bool:
        """Say whether the source has shown every pod once."""
        ...

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods of this node by uid (of the API)."""
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep `pods` up to date and call `changed` after every change, until cancelled; reconnects by itself."""
        ...

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Ask anew for one pod of this node by its name; return None when the node has none, and raise AgentError."""
        ...


class HeldCPUs(NamedTuple):
    """Where a container runs on a node on which another program allocates CPUs."""

    cpus: CPUSet
    is_exclusive: bool | None  # its own by that program's word; None: it says nothing, and these confine it


class ObservedCPUs(Protocol):
    """Which CPUs another program gave to containers, for the passes that only observe."""

    async def read(self, containers: Iterable[tuple[RuntimeContainer, CPUSet]]) -> Mapping[Owner, HeldCPUs]:
        """Return the kubelet's CPUs of live containers, without containers that it does not report. Never raises.

        Each is given with its cgroup's effective cpuset, empty of what has none on the host.
        """
        ...


class RequestPass(Protocol):
    """Requests a pass."""

    def __call__(self, within: float = 0.0) -> None:
        """Request a pass within some seconds."""
        ...


class Machine(Protocol):
    """The CPUs of the node."""

    def topology(self) -> Topology:
        """Return what the kernel shows now, offline CPUs as remembered from before."""
        ...

    def universe(self) -> CPUSet:
        """Return the online CPUs within the effective cpuset of the kubelet's pod root."""
        ...

    def boot_id(self) -> str:
        """Return the id of this boot."""
        ...

    def machine_id(self) -> str:
        """Return the id of this machine."""
        ...


class PassedContainer(NamedTuple):
    """One container after a pass."""

    id: str
    owner: Owner
    name: str  # namespace/pod/container
    cgroup: str | None
    cpus: CPUSet  # where the pass wants it
    pid: int  # of its first process in the host's pid namespace; 0: not known
    is_right: bool  # the kernel was seen to let it run exactly there


class Wrappers(Protocol):
    """The commands that containers run under `cmk isolate`."""

    def uses(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the pools in use by containers beside what they own, for as long as each of these runs.

        A pass asks once, at its begin.
        """
        ...

    def passed(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        """Know what the pass came to that asked for the uses last, and every container that it saw alive."""
        ...

    def shown(self, state: NodeState) -> NodeState:
        """Return the node state with the wrappers that run now."""
        ...

    def reset(self) -> None:
        """Drop all records and stop serving (uninstall)."""
        ...

    async def run(self, request_pass: Callable[[], None], changed: Callable[[], None]) -> None:
        """Serve requests until cancelled; call `changed` when the set of running wrappers changes."""
        ...


class Pausable(Protocol):
    """Background work that stops during a pass."""

    def paused(self) -> AbstractContextManager[None]:
        """Begin no work until the block ends."""
        ...


class StatePublisher(Protocol):
    """Where the states of the node go: to the reporters."""

    def tell(self, state: NodeState) -> None:
        """Take over the newest state."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Begin no report until the block ends: a pass needs the CPU, and brings a newer state."""
        ...

    async def run(self) -> None:
        """Publish until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Interfaces:
    """Everything the agent of one node works with; `agent.absent` has null objects for what a node lacks."""

    runtime: Runtime
    cgroups: Cgroups
    pods: PodSource
    machine: Machine
    container_watch: ContainerWatch
    observed_cpus: ObservedCPUs
    vms: VirtualMachines
    wrappers: Wrappers
    boots: BootingMachines
