"""The agent's state on its local socket: the content of all pod annotations, and more facts."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from published.codec import Part, Published, no_members
from published.node_pools import Sets
from published.pod_status import Container, Machine, PodClaim, Pool, Refusal


class Pod(Part, frozen=True):
    """A pod of the node with all of its containers."""

    uid: str = ""  # uid of the pod that the runtime reports
    namespace: str = ""
    name: str = ""
    known: bool = msgspec.field(default_factory=bool)  # whether the API server shows the pod
    refusal: Refusal | None = None
    containers: dict[str, Container] = msgspec.field(default_factory=no_members)
    vm: Machine | None = None
    pool: Pool | None = None
    claims: tuple[PodClaim, ...] = ()


class NamedRefusal(Refusal, frozen=True):
    """A refusal, with its container."""

    container: str = ""
    name: str = ""  # namespace/pod/container


class Conflict(Part, frozen=True):
    """A container whose CPUs another program keeps changing."""

    container: str = ""  # namespace/pod/container
    rewrites: int = 0


class MemoryKill(Part, frozen=True):
    """An OOM kill of one of corepin's own containers."""

    pod_uid: str = msgspec.field(default="", name="podUID")
    pod: str = ""
    container: str = ""
    time: str = ""


class Task(Part, frozen=True):
    """A process that called `cmk isolate`."""

    pid: int = 0
    container: str = ""
    pool: str = ""
    cpus: str = ""


class Reclaimed(Part, frozen=True):
    """A CPU list whose process exited without releasing it."""

    pid: int = 0
    container: str = ""
    pool: str = ""
    cpus: str = ""
    source: str = ""


class QuietPart(Part, frozen=True):
    """Result of a setting besides interrupts that the agent changes for quiet CPUs: workqueues or idle states."""

    name: str = ""  # a word of `pinning.contract.QuietWord`, or of a later version
    reason: str = ""  # why the setting is not applied; empty: it is applied
    conflicts: tuple[str, ...] = ()  # values that another program keeps changing back


class KeptInterrupts(Part, frozen=True):
    """Interrupts that an `irq-policy` allows on the quiet CPUs of a container, or of a pod's pool."""

    container: str = ""  # namespace/pod/container, or namespace/pod
    cpus: str = ""
    numbers: tuple[str, ...] = ()
    names: tuple[str, ...] = ()  # names of the first interrupts, each with its number
    note: str = ""  # words of the policy that match no interrupt, and interrupts that may still be moved


class Quiet(Part, frozen=True):
    """Result of moving interrupts off quiet CPUs, and of the other enabled settings (workqueues, idle states)."""

    cpus: str = ""
    reason: str = ""  # why interrupts are not kept off; empty: they are, except managed ones
    managed: tuple[str, ...] = ()  # interrupts that the kernel alone places
    conflicts: tuple[str, ...] = ()  # interrupts that another program keeps moving back
    # Why irqbalance may use quiet CPUs, in which case no further interrupt is moved; empty: it does not run, is banned
    # from them, or is configured by the operator.
    irqbalance: str = ""
    parts: tuple[QuietPart, ...] = ()
    is_off: bool = False  # the operator has switched off the moving of interrupts; `reason` says so
    fully: str | None = None  # CPUs for which workqueues and idle states are changed; None: all of `cpus`
    kept: tuple[KeptInterrupts, ...] = ()


class AgentSets(Sets, frozen=True, kw_only=True):
    """The CPU sets in use by the agent."""

    allocatable: str = msgspec.field(default_factory=str)
    idle: str = msgspec.field(default_factory=str)
    exclusive_pool: str = msgspec.field(default_factory=str)
    non_isolcpus_pool: str = msgspec.field(default_factory=str)


class AgentState(Published, frozen=True, kw_only=True, omit_defaults=False):
    """The state of a node's agent, as its local socket serves it."""

    NAME: ClassVar = "the agent's state"
    VERSION: ClassVar = 2

    node: str
    runtime: str = ""
    kubelet: str = ""
    group: str = ""
    topology_manager: str = ""
    observes: bool = False
    pods_complete: bool = False
    containers_complete: bool = False
    runtime_reason: str = ""
    memory_kills: tuple[MemoryKill, ...] = ()
    start_path: str = ""
    start_reason: str = ""
    listing_fault: str = ""
    other_plugins: tuple[str, ...] = ()
    topology: dict[str, Any]  # from `Topology.to_dict`
    sets: AgentSets
    strict_reserved: bool = False
    static_pools: bool = False
    system_namespaces: tuple[str, ...] = ()
    # CPU requests of the pods in these namespaces; of those in kube-system if the configuration names no namespaces.
    system_millicores: int = 0
    ledger: dict[str, Any]  # from `ledger_to_dict`
    pods: tuple[Pod, ...] = ()
    refusals: tuple[NamedRefusal, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    failures: tuple[str, ...] = ()
    first_pids: dict[str, int] = msgspec.field(default_factory=dict)
    tasks: tuple[Task, ...] = ()
    reclaimed: tuple[Reclaimed, ...] = ()
    reclaims_dropped: int = 0
    quiet: Quiet | None = None  # None: the agent cannot move interrupts
    # Why execs of exclusive containers are not counted; empty: they are counted; None: not known.
    execs_reason: str | None = None
