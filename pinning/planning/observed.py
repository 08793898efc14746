"""What the agent sees of one node when it plans: values, already read, with nothing left to look up.

A pod is read once, when the API sends it; planning over 250 containers must not read them again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pinning.contract import GATE_CONTAINER, STATUS_CPUS
from pinning.errors import PinningError
from pinning.json_text import parse_json
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.pods.claims import MOST_CONTAINERS, count_containers, is_launcher, read_pod
from pinning.pods.counted import counts_of
from pinning.pods.identity import name_of, runtime_uid
from pinning.pods.phase import is_final
from pinning.pods.resources import members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.contract import PoolUse
    from pinning.errors import Cause
    from pinning.machine.topology import Topology
    from pinning.pods.claims import Claim
    from pinning.pods.counted import Count
    from pinning.pods.types import Pod


class Owner(NamedTuple):
    """Who may hold CPUs: one container of one pod, whichever of its restarts runs."""

    pod_uid: str
    container: str


class State(StrEnum):
    """Where a container of the runtime is in its life."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class SeenPod:
    """A pod as the API shows it, with its claims."""

    uid: str  # as the runtime knows it
    namespace: str
    name: str
    created: str  # RFC 3339 with seconds in UTC, so that texts sort as times do
    claims: tuple[Claim, ...]
    start_order: tuple[str, ...]  # names of its containers as they start one after the other; () of too many
    is_final: bool = False  # its phase is Succeeded or Failed
    is_vm: bool = False  # a launcher pod of KubeVirt
    runtime_class: str = ""  # a user names it, an admin defines it; its handler is not known here
    causes: tuple[Cause, ...] = ()
    warnings: tuple[Cause, ...] = ()
    counts: tuple[Count, ...] = ()  # what the scheduler counts for claims of whole cores
    said: str = field(default="", compare=False)  # what an agent has written on it

    @classmethod
    def of(cls, pod: Pod, uid: str | None = None) -> SeenPod:
        """Read a pod of the API; without a uid it is believed whose mirror it says to be."""
        metadata = pod.get("metadata") or {}
        (namespace, name), asked = name_of(pod), read_pod(pod)
        is_crowd = count_containers(pod) > MOST_CONTAINERS
        return cls(
            uid=runtime_uid(pod) if uid is None else uid,
            namespace=namespace,
            name=name,
            created=metadata.get("creationTimestamp") or "",
            claims=asked.claims,
            start_order=() if is_crowd else tuple(member.name for member in members(pod)),
            is_final=is_final(pod),
            is_vm=is_launcher(pod),
            runtime_class=(pod.get("spec") or {}).get("runtimeClassName") or "",
            causes=asked.causes,
            warnings=asked.warnings,
            counts=counts_of(pod, asked),
            said=(metadata.get("annotations") or {}).get(STATUS_CPUS, ""),
        )

    @property
    def status(self) -> Mapping[str, CPUSet]:
        """Which CPUs its containers hold by what an agent has written on it: a hint, which may be damaged."""
        with suppress(ValueError, AttributeError, TypeError, PinningError):
            containers = parse_json(self.said)["containers"].items()
            return {name: CPUSet.parse(held["cpus"]) for name, held in containers if "policy" in held}
        return {}

    @property
    def is_gated(self) -> bool:
        """Whether none of its containers starts before the CPUs that must fit are assigned."""
        return GATE_CONTAINER in self.start_order

    @property
    def age(self) -> tuple[str, str]:
        """The total order of pods: oldest first, then by uid."""
        return self.created, self.uid


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """A container as the runtime has it; `cpus` is what was read back from the kernel, empty when nothing was."""

    id: str
    owner: Owner  # whose restart this is
    state: State
    cpus: CPUSet
    sandbox: str = ""  # the id of the virtual machine that it runs in (Kata); empty: it runs on the host
    home: CPUSet = (
        EMPTY  # where its tasks were put, of one that runs on more than it owns; empty: nowhere yet
    )
    starts_at_home: bool = False  # its first process is put there before it runs, however wide its cpuset is
    is_divisible: bool = (
        True  # false: nobody knows its cgroup, so its tasks cannot be kept on parts of its CPUs
    )

    @property
    def is_running(self) -> bool:
        """Say whether it runs."""
        return self.state is State.RUNNING

    @property
    def is_live(self) -> bool:
        """Say whether it runs, or may start to run at any moment."""
        return self.state is not State.EXITED


