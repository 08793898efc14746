"""Observation of one node that a plan is made from: values only, read beforehand.

A pod's claims are computed once, when the API server sends the pod; planning with 250 containers does not repeat it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.contract import GATE_CONTAINER, STATUS_CPUS, UNTRUSTED, UNTRUSTED_WORKLOAD
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.pods.claims import read_pod
from pinning.pods.counted import counts_of
from pinning.pods.crowd import MOST_CONTAINERS, count_containers
from pinning.pods.device_claims import claim_names, claim_uses
from pinning.pods.identity import name_of, runtime_uid
from pinning.pods.launcher import is_launcher
from pinning.pods.phase import is_final
from pinning.pods.resources import Role, count_devices, members

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pinning.contract import PoolUse
    from pinning.dra.claims import SeenClaims
    from pinning.errors import Cause
    from pinning.machine.topology import Topology
    from pinning.pods.claims import Budget, Claim
    from pinning.pods.counted import Count
    from pinning.pods.device_claims import ClaimUse
    from pinning.pods.types import Pod


DEVICES_NOT_NAMED: Final = "the kubelet has not named its devices yet"
MORE_MAY_FOLLOW: Final = f"{DEVICES_NOT_NAMED}, or not all: more may follow until its pod's sandbox runs"
# Reasons that apply to every container with devices for some milliseconds when it starts.
AT_EACH_START: Final = frozenset({DEVICES_NOT_NAMED, MORE_MAY_FOLLOW})
# Used in place of a runtime class for pods that containerd starts with its handler `untrusted`; no runtime class can
# have this name.
UNTRUSTED_CLASS: Final = f"{UNTRUSTED_WORKLOAD}={UNTRUSTED}"


def claim_not_known(name: str) -> Device:
    """Return the placeholder for the devices of a ResourceClaim while these are not known."""
    return Device(f"resourceclaim/{name}", EMPTY)


class DeviceTimes(NamedTuple):
    """When the agent first asked the kubelet for the devices of a pod, and when all were known: RFC 3339 in UTC."""

    asked: str
    named: str


def _runtime_class(pod: Pod) -> str:
    """Return the runtime class of a pod, or UNTRUSTED_CLASS, because that handler may start a virtual machine too."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    implied = UNTRUSTED_CLASS if annotations.get(UNTRUSTED_WORKLOAD) == UNTRUSTED else ""
    return (pod.get("spec") or {}).get("runtimeClassName") or implied


def _device_kinds(pod: Pod) -> dict[str, int]:
    lasting = (member for member in members(pod) if member.role is not Role.INIT)
    return {member.name: kinds for member in lasting if (kinds := count_devices(member.container))}


class Owner(NamedTuple):
    """Key of an assignment: a container of a pod. It stays the same across restarts of the container."""

    pod_uid: str
    container: str


class State(StrEnum):
    """The lifecycle state of a container in the runtime."""

    CREATED = "created"
    RUNNING = "running"
    EXITED = "exited"


@dataclass(frozen=True)
class SeenPod:
    """A pod of the API with its claims."""

    uid: str  # the uid that the runtime knows; of a static pod it differs from that of its mirror
    namespace: str
    name: str
    created: str  # RFC 3339 with seconds in UTC, so that texts sort as times do
    claims: tuple[Claim, ...]
    start_order: tuple[str, ...]  # names of its containers in start order; empty if there are too many
    is_final: bool = False  # the phase is Succeeded or Failed
    is_vm: bool = False  # a launcher pod of KubeVirt
    # Name of its runtime class; the handler of that class is not known here. UNTRUSTED_CLASS: the user selected the
    # handler by an annotation.
    runtime_class: str = ""
    causes: tuple[Cause, ...] = ()
    warnings: tuple[Cause, ...] = ()
    counts: tuple[Count, ...] = ()  # extended resources that it requests for its whole-core claims
    unclaimed_millicores: int = 0  # CPU requests of its containers without claims
    # Number of device resources in a container's limits, by container; without ordinary init containers.
    device_kinds: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    budget: Budget | None = None
    claim_uses: tuple[ClaimUse, ...] = ()  # ResourceClaims of each container that names some
    # Names of its ResourceClaims, also of those that no container names.
    claim_names: frozenset[str] = frozenset()
    said: str = field(default="", compare=False)  # the status annotation that it has

    @classmethod
    def of(cls, pod: Pod, uid: str | None = None) -> SeenPod:
        """Read a pod of the API; without `uid` its mirror annotation is trusted for the uid."""
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
            runtime_class=_runtime_class(pod),
            causes=asked.causes,
            warnings=asked.warnings,
            counts=counts_of(pod, asked),
            unclaimed_millicores=asked.unclaimed_millicores,
            device_kinds={} if is_crowd else _device_kinds(pod),
            budget=asked.budget,
            claim_uses=claim_uses(pod, asked),
            claim_names=frozenset(claim_names(pod).values()),
            said=(metadata.get("annotations") or {}).get(STATUS_CPUS, ""),
        )

    @cached_property
    def in_turn(self) -> tuple[tuple[Claim, Owner, int], ...]:
        """Return the claims in the order in which they are served, with their owners; none if slices exceed the budget.

        They are computed once for a pod, because each plan reads them. The number with each claim is `Ask.wanted`,
        always 0 here.
        """
        claims = self.budget.in_turn if self.budget else self.claims
        return tuple([(claim, Owner(self.uid, claim.container), 0) for claim in claims])

    @property
    def all_claims(self) -> tuple[Claim, ...]:
        """The claims of its containers, and the claim of its pool."""
        return (*self.claims, self.budget.rest) if self.budget else self.claims

    @property
    def device_containers(self) -> frozenset[str]:
        """Containers whose limits name devices, without ordinary init containers."""
        return frozenset(self.device_kinds)

    @property
    def named_claims(self) -> Mapping[str, frozenset[str]]:
        """Names of ResourceClaims by container, without ordinary init ones."""
        return {
            use.container: frozenset(request.claim for request in use.requests)
            for use in self.claim_uses
            if use.role is not Role.INIT
        }

    @property
    def is_gated(self) -> bool:
        """Whether corepin's gate holds its containers back until the CPUs that must fit are assigned."""
        return GATE_CONTAINER in self.start_order

    @property
    def age(self) -> tuple[str, str]:
        """Sort key of pods: oldest first, then by uid."""
        return self.created, self.uid


