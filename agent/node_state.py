"""State of the node as one frozen value: the only source of reports, metrics and `corepin map`.

Two states are equal if nothing changed between them, because a container's time is that of its last change and not of
the last read. Reporters compare states and publish only differences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import GATE_CONTAINER, CoreType
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.machine.free_cpus import free_cpus, zone_cpus
from pinning.machine.near_rooms import rooms
from pinning.pods.near_counts import near_counts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pinning.cmk.pools import Reclaimed, Task
    from pinning.contract import (
        CPUPolicy,
        KubeletPolicy,
        NoiseKind,
        NUMAMemory,
        NUMAPolicy,
        QuietWord,
        SMTPolicy,
    )
    from pinning.dra.claims import ClaimTimes
    from pinning.guests.threads import GuestID
    from pinning.machine.near import DeviceKind
    from pinning.machine.near_rooms import FreeDevices
    from pinning.machine.topology import Topology
    from pinning.planning.ledger import Ledger
    from pinning.planning.node_sets import NodeSets
    from pinning.planning.noise import Keep
    from pinning.planning.observed import DeviceTimes, Owner, SeenPod
    from pinning.planning.refusal import Refusal
    from pinning.planning.run_sets import SandboxSet
    from pinning.planning.task_parts import Tally


class ContainerNoise(NamedTuple):
    """Noise on the CPUs of one container during `seconds`; a count is None if unknown, with a reason in `unknown`."""

    seconds: float
    interrupts: int | None = None  # number of interrupts of devices
    softirqs: int | None = None
    wait_seconds: float | None = None  # time that its threads waited on run queues, summed over the threads
    involuntary_switches: int | None = None  # involuntary context switches of its threads
    other_slices: int | None = None  # timeslices of other threads on its CPUs
    unknown: tuple[str, ...] = ()


class StartedExec(NamedTuple):
    """A process that entered a running container by exec."""

    container_id: str
    pid: int  # pid in the host's pid namespace


class PlacedExec(NamedTuple):
    """A process whose affinity was set to the CPUs for execs."""

    started: int  # start time of the process in ticks since boot
    # Seconds from the start of the process, which the kernel reports in hundredths, until it was moved.
    seconds: float


class ContainerExecs(NamedTuple):
    """The processes that entered a container by exec since the agent began to count."""

    entered: int = 0
    placed: int = 0  # processes that were found alive and moved to `cpus`
    cpus: CPUSet = EMPTY  # CPUs for such processes; empty: they stay on the container's CPUs
    seconds: float | None = (
        None  # the longest time from a process's start until its move to `cpus`; None: none was moved
    )
    when: str = ""  # when the last process entered, RFC 3339 in UTC; empty: none did


class NoiseLevel(NamedTuple):
    """The noise on a container's CPUs compared with the operator's limits."""

    kind: NoiseKind | None  # the kind of noise above its limit; None: none is
    since: str = ""  # when this began, RFC 3339 in UTC


class QuietPart(NamedTuple):
    """Result of a part other than interrupts (workqueues, idle states) for the quiet CPUs of a node."""

    name: QuietWord
    reason: str = ""  # why the part is not applied; empty: it is
    conflicts: tuple[str, ...] = ()  # values that another program keeps changing back


class KeptInterrupts(NamedTuple):
    """Interrupts that may fire on the quiet CPUs of a container by its pod's `irq-policy`."""

    cpus: CPUSet
    numbers: frozenset[str] = frozenset()
    names: tuple[str, ...] = ()  # names of the first interrupts, each with its number
    note: str = ""  # words of the policy that match no interrupt, and interrupts that may still be moved


@dataclass(frozen=True, slots=True)
class QuietResult:
    """Result of keeping interrupts off the quiet CPUs of a node."""

    cpus: CPUSet = EMPTY
    reason: str = ""  # why interrupts are not kept off; empty: they are, except managed ones
    managed: tuple[str, ...] = ()  # interrupts that the kernel alone places
    conflicts: tuple[str, ...] = ()  # interrupts that another program keeps moving back
    # Why irqbalance may use quiet CPUs, in which case no further interrupt is moved; empty: it does not run, is banned
    # from them, or is configured by the operator.
    irqbalance: str = ""
    parts: tuple[QuietPart, ...] = ()  # results of the parts that the operator has switched on
    is_off: bool = False  # the operator has switched off the moving of interrupts; `reason` says so
    fully: CPUSet | None = None  # CPUs for which workqueues and idle states are changed; None: all of `cpus`
    # Interrupts that stay on the quiet CPUs of a container or a pool.
    kept: Mapping[Owner, KeptInterrupts] = field(default_factory=dict)

    @property
    def part_cpus(self) -> CPUSet:
        """The CPUs for which workqueues and idle states are changed."""
        return self.cpus if self.fully is None else self.fully

    @property
    def why_not(self) -> str:
        """Why the CPUs are not as quiet as requested; empty if they are."""
        failed = (f"{part.name}: {part.reason}" for part in self.parts if part.reason)
        return "; ".join(filter(None, (self.reason, *failed)))

    @property
    def all_conflicts(self) -> tuple[str, ...]:
        """Kernel values that another program keeps changing back."""
        return (*self.conflicts, *(name for part in self.parts for name in part.conflicts))