@dataclass(frozen=True, slots=True)
class SeenSandbox:
    """A virtual machine in which the containers of one pod run (Kata): its threads can only be moved together.

    Where they may run is read from the kernel, whatever the runtime was told; empty when nothing was read.
    """

    id: str
    pod_uid: str
    cpus: CPUSet  # of all threads together
    vcpus: CPUSet = EMPTY  # of its vCPUs' threads alone; empty where these cannot be told from the others
    sent: tuple[CPUSet, ...] = ()  # what the runtime took last for each live container; () where it gets none
    is_movable: bool = True  # false: neither its threads nor the runtime can be told
    is_awaited: bool = True  # false: others have waited long enough until it leaves their CPUs


@dataclass(frozen=True)
class Observed:
    """One node at one moment."""

    topology: Topology  # with what is online now, and what was known before
    universe: CPUSet  # online, within the effective cpuset of the kubelet's pod root
    pods: tuple[SeenPod, ...] = ()
    containers: tuple[SeenContainer, ...] = ()
    sandboxes: tuple[SeenSandbox, ...] = ()  # with or without containers
    pods_complete: bool = True  # the API has listed every pod of the node
    containers_complete: bool = True  # the runtime has listed every container
    holds_starts: bool = False  # what must fit and does not is not started
    # Pools that processes of containers run on now, besides those that the containers' pods ask for.
    uses: Mapping[Owner, frozenset[PoolUse]] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def live(self) -> tuple[SeenContainer, ...]:
        """Containers that run or may start, in a total order."""
        live = (container for container in self.containers if container.is_live)
        return tuple(sorted(live, key=lambda container: (*container.owner, container.id)))

    @property
    def live_on_host(self) -> Iterator[SeenContainer]:
        """The live containers that run in no sandbox, in a total order."""
        return (container for container in self.live if container.sandbox not in self.live_in)

    @cached_property
    def live_in(self) -> Mapping[str, tuple[SeenContainer, ...]]:
        """The live containers of each sandbox, by its id, in a total order."""
        inside: dict[str, tuple[SeenContainer, ...]] = {sandbox.id: () for sandbox in self.sandboxes}
        for container in self.live:
            if container.sandbox in inside:
                inside[container.sandbox] += (container,)
        return inside

    @cached_property
    def undivided(self) -> frozenset[Owner]:
        """The containers whose tasks nobody can keep apart."""
        return frozenset(container.owner for container in self.live if not container.is_divisible)

    @cached_property
    def live_uids(self) -> frozenset[str]:
        """The pods that have a live container."""
        return frozenset(container.owner.pod_uid for container in self.live)

    @cached_property
    def running(self) -> frozenset[Owner]:
        """The containers that run."""
        return frozenset(container.owner for container in self.live if container.is_running)

    @cached_property
    def by_age(self) -> tuple[SeenPod, ...]:
        """The pods that are not over, oldest first, each uid once."""
        pods = {pod.uid: pod for pod in sorted(self.pods, key=lambda pod: pod.age, reverse=True)}
        return tuple(sorted((pod for pod in pods.values() if not pod.is_final), key=lambda pod: pod.age))

    @cached_property
    def known_uids(self) -> frozenset[str]:
        """The pods that the API has, and that are not over."""
        return frozenset(pod.uid for pod in self.by_age)

    def is_gone(self, pod_uid: str) -> bool:
        """Say whether nothing of a pod is left: not in the API or over, and nothing of it runs."""
        complete = self.pods_complete and self.containers_complete
        return complete and pod_uid not in self.known_uids and pod_uid not in self.live_uids