@dataclass(frozen=True, slots=True)
class SeenContainer:
    """A container of the runtime; `cpus` is its cpuset read back from the kernel, empty if it was not read."""

    id: str
    owner: Owner  # pod and container name, the same after each restart
    state: State
    cpus: CPUSet
    sandbox: str = ""  # id of the virtual machine that it runs in (Kata); empty: it runs on the host
    # CPUs to which its tasks were moved, if it may run on more than it owns; empty: they were not moved yet.
    home: CPUSet = EMPTY
    starts_at_home: bool = False  # its first process is moved to its own CPUs before it runs
    namespace: str = ""  # namespace of its pod, as the runtime knows it
    # False: its cgroup is unknown, so its tasks cannot be kept on parts of its CPUs.
    is_divisible: bool = True
    # Id of its pod's sandbox, which a restart of the whole pod replaces; empty: unknown.
    pod_sandbox: str = ""

    @property
    def is_running(self) -> bool:
        """Return whether the container runs."""
        return self.state is State.RUNNING

    @property
    def is_live(self) -> bool:
        """Return whether the container runs or may start at any moment."""
        return self.state is not State.EXITED


@dataclass(frozen=True, slots=True)
class SeenSandbox:
    """A virtual machine that runs the containers of one pod (Kata); its threads are moved together.

    Its CPUs are read back from the kernel, because the runtime's record can differ; empty if they were not read.
    """

    id: str
    pod_uid: str
    cpus: CPUSet  # CPUs of all threads together
    vcpus: CPUSet = EMPTY  # CPUs of its vCPU threads alone; empty: these cannot be identified
    # Last cpuset that the runtime accepted for each live container; empty: it accepted none.
    sent: tuple[CPUSet, ...] = ()
    is_movable: bool = True  # False: neither its threads nor the runtime can be reached
    is_awaited: bool = True  # False: its wait budget is spent, so others no longer wait for its CPUs


