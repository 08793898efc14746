"""A node for property tests: pods, a runtime and a kernel small enough to see through."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pinning.contract import (
    KUBEVIRT_LABEL,
    NUMA_MEMORY_POD,
    VIRT_LAUNCHER,
    PoolUse,
    SharedPool,
    VMThreadsPolicy,
)
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig
from pinning.planning.node_sets import NodeSets, node_sets
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, SeenSandbox, State
from pinning.planning.plan import Plan, plan
from tests.pinning.nodes import smt_machine

if TYPE_CHECKING:
    from pinning.machine.near import Device
    from pinning.machine.topology import Topology
    from pinning.planning.actions import Action


@dataclass(frozen=True)
class Wish:
    """One container of a pod: `cores` asks for a CMK resource, else `cpu` is limit and request."""

    cpu: str = "500m"
    cores: int = 0
    policy: str | None = None
    smt: str | None = None
    numa: str | None = None
    core_type: str | None = None
    memory: str | None = None  # of the pod: numa-memory
    memory_limit: str | None = None
    shared: str | None = None  # shared-cpus
    quota: str | None = None
    devices: str | None = None  # device-policy
    noise: str | None = None  # noise-policy
    irq: str | None = None  # irq-policy
    init: str | None = None  # "Always": a sidecar, "": an ordinary init container


def pod_document(
    uid: str, wishes: list[Wish], *, created: int = 0, vm: bool = False, namespace: str = "test"
) -> dict[str, Any]:
    """Return a pod as the API would show it; its containers are called c0, c1..."""
    annotations: dict[str, str] = {}
    listed: dict[str, list[dict[str, Any]]] = {"initContainers": [], "containers": []}
    for number, wish in enumerate(wishes):
        name = "compute" if vm else f"c{number}"
        limits: dict[str, Any] = (
            {"cmk.intel.com/exclusive-cores": wish.cores} if wish.cores else {"cpu": wish.cpu}
        )
        if wish.memory_limit:
            limits["memory"] = wish.memory_limit
        container: dict[str, Any] = {"name": name, "resources": {"limits": limits, "requests": limits}}
        if wish.init:
            container["restartPolicy"] = wish.init
        listed["containers" if wish.init is None else "initContainers"].append(container)
        families = {"cpu-manager": wish.policy, "smt-policy": wish.smt, "numa-policy": wish.numa}
        families |= {"shared-cpus": wish.shared, "core-type": wish.core_type, "quota-policy": wish.quota}
        families |= {"device-policy": wish.devices, "noise-policy": wish.noise, "irq-policy": wish.irq}
        if wish.memory:
            annotations[NUMA_MEMORY_POD] = wish.memory
        annotations |= {f"{key}.corepin.io/container.{name}": word for key, word in families.items() if word}
    metadata = {
        "name": f"pod-{uid}",
        "uid": uid,
        "namespace": namespace,
        "creationTimestamp": f"2026-01-01T00:{created // 60:02}:{created % 60:02}Z",
        "annotations": annotations,
        "labels": {KUBEVIRT_LABEL: VIRT_LAUNCHER} if vm else {},
    }
    return {"metadata": metadata, "spec": {**listed, "nodeSelector": {"cpumanager": "true"} if vm else {}}}


@dataclass
class World:
    """A node that is changed step by step; `current` is what the kernel has for each container id."""

    topology: Topology
    config: NodeConfig = field(default_factory=NodeConfig)
    ledger: Ledger = field(default_factory=Ledger)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    containers: dict[str, SeenContainer] = field(default_factory=dict)
    sandboxes: dict[str, SeenSandbox] = field(default_factory=dict)
    devices: dict[Owner, tuple[Device, ...]] = field(default_factory=dict)
    uses: dict[Owner, frozenset[PoolUse]] = field(default_factory=dict)  # of wrappers
    renewed: Counter[str] = field(default_factory=Counter)  # how often a pod got a new sandbox
    api_answers: bool = True
    runtime_answers: bool = True
    clock: int = 0

    @property
    def sets(self) -> NodeSets:
        """The node's current CPU sets."""
        return node_sets(self.topology, self.topology.online, self.config)

    def observe(self) -> Observed:
        """Return the agent's observation."""
        pods = tuple(SeenPod.of(document) for document in self.documents.values())  # type: ignore[arg-type]
        return Observed(
            self.topology,
            self.topology.online,
            pods if self.api_answers else (),
            tuple(self.containers.values()) if self.runtime_answers else (),
            tuple(self.sandboxes.values()) if self.runtime_answers else (),
            pods_complete=self.api_answers,
            containers_complete=self.runtime_answers,
            devices=self.devices,
            uses=self.uses,
        )

    def plan(self) -> Plan:
        """Plan, and take the new ledger over as the agent's checkpoint does."""
        planned = plan(self.observe(), self.ledger, self.config)
        self.ledger = planned.ledger
        return planned

    def add(self, uid: str, wishes: list[Wish], *, vm: bool = False, namespace: str = "test") -> None:
        """Create or replace a pod in the API."""
        self.clock += 1
        created = self.clock
        self.documents[uid] = pod_document(uid, wishes, created=created, vm=vm, namespace=namespace)

    def create(self, uid: str, wishes: list[Wish], **more: Any) -> Plan:
        """Create or replace a pod in the API, and do what is planned."""
        self.add(uid, wishes, **more)
        return self.run_all()

    def start(
        self,
        uid: str,
        name: str,
        state: State = State.RUNNING,
        cpus: CPUSet | None = None,
        *,
        starts_at_home: bool = False,
    ) -> str:
        """Start a container, by default on every CPU that is online."""
        self.clock += 1
        number = f"{uid}-{name}-{self.clock}"
        everything = cpus or self.topology.online
        sandbox = f"s-{uid}" if f"s-{uid}" in self.sandboxes else ""
        document = self.documents.get(uid)
        self.containers[number] = SeenContainer(
            number,
            Owner(uid, name),
            state,
            everything,
            sandbox,
            starts_at_home=starts_at_home,
            namespace=document["metadata"]["namespace"] if document else "",
            pod_sandbox=f"{uid}/{self.renewed[uid]}",
        )
        return number

    def renew(self, uid: str) -> None:
        """End all containers of a pod, whose next ones start in a new sandbox; the runtime lists the ended ones."""
        self.renewed[uid] += 1
        for container in self.live():
            if container.owner.pod_uid == uid:
                self.stop(container.id)

    def boot(self, uid: str, *, has_known_vcpus: bool = False) -> str:
        """Start the virtual machine of a pod, on every CPU that is online: its containers run there from now on."""
        key, online = f"s-{uid}", self.topology.online
        self.sandboxes[key] = SeenSandbox(key, uid, online, online if has_known_vcpus else EMPTY)
        return key

    def halt(self, uid: str) -> None:
        """End the virtual machine of a pod with all of its containers."""
        if self.sandboxes.pop(f"s-{uid}", None):
            for container in self.live():
                if container.owner.pod_uid == uid:
                    self.stop(container.id)

    def stop(self, number: str) -> None:
        """Let a container end."""
        self.containers[number] = replace(self.containers[number], state=State.EXITED)

    def set_online(self, online: CPUSet) -> None:
        """Let CPUs go offline and come back; the kernel takes lost ones out of every cpuset (cgroup v2, effective)."""
        self.topology = self.topology.with_online(online)
        for number, container in self.containers.items():
            self.containers[number] = replace(container, cpus=(container.cpus & online) or online)
        for key, machine in self.sandboxes.items():
            cpus, vcpus = (machine.cpus & online) or online, machine.vcpus
            self.sandboxes[key] = replace(machine, cpus=cpus, vcpus=vcpus and ((vcpus & online) or online))

    def hotplug(self, online: CPUSet) -> Plan:
        """Let CPUs go offline and come back, and do what is planned."""
        self.set_online(online)
        return self.run_all()

    def write(self, action: Action) -> None:
        """Do one action."""
        if action.threads:
            machine = self.sandboxes[action.container_id]
            vcpus = machine.vcpus and action.threads.vcpus
            self.sandboxes[machine.id] = replace(machine, cpus=action.threads.cpus, vcpus=vcpus)
            return
        container = self.containers[action.container_id]
        self.containers[container.id] = replace(container, cpus=action.cpus, home=action.home)

    def live(self) -> list[SeenContainer]:
        """Live containers with their possible CPUs: their own cpuset's, or those of their virtual machine."""
        live = [container for container in self.containers.values() if container.is_live]
        return [
            replace(container, cpus=self.sandboxes[container.sandbox].cpus)
            if container.sandbox in self.sandboxes
            else container
            for container in live
        ]

    def present(self) -> list[SeenContainer]:
        """Return the live containers, and machines without any, for which their pods keep CPUs."""
        live = self.live()
        inside = {container.sandbox for container in live}
        empty = [machine for key, machine in self.sandboxes.items() if key not in inside]
        return live + [
            SeenContainer(machine.id, owner, State.RUNNING, machine.cpus, machine.id)
            for machine in empty
            for owner in self._kept(machine.pod_uid)
        ]

    def unowned(self, uid: str) -> CPUSet:
        """Return the CPUs of a pod's containers that hold none."""
        namespaces = {seen.owner.pod_uid: seen.namespace for seen in self.containers.values()}
        if self.api_answers:
            namespaces |= {key: it["metadata"]["namespace"] for key, it in self.documents.items()}
        is_system = namespaces.get(uid) in self.config.system_namespaces
        return (is_system and self.sets.reserved & self.topology.online) or self.sets.shared(self.ledger)

    def pools(self, seen: SeenContainer) -> CPUSet:
        """Return the pool CPUs of a container, beside its own or the shared set."""
        held, shared = self.ledger.of(seen.owner), self.sets.shared(self.ledger)
        aside = self.sets.pools.set_aside & self.topology.online
        uses = self.uses.get(seen.owner, frozenset()) if seen.is_running else frozenset()
        asks = held and held.is_exclusive and held.claim.shared_cpus
        pools = shared if asks and (seen.is_running or seen.starts_at_home) else EMPTY
        for pool, socket in uses:
            packages = self.topology.packages
            mine = aside if socket is None else aside & packages.get(socket, EMPTY)
            pools |= shared if pool is SharedPool.INFRA else mine or shared
        return pools

    def home(self, seen: SeenContainer) -> CPUSet:
        """Return the CPUs of a container's unmoved tasks; empty: it has no more than it owns."""
        held, pools = self.ledger.of(seen.owner), self.pools(seen)
        usual = held.cpus if held else self.unowned(seen.owner.pod_uid)
        return EMPTY if pools <= usual or not seen.is_running or seen.sandbox else usual

    def is_there(self, machine: SeenSandbox) -> bool:
        """Return whether all threads of a machine, its vCPUs among them, have reached their CPUs."""
        inside = [seen for seen in self.present() if seen.sandbox == machine.id]
        own = union(held.cpus for seen in inside if (held := self.ledger.of(seen.owner)))
        shared = self.unowned(machine.pod_uid)
        is_apart = self.config.vm_threads is VMThreadsPolicy.SHARED and machine.vcpus
        cpus = own | shared if own and is_apart else own or shared
        return machine.cpus == cpus and machine.vcpus in (EMPTY, own or shared)

    def _kept(self, uid: str) -> list[Owner]:
        return [held.owner for held in self.ledger.pods.get(uid, ())] or [Owner(uid, "")]

    def meddle(self, container: SeenContainer, cpus: CPUSet) -> None:
        """Move a container as a foreign program would, with its virtual machine if it is in one."""
        machine = self.sandboxes.get(container.sandbox)
        if machine:
            self.sandboxes[machine.id] = replace(machine, cpus=cpus, vcpus=machine.vcpus and cpus)
        else:
            self.containers[container.id] = replace(container, cpus=cpus)

    def run_all(self) -> Plan:
        """Plan, and do every action in its order."""
        planned = self.plan()
        for action in planned.actions:
            self.write(action)
        return planned

    def holds(self, uid: str, name: str = "c0") -> str:
        """Return a container's CPUs as text: "cpus", or "cpus idle idle"."""
        assignment = self.ledger.of(Owner(uid, name))
        if assignment is None:
            return ""
        return f"{assignment.cpus} idle {assignment.idle}" if assignment.idle else str(assignment.cpus)


EXCLUSIVE = Wish("2", policy="exclusive")


def world(cores: int = 8, sockets: int = 1, isolated: str = "", **config: object) -> World:
    """Return an empty node; core N has the CPUs N and N + cores, core 0 is reserved."""
    given = {"reserved": CPUSet([0]), **config}
    return World(smt_machine(cores, sockets, isolated), NodeConfig(**given))  # type: ignore[arg-type]


def one_pod(wish: Wish, cores: int = 8, sockets: int = 1, isolated: str = "", **config: object) -> World:
    """Return a node with one planned pod `a`, whose container c0 runs."""
    node = world(cores, sockets, isolated, **config)
    node.add("a", [wish])
    node.start("a", "c0")
    node.run_all()
    return node


def edit(node: World, uid: str, *wishes: Wish, vm: bool = False) -> Plan:
    """Change a pod of a node, keeping its age, and plan."""
    created = node.documents[uid]["metadata"]["creationTimestamp"]
    node.add(uid, list(wishes), vm=vm)
    node.documents[uid]["metadata"]["creationTimestamp"] = created
    return node.run_all()


def reasons(planned: Plan) -> dict[str, str]:
    """Return why which container was refused."""
    return {refusal.name: str(refusal.reason) for refusal in planned.refusals}
