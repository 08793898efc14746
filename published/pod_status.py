"""The annotation `status.corepin.io/cpus` of a pod. `shim/guest.c` and `corepin gate` have parsers of their own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from published.codec import Part, Published, no_items, no_members

POOL_OWNER: Final = "(pool)"  # in place of a container's name in an owner's name, for the pool of the pod
MOST_VCPUS: Final = 1024
POD: Final = "pod"  # policy of a container that runs in the pool of its pod
MOST_RESOURCES: Final = 16  # most device resources listed of a container
MOST_CLAIMS: Final = 4  # most claims listed of a container; all containers of a pod may name the same claims


class Affinity(Part, frozen=True):
    """Number of a container's tasks by the CPUs that they may run on."""

    home: int = msgspec.field(default_factory=int)  # number of tasks on its own CPUs only
    others: int = msgspec.field(default_factory=int)  # number of tasks on the shared CPUs only
    both: int = msgspec.field(default_factory=int)


class Applied(Part, frozen=True):
    """The CPUs of a container as the kernel showed them, and when."""

    cpus: str = ""
    time: str = ""  # when these CPUs were first read back, RFC 3339 in UTC
    path: str = ""
    # Seconds from the container's start until it had these CPUs; None: not known.
    window_seconds: float | None = None
    split_seconds: float | None = None
    outside: int = 0  # tasks that may run on other CPUs; this and the members below are on the socket only
    narrowed: int = 0  # tasks that may run on fewer CPUs than the container has
    affinity: Affinity | None = None


class Noise(Part, frozen=True):
    """Noise on the CPUs of a container; a count that is not known is None."""

    kind: str = ""  # kind of noise above the operator's limit; empty: none
    since: str = ""  # when this noise began, RFC 3339 in UTC
    # Length of the interval in which the following members were counted; these and the length are on the socket only.
    seconds: float = 0.0
    interrupts: int | None = None  # number of interrupts of devices
    softirqs: int | None = None
    wait_seconds: float | None = None  # time that its threads waited on run queues
    involuntary_switches: int | None = None  # involuntary context switches of its threads
    other_slices: int | None = None  # timeslices of other threads on its CPUs
    unknown: tuple[str, ...] = ()


class Execs(Part, frozen=True):
    """Processes that entered a container by exec since the agent began to count; on the socket only."""

    count: int = msgspec.field(default_factory=int)
    placed: int = 0  # number of processes moved to `cpus`
    cpus: str = ""  # CPUs of moved processes; empty: they stay on the container's CPUs
    # Longest time from a process's start until it was moved to `cpus`; None: no process was moved.
    seconds: float | None = None
    time: str = ""  # when the last process entered, RFC 3339 in UTC


class Refusal(Part, frozen=True):
    """The reason why a claim was refused."""

    reason: str = ""
    message: str = ""
    blocks_start: bool = msgspec.field(default_factory=bool)


class GuestPlace(Part, frozen=True):
    """Position of a vCPU in the topology that the guest shows."""

    socket: int = msgspec.field(default_factory=int)
    core: int = msgspec.field(default_factory=int)
    thread: int = msgspec.field(default_factory=int)


class Machine(Part, frozen=True):
    """The CPUs of each kind of thread of a virtual machine."""

    kind: str = msgspec.field(default_factory=str)
    vcpus: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_VCPUS)] = msgspec.field(
        default_factory=no_items
    )
    one_to_one: bool = msgspec.field(default_factory=bool)
    emulator: str = ""
    iothreads: tuple[str, ...] = ()
    vhost: str = ""
    reason: str = ""
    note: str = ""
    refused: tuple[str, ...] = ()
    guest: tuple[GuestPlace, ...] = ()
    time: str = msgspec.field(default_factory=str)
    cpus: str = ""  # on the socket only: the CPUs that its containers hold


