"""The agent's interfaces to kernel, runtime, kubelet and pods; there are real, local and simulated implementations.

The loop (`agent.reconcile.loop`) uses only these. They raise the errors of `agent.errors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pinning.machine.cpuset import EMPTY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from agent.claim_interfaces import DeviceClaims
    from agent.node_state import LastUpdate, NodeState, StartWay
    from agent.vm_interfaces import BootingMachines, VirtualMachines
    from pinning.contract import PoolUse
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.near import Device
    from pinning.machine.near_rooms import Kinds
    from pinning.machine.topology import Topology
    from pinning.planning.observed import DeviceTimes, Observed, Owner, State
    from pinning.planning.quota import Bandwidth
    from pinning.planning.start_table import StartTable
    from pinning.planning.task_parts import Parts, Tally
    from pinning.pods.types import Pod


@dataclass(frozen=True, slots=True)
class RuntimeContainer:
    """One container as the runtime lists it (without sandboxes)."""

    id: str
    pod_uid: str  # uid as the runtime reports it; for a static pod the hash of its manifest
    namespace: str
    pod: str
    name: str
    state: State
    pid: int  # pid of its first process in the host's pid namespace; 0: it has none
    cgroup: str | None  # path below the cpuset hierarchy's mount, "/kubepods/pod1/ab12"; None: unknown
    in_vm: bool = False  # in a VM sandbox (Kata): only the runtime changes its cpuset
    started: float = 0.0  # seconds since the epoch, from the runtime; 0: not started, or unknown
    sandbox: str = ""  # id of its virtual machine; empty: it runs in none
    pod_sandbox: str = ""  # id of its pod's sandbox, also without a virtual machine; empty: unknown

    @property
    def full_name(self) -> str:
        """Readable name: namespace/pod/container."""
        return f"{self.namespace}/{self.pod}/{self.name}"


@dataclass(frozen=True, slots=True)
class RuntimeSandbox:
    """The virtual machine of one pod (Kata), as the runtime lists it."""

    id: str
    pod_uid: str  # uid as the runtime reports it
    namespace: str
    pod: str
    handler: str  # handler of the pod's runtime class
    pid: int = 0  # pid of the VMM in the host's pid namespace; 0: unknown
    cgroup: str | None = None  # as the runtime requested; the actual path's last component may differ
    has_quota: bool = False  # one of the containers has a CPU quota


class RuntimeChange(NamedTuple):
    """A container that was created, started or ended, in a pod without a virtual machine."""

    id: str
    owner: Owner
    state: State  # EXITED also if a live container was removed


class ContainerExit(NamedTuple):
    """The exit status of a container's first process, from the runtime."""

    code: int  # 128 + N: killed by signal N, or exited with that code
    reason: str  # the runtime's reason, e.g. "OOMKilled" or "Error"
    finished: float  # seconds since the epoch; 0: unknown