CRASHED: Final = "see the agent's log"
QUIET_PENDING: Final = "not done yet"  # reason while no round has handled a container's CPUs


class Path(StrEnum):
    """How the cpuset of a container was set."""

    NRI = "nri"  # the runtime set it when it created the container, from the agent's answer over NRI
    CGROUP = "cgroup"
    RUNTIME = "runtime"
    AFFINITY = "affinity"  # by the affinities of its virtual machine's threads
    FOUND = "found"  # the agent found it correct and wrote nothing


class LargeEnvironment(NamedTuple):
    """A container with a large environment; of its variables only the size is kept."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    size: int  # bytes; a lower bound if the container's status exceeds the limit for a message

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}/{self.container} ({self.size / 2**20:.1f} MiB)"


class ListingFault(NamedTuple):
    """The runtime ends NRI connections instead of listing its containers."""

    reason: str
    # The containers with the largest environments; None: not known.
    largest: tuple[LargeEnvironment, ...] | None = None

    def __str__(self) -> str:
        if self.largest is None:
            return self.reason
        if not self.largest:
            return f"{self.reason}; no large environment was found, look for pods with thousands of labels"
        return f"{self.reason}; the largest are those of {', '.join(map(str, self.largest))}"


class LastUpdate(NamedTuple):
    """The last update of a container's resources about which the runtime asked the agent over NRI."""

    connection: int  # number of the connection; an update between two connections is not seen
    number: int  # of the container's updates in this connection; 0: none yet
    cpus: str  # the cpuset that the runtime applies and records; empty: unchanged


class StartWay(NamedTuple):
    """How the agent sets the CPUs of new containers."""

    path: Path  # nri: before the container's start; cgroup: usually before it; runtime: soon after it
    reason: str = ""  # why the path is not nri, if NRI was requested
    other_plugins: tuple[str, ...] = ()  # NRI plugins that also set the cpusets of new containers
    listing_fault: ListingFault | None = None
    rejected: frozenset[str] = frozenset()  # uids of pods of which a container was lately rejected over NRI


@dataclass(frozen=True, slots=True)
class Proof:
    """The cpuset of one container as read back from the kernel, with its history."""

    cpus: CPUSet  # the effective cpuset
    when: str  # RFC 3339 in UTC: when this cpuset was first read back
    path: Path = Path.FOUND
    outside: int = 0  # number of tasks that may run on CPUs other than assigned: drift
    narrowed: int = 0  # tasks that may run on fewer CPUs than the container has
    unread: str = ""  # why not all of its tasks were read; empty: they were
    window_seconds: float | None = None  # from the start of the container until its cpuset was correct
    tally: Tally | None = None  # tasks by affinity, of a container that may use more CPUs than its own
    # Seconds from the widening of the container's cpuset until all tasks were moved to own CPUs or pools.
    split_seconds: float | None = None


class MemoryKill(NamedTuple):
    """An OOM kill as the last termination of one of corepin's own containers on this node."""

    pod_uid: str
    pod: str
    container: str  # agent or guard
    when: str  # RFC 3339; empty: the kubelet does not report the time


class MemoryState(NamedTuple):
    """Result of a check of the NUMA nodes with a container's memory against its pod's memory policy."""

    word: NUMAMemory | None  # None: the container does not run, or nothing could be read
    note: str = ""  # a further hint for the user


@dataclass(frozen=True, slots=True)
class VMState:
    """The virtual machine of a pod, with the CPUs on which the kernel lets its threads run."""

    kind: str  # e.g. "qemu"
    cpus: CPUSet  # CPUs that its container owns, or all containers of its sandbox own; empty: none
    vcpus: tuple[CPUSet, ...]  # CPUs of each vCPU, in order; empty: vCPU threads cannot be identified
    emulator: CPUSet
    iothreads: tuple[CPUSet, ...] = ()
    vhost: CPUSet = EMPTY  # CPUs of all vhost threads together; empty: it has none
    is_one_to_one: bool = False  # each vCPU has a CPU of its own
    reason: str = ""  # why its vCPUs have no CPUs of their own
    note: str = ""  # a further hint for the user
    refused: tuple[str, ...] = ()  # roles of threads that the kernel does not let run on their CPUs
    guest_ids: tuple[GuestID, ...] = ()  # the guest's ids of each vCPU in a sandbox that has a CPU of its own
    when: str = ""  # RFC 3339 in UTC: when these CPUs were first read