class Device(Part, frozen=True):
    """The devices that a container has of one resource."""

    resource: str = msgspec.field(default_factory=str)
    count: int = msgspec.field(default_factory=int)
    nodes: tuple[int, ...] = msgspec.field(default_factory=no_items)  # NUMA nodes; empty: not known
    # Whether the container runs near all of them; None: not known.
    near: bool | None = msgspec.field(default_factory=lambda: None)


class Container(Part, frozen=True):
    """A container that holds CPUs or was refused CPUs; on the socket every container."""

    policy: str = ""  # CPU policy; empty: the container holds no CPUs of its own
    smt_policy: str = ""
    numa_policy: str = ""
    cpus: str = ""  # the container's CPUs; on the socket also those of containers without a policy
    idle: str | None = None  # siblings kept idle for it; None: it has no policy
    numa_nodes: tuple[int, ...] | None = None  # NUMA nodes of its CPUs; None: it has no policy
    core_type: str = ""  # core type of its CPUs; empty: any type
    shared_cpus: str = ""
    confined_by: str = ""
    cpu_limit: str = ""
    memory: str = ""
    memory_note: str = ""
    pinned: bool = msgspec.field(default_factory=bool)
    vcpus: tuple[int, ...] | None = None
    applied: Applied | None = None
    refusal: Refusal | None = None
    drift: bool = False
    devices: tuple[Device, ...] = ()
    more_devices: int = 0  # number of device resources above the MOST_RESOURCES of `devices`
    devices_unknown: str = ""  # why its devices are not known; empty: they are known
    devices_asked: str = ""  # when the agent first asked the kubelet for its devices, RFC 3339 in UTC
    devices_named: str = ""  # when the kubelet had named all of them, RFC 3339 in UTC
    intruders: tuple[str, ...] = ()
    uncounted: str = ""
    not_proven: str = ""  # why not all of its tasks were read; empty: all were read
    noise: Noise | None = None  # None: no noise above a limit, or none is counted
    execs: Execs | None = None  # None: no exec was seen
    not_quiet: str = ""  # why its CPUs are not kept quiet, if its pod asks for that
    quiet: bool = False  # on the socket only: interrupts are kept off its CPUs
    not_kept: str = ""  # parts of its `irq-policy` that keep no interrupt on its CPUs
    kept: tuple[str, ...] = ()  # on the socket only: interrupts that its `irq-policy` allows on its CPUs
    origin: str = ""  # `dra`: its CPUs are those of ResourceClaims; empty: it holds them itself
    claims: tuple[str, ...] = ()  # truncated names of these ResourceClaims, in the namespace of its pod
    more_claims: int = 0  # number of claims above the MOST_CLAIMS of `claims`


class Pool(Part, frozen=True):
    """The pool of a pod: the CPUs of its budget that are not slices of containers."""

    budget: int = msgspec.field(default_factory=int)
    cpus: str = msgspec.field(default_factory=str)  # empty: the containers own the whole budget
    idle: str = ""


class PodClaim(Part, frozen=True):
    """A ResourceClaim of the pod that holds CPUs."""

    name: str = ""  # name of the ResourceClaim, truncated
    cpus: int = 0  # number of CPUs
    asked: int | None = None  # CPUs that its requests name, before they were rounded up; None: not known
    numa_nodes: tuple[int, ...] = ()
    prepared: str = ""  # when the kubelet asked for it, RFC 3339 in UTC; empty: not yet, or not known
    waits: str = ""  # since when it waits for the kubelet, RFC 3339 in UTC; empty: it does not wait
    tries: int = 0  # number of reminders; a higher number changes the pod, so that the kubelet retries


class PodStatus(Published, frozen=True):
    """The status of a pod."""

    NAME: ClassVar = "the agent's status of the pod"
    VERSION: ClassVar = 1

    refusal: Refusal | None = None
    containers: dict[str, Container] = msgspec.field(default_factory=no_members)
    vm: Machine | None = None
    pool: Pool | None = None
    claims: tuple[PodClaim, ...] = ()  # at most MOST_CLAIMS
    # Time since which a container that the agent had rejected may start, RFC 3339 in UTC; a new value changes the pod,
    # so that the kubelet retries.
    may_start: str = ""