class Runtime(Protocol):
    """The container runtime of the node."""

    name: str  # e.g. "containerd 2.4.2"

    async def containers(self) -> tuple[RuntimeContainer, ...]:
        """Return every created, running or exited container; raise Unavailable instead of an incomplete list."""
        ...

    async def known_containers(self) -> tuple[RuntimeContainer, ...] | None:
        """Return the containers of the last list, updated by the events since; None: call `containers`.

        Raises Unavailable. After a lost event the result is wrong for some seconds, so the caller must not write or
        free CPUs because of it.
        """
        ...

    def changes(self) -> tuple[RuntimeChange, ...] | None:
        """Return the changes since the last call, by events; None: anything may have changed."""
        ...

    def sandboxes(self) -> tuple[RuntimeSandbox, ...]:
        """Return the virtual machines at the last list of containers, including those without containers."""
        ...

    async def update_cpus(self, container_id: str, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Make the runtime set and record a container's CPUs.

        The runtime may report success without effect, so read the cgroup back. `mems` are NUMA nodes for a container
        that has not started. Raises AgentError.
        """
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever containers may have changed, until cancelled; reconnect after errors."""
        ...


class Cpusets(Protocol):
    """The cpusets of cgroups, version 1 or 2. Paths are those of RuntimeContainer.cgroup."""

    @property
    def version(self) -> int:
        """The version of the hierarchy with the cpuset controller; 0 if there are no cgroups."""
        ...

    @property
    def writable(self) -> bool:
        """Return whether the agent may write cgroups; otherwise only the runtime changes them."""
        ...

    def read(self, cgroup: str) -> CPUSet:
        """Return the cgroup's effective CPUs; raise Gone if the cgroup does not exist."""
        ...

    def mems(self, cgroup: str) -> CPUSet:
        """Return the NUMA nodes of the cgroup's memory (effective); empty: unknown; raise Gone, Refused."""
        ...

    def write(self, cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        """Write `cpuset.cpus`, also of children that had `before`; raise Gone, Refused, Unfinished, ValueError."""
        ...


class CpusetWatch(Protocol):
    """Watches for cpuset writes by other processes."""

    def expect(self, cgroup: str, cpus: CPUSet) -> None:
        """Record that the runtime will write `cpus` for the agent, so that this write is not reported as foreign."""
        ...

    def follow(self, cgroups: Iterable[str], *, anew: bool = True) -> None:
        """Watch exactly these cgroups from now on; `anew` renews watches of cgroups created again. Raises Refused."""
        ...

    async def watch(self, written: Callable[[str], None]) -> None:
        """Call `written` with each watched cgroup whose CPUs another process changed, until cancelled."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Report no writes until the block ends, because a reconcile pass makes most writes itself."""
        ...


class Tasks(Protocol):
    """The processes and threads in a container's cgroup and below it."""

    def stray_tasks(self, cgroup: str, cpus: CPUSet) -> StrayTasks:
        """Compare the affinity of every task with `cpus`; raise Gone."""
        ...

    def widen_tasks(self, cgroup: str, first: int) -> int:
        """Widen process `first`, and all tasks that inherited its narrower mask, to its cgroup's CPUs.

        Returns how many tasks were widened; raises Gone.
        """
        ...

    def start_state(self, cgroup: str) -> StartState:
        """Return the start state of the cgroup's container; raise Gone."""
        ...


class SplitTasks(Protocol):
    """Splits the tasks of a container that may use more CPUs than it owns."""

    def move(self, cgroup: str, before: Parts, after: Parts) -> None:
        """Change a cgroup's CPUs, and each task's affinity to own CPUs or pools; raise Gone, Refused, Unsettled."""
        ...

    def pin(self, cgroup: str, before: Parts, after: Parts) -> None:
        """Set each task's affinity to its part (own CPUs or pools) within the cgroup's CPUs; raise Gone, Unsettled."""
        ...

    def look(self, cgroup: str, parts: Parts) -> Tally:
        """Return the numbers of tasks on the own CPUs and on the pools; raise Gone."""
        ...


class Quotas(Protocol):
    """The CFS quotas of cgroups: how much CPU time each may use."""

    def quota(self, cgroup: str) -> Bandwidth | None:
        """Return the quota, None if unlimited; raise Gone."""
        ...

    def set_quota(self, cgroup: str, bandwidth: Bandwidth) -> None:
        """Set the CFS quota of a cgroup; raise Gone, Refused."""
        ...

    def unset_quota(self, cgroup: str) -> None:
        """Set the quota to unlimited; raise Gone, Refused."""
        ...

    def times_throttled(self, cgroup: str) -> int:
        """Return the number of throttled periods of the cgroup (nr_throttled); raise Gone."""
        ...


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Access to containers' cgroups, grouped by interface."""

    cpusets: Cpusets
    tasks: Tasks
    watch: CpusetWatch
    quotas: Quotas
    split: SplitTasks


@dataclass(frozen=True, slots=True)
class StrayTasks:
    """The tasks of a cgroup whose affinity differs from its assignment."""

    outside: tuple[int, ...] = ()  # ids of tasks that may run on other CPUs: drift
    narrowed: tuple[int, ...] = ()  # ids of tasks that may run on fewer CPUs than assigned


class NewContainer(NamedTuple):
    """A container whose new cgroup exists; its command does not run yet."""

    id: str
    owner: Owner | str  # only the uid of its pod while the runtime does not list the container
    cgroup: str


class Owners(Protocol):
    """Looks up a container's owner by id."""

    def known(self, container_id: str) -> Owner | None:
        """Return a container's owner if it is known without a call to the runtime; raise Gone for a sandbox."""
        ...

    async def owner(self, container_id: str) -> Owner:
        """Return a container's owner; raise Gone for a sandbox or an unknown id, Unavailable, Refused."""
        ...

    async def created(self, container_ids: Collection[str]) -> Mapping[str, Owner | None]:
        """Return, by one request, the owners of the listed containers that are created and not started.

        None: the container is in a VM, where the runtime manages its cgroup. Raises Unavailable, Refused.
        """
        ...


class ContainerWatch(Protocol):
    """Reports new containers, as early as the runtime permits."""

    @property
    def puts_home(self) -> bool:
        """Return whether containers in the start table have their first process moved to their own CPUs at start."""
        ...

    @property
    def owners(self) -> Owners:
        """Return the lookup for the owners of containers that were reported with only their pod's uid."""
        ...

    @property
    def start_way(self) -> StartWay:
        """Return how new containers get their CPUs."""
        ...

    def publish(self, table: StartTable | None) -> None:
        """Give new containers the CPUs in this table from now on; None: they get no CPUs from the agent.

        A pass calls this after it has saved the checkpoint and before it writes cpusets, and again after the writes.
        """
        ...

    def started(self, container_id: str) -> CPUSet | None:
        """Return the CPUs that a container got from the table at its start; None: it got none, or this is unknown."""
        ...

    def last_update(self, container_id: str) -> LastUpdate | None:
        """Return the last update of a container's resources; None if the runtime does not ask about updates."""
        ...

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch the cgroups above these containers and their pods, and the pod roots. Raises Refused."""
        ...

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Report events until cancelled.

        `created` is called with each container whose cgroup exists and lacks its CPUs, maybe twice; some may be missed.
        `changed` is called when the start way changes, which requires a full pass.
        """
        ...


class StartState(NamedTuple):
    """The start state of a container."""

    # age of its oldest process, at first the runtime's own; None: there is none, or it is not known
    seconds: float | None
    has_begun: bool  # whether its command runs, or may run


class PodSource(Protocol):
    """The pods of this node."""

    @property
    def complete(self) -> bool:
        """Return whether every pod of the node was received at least once."""
        ...

    def pods(self) -> Mapping[str, Pod]:
        """Return the pods of this node by API uid."""
        ...

    async def watch(self, changed: Callable[[], None]) -> None:
        """Keep `pods` current and call `changed` after every change, until cancelled; reconnect after errors."""
        ...

    async def look_up(self, namespace: str, name: str) -> Pod | None:
        """Request one pod of this node by name; return None if there is none, and raise AgentError."""
        ...


class HeldCPUs(NamedTuple):
    """A container's CPUs on a node where another program allocates them."""

    cpus: CPUSet
    is_exclusive: bool | None  # None: unknown, because `cpus` are those of the cpuset


class ObservedCPUs(Protocol):
    """CPUs that another program assigned to containers, for passes that only observe."""

    async def read(self, containers: Iterable[tuple[RuntimeContainer, CPUSet]]) -> Mapping[Owner, HeldCPUs]:
        """Return the CPUs that the kubelet reports for live containers, otherwise those of their cpusets; never raise.

        `containers` have the effective cpusets of their cgroups, empty if there is no cgroup on the host.
        """
        ...


class RequestPass(Protocol):
    """Function that requests a reconcile pass."""

    def __call__(self, within: float = 0.0) -> None:
        """Request a reconcile pass that begins at most `within` seconds from now."""
        ...


class Machine(Protocol):
    """The CPUs of the node."""

    def topology(self) -> Topology:
        """Return the topology, including offline CPUs seen before."""
        ...

    def universe(self, topology: Topology) -> CPUSet:
        """Return the online CPUs of a topology within the effective cpuset of the kubelet's pod root."""
        ...

    def boot_id(self) -> str:
        """Return the id of this boot."""
        ...

    def machine_id(self) -> str:
        """Return the id of this machine."""
        ...


class PassedContainer(NamedTuple):
    """A live container with the CPUs that the last pass planned and confirmed."""

    id: str
    owner: Owner
    name: str  # namespace/pod/container
    cgroup: str | None
    cpus: CPUSet  # planned CPUs
    pid: int  # pid of its first process in the host's pid namespace; 0: unknown
    is_right: bool  # the kernel showed exactly these CPUs


class Wrappers(Protocol):
    """The commands that containers run under `cmk isolate`."""

    def uses(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the pools that containers use besides their own cores; a pass calls this once, at its start."""
        ...

    def passed(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        """Receive the result of the last pass and its live containers."""
        ...

    def shown(self, state: NodeState) -> NodeState:
        """Return the node state with the tasks of the wrappers that run now."""
        ...

    def reset(self) -> None:
        """Remove the socket and all saved records (uninstall)."""
        ...

    def look(self) -> float | None:
        """Check that requests still reach the socket; return the seconds until the next check, None for never."""
        ...

    async def run(self, request_pass: Callable[[], None], changed: Callable[[], None]) -> None:
        """Serve requests until cancelled; call `changed` when the set of running wrappers changes."""
        ...


class Devices(Protocol):
    """The devices of containers, and the NUMA nodes of the devices."""

    looks_up_claims: bool  # whether devices of ResourceClaims are looked up too
    times: Mapping[str, DeviceTimes]  # request and answer times of each pod's devices, by uid

    def known(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Return the known devices of containers; a returned mapping is not changed later."""
        ...

    def unknown(self) -> Mapping[Owner, str]:
        """Return the containers whose devices are not known, and the reason."""
        ...

    def free(self) -> Kinds | None:
        """Return the free devices of each resource by their NUMA nodes; None if unknown, or not configured."""
        ...

    def resume(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        """Start with the devices that a checkpoint has stored."""
        ...

    def follow(self, observed: Observed, names: Mapping[str, tuple[str, str]]) -> None:
        """Look up the devices of new pods, and forget deleted pods; `names` has every pod that the runtime lists."""
        ...

    def sandbox_started(self, uid: str) -> None:
        """Record that a pod's sandbox runs, which means that its devices are allocated; may be called in any thread."""
        ...

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Look up devices until cancelled; request a pass when new ones are known."""
        ...


class Pausable(Protocol):
    """Background work that stops during a pass."""

    def paused(self) -> AbstractContextManager[None]:
        """Start no work until the block ends."""
        ...


class StatePublisher(Pausable, Protocol):
    """Passes each node state to the reporters; starts no report during a reconcile pass, which needs the CPU."""

    def submit(self, state: NodeState) -> None:
        """Publish this state next, in place of one that is not published yet."""
        ...

    async def run(self) -> None:
        """Publish until cancelled."""
        ...


@dataclass(frozen=True, slots=True)
class Interfaces:
    """All interfaces that the agent of one node uses; `agent.absent` has null objects for those that a node lacks."""

    runtime: Runtime
    cgroups: Cgroups
    pods: PodSource
    machine: Machine
    container_watch: ContainerWatch
    observed_cpus: ObservedCPUs
    vms: VirtualMachines
    wrappers: Wrappers
    boots: BootingMachines
    devices: Devices
    claims: DeviceClaims