@dataclass(frozen=True, slots=True)
class ContainerState:
    """A container that holds CPUs, was refused CPUs, or runs in the shared set of a pod that has CPUs."""

    name: str
    policy: CPUPolicy | None = None  # None: the container holds no CPUs of its own
    is_pooled: bool = False  # the container runs in the pool of its pod, or starts on the pod's CPUs
    smt: SMTPolicy | None = None
    numa: NUMAPolicy | None = None
    core_type: CoreType = CoreType.ANY
    cpus: CPUSet = EMPTY  # assigned: its own CPUs, otherwise the shared set
    others: CPUSet = EMPTY  # pools that it may use in addition
    sandbox: SandboxSet | None = None  # CPUs of the virtual machine that it runs in; None: it runs in none
    idle: CPUSet = EMPTY
    numa_nodes: tuple[int, ...] = ()
    proof: Proof | None = None  # None: the container does not run, or nothing could be read
    refusal: Refusal | None = None
    uncounted: str = ""  # text on the part of its claim that the scheduler does not count; empty: none
    memory: MemoryState | None = None  # None: its pod has no memory policy
    noise: NoiseLevel | None = None  # None: not known
    # Why its CPUs are not kept quiet; empty: they are; None: its pod does not ask for it.
    quiet: str | None = None
    kept: KeptInterrupts | None = (
        None  # None: its pod keeps no interrupt on its CPUs, or no round has checked yet
    )
    devices: tuple[
        DeviceKind, ...
    ] = ()  # known devices of a container with CPUs, and whether it runs near them
    # Why the devices of a container that holds CPUs are not known; empty: they are known, or it has none.
    devices_unknown: str = ""
    device_times: DeviceTimes | None = None  # None: an earlier agent has asked for its devices
    # Other containers, as namespace/pod/container, that the kernel lets run on its CPUs now.
    intruders: tuple[str, ...] = ()
    claims: tuple[
        str, ...
    ] = ()  # names of the ResourceClaims that hold its CPUs; empty: it holds them itself

    @property
    def applied(self) -> CPUSet | None:
        """The effective cpuset as read back from the kernel."""
        return self.proof.cpus if self.proof else None

    @property
    def wanted(self) -> CPUSet:
        """The planned effective cpuset: its CPUs and pools, or in a virtual machine the CPUs of that machine."""
        return self.sandbox.cpus if self.sandbox else self.cpus | self.others

    @property
    def is_pinned(self) -> bool:
        """Return whether the container holds CPUs, and the kernel confirmed that it runs on them."""
        return self.has_cpus and self.applied == self.wanted

    @property
    def has_cpus(self) -> bool:
        """Return whether the container holds CPUs, alone or shared with other containers of its pod."""
        return self.policy is not None or self.is_pooled

    @property
    def is_reported(self) -> bool:
        """Return whether the container's state is reported to the user."""
        return self.has_cpus or self.refusal is not None


class ClaimState(NamedTuple):
    """A ResourceClaim that holds CPUs for a pod."""

    name: str
    cpus: int  # number of CPUs
    asked: int | None  # CPUs requested before rounding up to whole cores; None: not known
    numa_nodes: tuple[int, ...]
    times: ClaimTimes


class PoolState(NamedTuple):
    """The pool of a pod: the CPUs of its budget that its containers do not own."""

    budget: int
    cpus: CPUSet  # empty: the containers own the whole budget
    idle: CPUSet = EMPTY


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod of the node, with all containers that it declares."""

    uid: str  # uid as the runtime knows it; of a static pod the hash of its manifest
    namespace: str
    name: str
    containers: tuple[ContainerState, ...] = ()
    refusal: Refusal | None = None  # refusal of the whole pod, because its request cannot be parsed
    is_known: bool = True  # False: the API server no longer shows the pod, but it runs or holds CPUs
    vm: VMState | None = None  # None: it has no virtual machine, or none that runs
    pool: PoolState | None = None  # None: the pod has no budget, or its CPUs do not fit
    claims: tuple[ClaimState, ...] = ()  # the claims that hold CPUs, in order of their names
    was_rejected: bool = False  # the creation of one of its containers was lately rejected over NRI
    is_held_back: bool = False  # that container would be rejected now too: others may run on its CPUs

    @property
    def is_reported(self) -> bool:
        """Return whether the pod gets a status annotation; a pod with a gate always gets one."""
        return (
            self.refusal is not None
            or self.is_gated
            or self.pool is not None
            or bool(self.claims)
            or (self.vm is not None and bool(self.vm.cpus))
            or any(container.is_reported for container in self.containers)
        )

    @property
    def is_gated(self) -> bool:
        """Return whether the pod has corepin's gate: an init container that waits for its CPUs in the annotation."""
        return any(container.name == GATE_CONTAINER for container in self.containers)


