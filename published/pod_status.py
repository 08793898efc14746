"""The annotation `status.corepin.io/cpus` of a pod. Other readers: `shim/guest.c`, and `corepin gate` without msgspec."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

from published.codec import Part, Published, no_items, no_members

POOL_OWNER: Final = "(pool)"  # stands for the pool of a pod where owners are named namespace/pod/container
MOST_VCPUS: Final = 1024
POD: Final = "pod"  # the policy of a container in the pool of its pod
MOST_RESOURCES: Final = 16  # of a container's devices
MOST_CLAIMS: Final = 4  # of a container; all containers of a pod may name the same ones


class Affinity(Part, frozen=True):
    """Number of a container's tasks by the CPUs that they may run on."""

    home: int = msgspec.field(default_factory=int)  # its own alone
    others: int = msgspec.field(default_factory=int)  # the shared ones alone
    both: int = msgspec.field(default_factory=int)


class Applied(Part, frozen=True):
    """CPUs read back from the kernel."""

    cpus: str = ""
    time: str = ""  # RFC 3339 in UTC, at which they became so
    path: str = ""
    window_seconds: float | None = None  # from its start until they were right; None: not known
    split_seconds: float | None = None
    outside: int = 0  # tasks allowed on other CPUs; this and what follows is on the socket alone
    narrowed: int = 0  # tasks allowed on fewer CPUs
    affinity: Affinity | None = None


class Noise(Part, frozen=True):
    """Noise on the CPUs of a container; a count is None if unknown."""

    kind: str = ""  # kind of noise above the operator's limit; empty: none
    since: str = ""  # RFC 3339 in UTC
    # The counts of these seconds, on the socket alone.
    seconds: float = 0.0
    interrupts: int | None = None  # of devices
    softirqs: int | None = None
    wait_seconds: float | None = None  # of its threads on run queues
    involuntary_switches: int | None = None  # of its threads
    other_slices: int | None = None  # timeslices of other threads
    unknown: tuple[str, ...] = ()


class Execs(Part, frozen=True):
    """Processes that entered a container by exec since the agent began to count; on the socket alone."""

    count: int = msgspec.field(default_factory=int)
    placed: int = 0  # processes moved to `cpus`
    cpus: str = ""  # CPUs of moved processes; empty: they stay on the container's CPUs
    seconds: float | None = (
        None  # the longest time from the start of one until it was there; None: none was put there
    )
    time: str = ""  # of the last one, RFC 3339 in UTC


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
    """CPUs of a virtual machine's threads."""

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
    cpus: str = ""  # on the socket alone: the CPUs that its containers hold


class Device(Part, frozen=True):
    """The devices that a container has of one resource."""

    resource: str = msgspec.field(default_factory=str)
    count: int = msgspec.field(default_factory=int)
    nodes: tuple[int, ...] = msgspec.field(default_factory=no_items)  # NUMA nodes; empty: not known
    near: bool | None = msgspec.field(default_factory=lambda: None)  # None: not known


class Container(Part, frozen=True):
    """A container that holds CPUs or was refused some; on the socket every container."""

    policy: str = ""  # empty: it holds no CPUs of its own
    smt_policy: str = ""
    numa_policy: str = ""
    cpus: str = ""  # on the socket without a policy too: the container's CPUs
    idle: str | None = None  # None: it has no policy
    numa_nodes: tuple[int, ...] | None = None  # None: it has no policy
    core_type: str = ""  # empty: of any type
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
    more_devices: int = 0  # resources beside the MOST_RESOURCES of `devices`
    devices_unknown: str = ""  # why its devices are not known
    intruders: tuple[str, ...] = ()
    uncounted: str = ""
    not_proven: str = ""  # why not all of its tasks were looked at
    noise: Noise | None = None  # None: nothing to report
    execs: Execs | None = None  # None: no exec was seen
    not_quiet: str = ""  # why its CPUs are not kept quiet, where its pod asks for that
    quiet: bool = False  # on the socket alone: interrupts are kept off its CPUs
    not_kept: str = ""  # parts of its `irq-policy` that keep no interrupt on its CPUs
    kept: tuple[str, ...] = ()  # on the socket alone: interrupts that may fire on its CPUs, by that policy
    origin: str = ""  # `dra`: its CPUs are those of ResourceClaims; empty: of anything else
    claims: tuple[str, ...] = ()  # names of these ResourceClaims, in the namespace of its pod, truncated
    more_claims: int = 0  # claims beside the MOST_CLAIMS of `claims`


class Pool(Part, frozen=True):
    """The pool of a pod: the CPUs of its budget that are not slices of containers."""

    budget: int = msgspec.field(default_factory=int)
    cpus: str = msgspec.field(default_factory=str)  # empty: the slices leave no CPU
    idle: str = ""


class PodClaim(Part, frozen=True):
    """A ResourceClaim of the pod that holds CPUs."""

    name: str = ""  # truncated
    cpus: int = 0  # their number
    asked: int | None = None  # CPUs that its requests name, before they were rounded up; None: not known
    numa_nodes: tuple[int, ...] = ()
    prepared: str = ""  # when the kubelet asked for it, RFC 3339 in UTC; empty: not yet, or not known
    waits: str = ""  # since when it waits for the kubelet, RFC 3339 in UTC; empty: it does not
    tries: int = 0  # how often the kubelet was reminded of it since then: it tries again when this changes


class PodStatus(Published, frozen=True):
    """The status of a pod."""

    NAME: ClassVar = "the agent's status of the pod"
    VERSION: ClassVar = 1

    refusal: Refusal | None = None
    containers: dict[str, Container] = msgspec.field(default_factory=no_members)
    vm: Machine | None = None
    pool: Pool | None = None
    claims: tuple[PodClaim, ...] = ()  # at most MOST_CLAIMS