@dataclass(frozen=True)
class Observed:
    """The pods, containers and CPUs of one node as they were read at one moment."""

    topology: Topology  # online CPUs as of now, and all CPUs that were known before
    universe: CPUSet  # online CPUs within the effective cpuset of the kubelet's pod root
    pods: tuple[SeenPod, ...] = ()
    containers: tuple[SeenContainer, ...] = ()
    sandboxes: tuple[SeenSandbox, ...] = ()  # also sandboxes without containers
    pods_complete: bool = True  # the API has listed every pod of the node
    containers_complete: bool = True  # the runtime has listed every container
    # Containers that must not start unpinned are held back until their claims fit; None: not known, as in a plan of files.
    holds_starts: bool | None = False
    # Devices of containers, as far as they are known; those of ordinary init containers never are.
    devices: Mapping[Owner, tuple[Device, ...]] = field(default_factory=lambda: MappingProxyType({}))
    # Why a container's devices are not known, or may not be all.
    devices_unknown: Mapping[Owner, str] = field(default_factory=lambda: MappingProxyType({}))
    # Times of each pod's device lookup, by its uid; the lookups of an earlier agent are not included.
    device_times: Mapping[str, DeviceTimes] = field(default_factory=lambda: MappingProxyType({}))
    looks_up_claims: bool = False  # `devices` includes those of ResourceClaims
    # Pools that processes use now, besides those that the containers' pods request.
    uses: Mapping[Owner, frozenset[PoolUse]] = field(default_factory=lambda: MappingProxyType({}))
    claims: SeenClaims | None = None  # ResourceClaims of the node; None: the agent is not their driver

    @cached_property
    def live(self) -> tuple[SeenContainer, ...]:
        """Containers that run or may start, in a total order."""
        live = (container for container in self.containers if container.is_live)
        return tuple(sorted(live, key=lambda container: (*container.owner, container.id)))

    @property
    def live_on_host(self) -> Iterator[SeenContainer]:
        """Live containers outside sandboxes, in a total order."""
        return (container for container in self.live if container.sandbox not in self.live_in)

    @cached_property
    def live_in(self) -> Mapping[str, tuple[SeenContainer, ...]]:
        """Live containers of each sandbox by its id, in a total order."""
        inside: dict[str, tuple[SeenContainer, ...]] = {sandbox.id: () for sandbox in self.sandboxes}
        for container in self.live:
            if container.sandbox in inside:
                inside[container.sandbox] += (container,)
        return inside

    def devices_of(self, owner: Owner, role: Role) -> tuple[Device, ...]:
        """Return the known devices of a container.

        An ordinary init container, and the pool of a pod, have the devices of all containers of the pod.
        """
        if role is not Role.INIT and owner.container:
            return (*self.devices.get(owner, ()), *self._not_looked_up(owner))
        return tuple(
            device
            for other, devices in self.devices.items()
            if other.pod_uid == owner.pod_uid
            for device in devices
        )

    def _not_looked_up(self, owner: Owner) -> tuple[Device, ...]:
        pod = None if self.looks_up_claims else self._by_uid.get(owner.pod_uid)
        claims = pod.named_claims.get(owner.container, ()) if pod else ()
        return tuple(map(claim_not_known, sorted(claims)))

    def why_unknown(self, owner: Owner, role: Role) -> str:
        """Return why the devices of a container are not all known; empty if they are.

        The devices of an ordinary init container, and of a pod's pool, are known when those of the pod's other
        containers are known.
        """
        pod = self._by_uid.get(owner.pod_uid)
        names = self._device_containers(pod) if pod else {owner.container}
        if not owner.container:
            names -= {""}
        elif role is not Role.INIT:
            names &= {owner.container}
        others = [Owner(owner.pod_uid, name) for name in sorted(names)]
        missing = [it for it in others if it not in self.devices or it in self.devices_unknown]
        return next((self.devices_unknown.get(it, DEVICES_NOT_NAMED) for it in missing), "")

    @property
    def final_devices(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Devices of the containers of which all devices are known."""
        if self.devices_unknown.keys().isdisjoint(self.devices):
            return self.devices
        return {owner: its for owner, its in self.devices.items() if owner not in self.devices_unknown}

    def _device_containers(self, pod: SeenPod) -> frozenset[str]:
        return pod.device_containers | (pod.named_claims.keys() if self.looks_up_claims else frozenset())

    @cached_property
    def _by_uid(self) -> Mapping[str, SeenPod]:
        return {pod.uid: pod for pod in self.by_age}

    @cached_property
    def namespaces(self) -> Mapping[str, str]:
        """Namespaces by pod uid, of pods of the API and of the runtime."""
        of_runtime = {seen.owner.pod_uid: seen.namespace for seen in self.containers if seen.namespace}
        return of_runtime | {pod.uid: pod.namespace for pod in self.pods}

    @cached_property
    def undivided(self) -> frozenset[Owner]:
        """Containers whose tasks cannot be kept on parts of their CPUs."""
        return frozenset(container.owner for container in self.live if not container.is_divisible)

    @cached_property
    def live_uids(self) -> frozenset[str]:
        """Uids of the pods with a live container."""
        return frozenset(container.owner.pod_uid for container in self.live)

    @cached_property
    def running(self) -> frozenset[Owner]:
        """Owners of the running containers."""
        return frozenset(container.owner for container in self.live if container.is_running)

    @cached_property
    def running_uids(self) -> frozenset[str]:
        """Uids of the pods with a running container."""
        return frozenset(owner.pod_uid for owner in self.running)

    @cached_property
    def by_age(self) -> tuple[SeenPod, ...]:
        """Pods that have not ended, oldest first, each uid once."""
        pods = {pod.uid: pod for pod in sorted(self.pods, key=lambda pod: pod.age, reverse=True)}
        return tuple(sorted((pod for pod in pods.values() if not pod.is_final), key=lambda pod: pod.age))

    @cached_property
    def known_uids(self) -> frozenset[str]:
        """Uids of the pods of the API that have not ended."""
        return frozenset(pod.uid for pod in self.by_age)

    @property
    def is_complete(self) -> bool:
        """Return whether the API listed every pod, and the runtime every container."""
        return self.pods_complete and self.containers_complete

    def is_gone(self, pod_uid: str) -> bool:
        """Return whether a pod is absent from the API or has ended, and has no live container."""
        return self.is_complete and pod_uid not in self.known_uids and pod_uid not in self.live_uids