@dataclass(frozen=True, slots=True)
class Conflict:
    """Another program keeps changing the cpuset of a container, so the agent leaves it alone for a while."""

    container: str  # namespace/pod/container
    owner: Owner
    rewrites: int


@dataclass(frozen=True)
class NodeState:
    """One node after one pass of the loop."""

    node: str
    runtime: str  # e.g. "containerd 2.4.2"
    kubelet: KubeletPolicy
    observes: bool  # the agent assigns no CPUs here, because another program does
    # Universe, reserved, pools; in sets.topology CPUs outside of the universe count as offline.
    sets: NodeSets
    topology: Topology  # topology by the kernel, with CPUs that went offline
    ledger: Ledger
    shared: CPUSet
    # Pods as the pod source shows them, also finished ones, with their claims.
    seen_pods: tuple[SeenPod, ...] = ()
    pods: tuple[PodState, ...] = ()  # in order of namespace and name
    refusals: tuple[Refusal, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    failures: tuple[str, ...] = ()  # namespace/pod/container whose cpuset could not be set; it is retried
    pods_complete: bool = False
    containers_complete: bool = False
    runtime_reason: str = ""  # why the runtime did not list its containers; empty: it listed them
    kills: tuple[MemoryKill, ...] = ()  # OOM kills of corepin's own containers
    unready_guards: tuple[Owner, ...] = ()
    start_path: Path = Path.RUNTIME  # how containers that are created now get their CPUs
    start_reason: str = ""  # why the path is not nri, if NRI was requested
    other_plugins: tuple[str, ...] = ()  # NRI plugins that also set the cpusets of new containers
    listing_fault: ListingFault | None = None  # why the runtime accepts no NRI plugin
    # Pid of the first process of each container that runs on the host's kernel, by namespace/pod/container.
    first_pids: Mapping[str, int] = field(default_factory=dict)
    # Cgroup of each of these containers, if it is known.
    cgroups: Mapping[Owner, str] = field(default_factory=dict)
    tasks: tuple[Task, ...] = ()  # the processes that called `cmk isolate`, in order of their pids
    reclaimed: tuple[
        Reclaimed, ...
    ] = ()  # CPU lists whose processes died without releasing them, the newest last
    group: str = ""  # node group whose configuration the agent started with; empty: none
    topology_manager: str = ""  # policy of the kubelet's topology manager; empty: not known
    free_devices: FreeDevices | None = None  # None: the devices are not known, or were not asked for
    reclaims_dropped: int = 0  # number of older entries that were dropped
    keeps: Mapping[Owner, Keep] = field(
        default_factory=dict
    )  # the interrupts that stay on CPUs if these are quiet
    quiet: QuietResult | None = None  # None: the agent does not move interrupts here
    # Not compared, because counts change all the time; published on the local socket only.
    noise: Mapping[Owner, ContainerNoise] = field(default_factory=dict, compare=False)
    execs: Mapping[Owner, ContainerExecs] = field(default_factory=dict, compare=False)
    # Why the execs of exclusive containers are not counted; empty: they are; None: the runtime is not asked.
    execs_reason: str | None = field(default=None, compare=False)

    @property
    def is_synchronised(self) -> bool:
        """Return whether pods and containers were listed in full, so that numbers may be published."""
        return self.pods_complete and self.containers_complete

    @property
    def names(self) -> Mapping[str, tuple[str, str]]:
        """Namespace and name of each pod, by the uid that the runtime reports."""
        return {pod.uid: (pod.namespace, pod.name) for pod in self.pods}

    @property
    def free(self) -> CPUSet:
        """The CPUs that can still be assigned."""
        return self.sets.allocatable - self.ledger.held

    @property
    def exclusive_pool(self) -> CPUSet:
        """The online CPUs that claims may get, assigned or not."""
        return self.sets.pools.exclusive & self.sets.allocatable & self.sets.topology.online

    @property
    def near_free(self) -> dict[str, int]:
        """Number of free CPUs on the NUMA nodes of free devices, by the resource that counts them; empty if off."""
        if self.free_devices is None:
            return {}
        pool = self.exclusive_pool
        zones = zone_cpus(self.sets.topology, pool, self.free, self.shared)
        free = {zone.numa_node: zone.free for zone in zones}
        total = free_cpus(pool, self.free, self.shared)
        return near_counts(rooms(self.topology, free, total, self.free_devices))

    @property
    def idle(self) -> CPUSet:
        """Siblings that are charged to an owner and kept idle."""
        return union(part.idle for part in self.ledger.parts)
