"""Findings about pinning on a machine, each with its remedy. Pure: takes the facts as values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from agent.doctor.check import finding, ok, unknown
from agent.doctor.claims import NOT_WANTED as NO_CLAIMS
from agent.doctor.claims import ClaimFacts, claim_checks
from agent.doctor.devices import NO_DEVICES, DeviceFacts, device_checks
from agent.doctor.groups import NOT_ASKED, GroupFacts, group_checks
from agent.doctor.near import NOT_WANTED as NO_COUNTS
from agent.doctor.near import NearFacts, near_checks
from agent.doctor.noise import noise_checks
from agent.doctor.nri import NOT_WANTED, AgentNRI, Socket, held_back_checks, nri_checks
from agent.doctor.numa import NOT_WANTED as NO_TOPOLOGY
from agent.doctor.numa import NUMAFacts, numa_checks
from agent.doctor.quiet import quiet_checks
from agent.doctor.strangers import stranger_checks
from agent.doctor.vms import NO_VMS, VMFacts, vm_checks
from pinning.contract import KUBE_SYSTEM, KubeletPolicy
from pinning.dra.groups import Offer, device_groups, published_cpus
from pinning.machine.cpuset import EMPTY
from pinning.truncate import listed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agent.doctor.check import Check
    from agent.quiet.noise import Noise
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from published.agent_state import Quiet

_LISTED: Final = 8  # entries of a list, to keep the output readable


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """The agent's state, as read from its socket."""

    allocatable: CPUSet
    reserved: CPUSet
    exclusive: CPUSet  # CPUs of exclusive containers, with the idle siblings
    shared: CPUSet = EMPTY
    claimable: CPUSet = EMPTY  # CPUs that ResourceClaims may take, held or not
    claimed: CPUSet = EMPTY  # CPUs that ResourceClaims hold
    runtime: str = ""  # name and version when the runtime last answered
    kubelet: KubeletPolicy = KubeletPolicy.UNKNOWN
    observes: bool = False
    pods_complete: bool = True
    containers_complete: bool = True
    runtime_reason: str = ""  # why the runtime does not list its containers
    memory_kills: tuple[str, ...] = ()  # OOM kills of corepin's own containers, each as "pod/container: when"
    # Containers whose cpuset another program keeps changing: namespace/pod/container.
    conflicts: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()  # refused containers with the reason: "namespace/pod/container: why"
    nri: AgentNRI = NOT_WANTED
    other_plugins: tuple[str, ...] = ()  # other NRI plugins that set CPUs: "10-balloons"
    system_namespaces: tuple[str, ...] = ()  # namespaces whose containers run on the reserved CPUs
    # CPU requests of those containers; of kube-system if no namespace is configured.
    system_millicores: int = 0
    is_strict: bool = False  # containers without CPUs of their own stay off the reserved CPUs
    static_shared: CPUSet | None = None  # the shared set if static pools are configured; None: they are not
    pod_names: Mapping[str, str] = field(default_factory=dict)  # namespace/pod by uid
    quiet: Quiet | None = None  # None: this agent does not move interrupts
    devices: DeviceFacts = NO_DEVICES


@dataclass(frozen=True, slots=True)
class ForeignThreads:
    """Threads that ran on exclusive CPUs and do not belong to the owners."""

    by_cgroup: Mapping[str, Counter[str]]  # thread names by cgroup
    fixed: Counter[str] = field(default_factory=Counter)  # names of kernel threads that serve one CPU
    movable: Counter[str] = field(default_factory=Counter)  # names of other kernel threads


@dataclass(frozen=True)
class Facts:
    """Facts about a machine. A fact that could not be read is None, with the reason in `missing`."""

    kubelet: KubeletPolicy  # the policy in the kubelet's state file
    kubelet_runs: bool
    topology: Topology | None = None
    agent: AgentFacts | None = None
    kubelet_millicores: int | None = None  # allocatable CPU of the Node object, in millicores; None: unknown
    runtime: str | None = None  # name and version of the container runtime; None: it does not answer
    nri: Socket = Socket.NO_FOLDER
    is_guarded: bool = False  # a `corepin guard` runs here
    cgroup_version: int | None = None
    # Whether cgroup files can be written; None: unknown, because the user is not root.
    cgroup_writable: bool | None = False
    pod_roots: tuple[str, ...] = ()  # the kubelet's possible pod roots
    pod_root: str | None = None  # the possible pod root that exists; None: none of them
    writers: tuple[str, ...] = ()  # programs that write cpusets: "tuned (pid 812)"
    foreign_threads: ForeignThreads | None = None
    noise: Noise | None = None  # None: not measured
    vms: VMFacts = NO_VMS
    numa: NUMAFacts = NO_TOPOLOGY
    near: NearFacts = NO_COUNTS
    claims: ClaimFacts = NO_CLAIMS
    group: GroupFacts = NOT_ASKED
    # Words in the checkpoint's `needs` that this version does not know.
    unknown_needs: frozenset[str] = frozenset()
    missing: Mapping[str, str] | None = None  # why facts are None, by field name

    def why(self, name: str) -> str:
        """Return why a fact is missing."""
        return (self.missing or {}).get(name, "it could not be read")

    @property
    def policy(self) -> KubeletPolicy:
        """The kubelet's CPU manager policy from its state file; if that is unknown, the one that the agent reports."""
        if self.kubelet is KubeletPolicy.UNKNOWN and self.agent:
            return self.agent.kubelet
        return self.kubelet

    @property
    def can_pin(self) -> bool:
        """Return whether KubeVirt or the agent gives virtual machines dedicated CPUs on this node."""
        return self.policy is KubeletPolicy.STATIC or (self.agent is not None and not self.agent.observes)

    @property
    def is_local(self) -> bool:
        """Return whether the agent itself starts the containers (runtime `local`)."""
        return self.agent is not None and self.agent.runtime.startswith("local")


def examine(facts: Facts) -> tuple[Check, ...]:
    """Return the result of every check, in the order in which problems should be solved."""
    return tuple(
        check
        for examined in (
            _cgroups(facts),
            _pod_root(facts),
            _runtime(facts),
            _nri(facts),
            _kubelet(facts),
            _kubelet_amount(facts),
            _reserved(facts),
            numa_checks(facts.numa, observes=facts.agent is not None and facts.agent.observes),
            device_checks(facts.agent.devices if facts.agent else NO_DEVICES),
            _near(facts),
            _claims(facts),
            _writers(facts),
            _agent(facts),
            group_checks(facts.group),
            vm_checks(facts.vms, can_pin=facts.can_pin),
            _troubles(facts),
            _foreign_threads(facts),
            quiet_checks(facts.agent.quiet if facts.agent else None),
            _noise(facts),
            _l2(facts),
        )
        for check in examined
    )


def _near(facts: Facts) -> Iterator[Check]:
    agent = facts.agent
    devices = agent.devices if agent else NO_DEVICES
    return near_checks(facts.near, devices, observes=agent is not None and agent.observes)


def _claims(facts: Facts) -> Iterator[Check]:
    agent = facts.agent
    return claim_checks(
        facts.claims, has_room=_has_room(facts), observes=agent is not None and agent.observes
    )


def _has_room(facts: Facts) -> bool | None:
    """Return whether the agent has CPUs to publish for claims, also those that claims hold; None: not known."""
    agent = facts.agent
    if agent is None or facts.topology is None:
        return None
    topology = facts.topology.with_online(agent.allocatable | agent.reserved)
    held = agent.exclusive | agent.claimed
    offer = Offer(topology, agent.claimable, agent.claimed, held - agent.claimed, agent.shared | held)
    return any(published_cpus(device_groups(topology, agent.claimable), offer).values())


def _cgroups(facts: Facts) -> Iterator[Check]:
    if facts.cgroup_version is None:
        remedy = (
            "boot with the cpuset controller, and mount /sys/fs/cgroup; without it no container can be pinned"
        )
        yield finding("cgroups", f"no cpuset controller ({facts.why('cgroup_version')})", remedy)
    elif facts.cgroup_writable is None:
        message = f"version {facts.cgroup_version}; whether the agent may write them, only root can check"
        yield unknown("cgroups", message, "run this command as root")
    elif not facts.cgroup_writable:
        remedy = "run the agent as root with /sys/fs/cgroup mounted writable; otherwise it works through the runtime, 10 times slower"
        yield finding("cgroups", f"version {facts.cgroup_version}, but they cannot be written", remedy)
    else:
        yield ok("cgroups", f"version {facts.cgroup_version}, writable")


def _pod_root(facts: Facts) -> Iterator[Check]:
    subject = "pods' cgroup"
    if facts.is_local:
        return  # the agent starts the pods itself, so a kubelet's cgroups do not matter
    if facts.pod_root:
        yield ok(subject, facts.pod_root)
    elif facts.kubelet_runs and facts.cgroup_version is not None:
        message = f"neither {' nor '.join(facts.pod_roots)} exists, so CPUs that pods may not use could be allocated"
        remedy = "name the kubelet's cgroupRoot with --kubelet-cgroup-root, here and for the agent"
        yield finding(subject, message, remedy)


def _runtime(facts: Facts) -> Iterator[Check]:
    if facts.is_local and facts.agent:
        yield ok("runtime", facts.agent.runtime)
    elif facts.runtime:
        yield ok("runtime", facts.runtime)
    elif facts.agent:
        remedy = "start it, or name its socket with --runtime-endpoint, here and for the agent"
        yield finding("runtime", f"it does not answer ({facts.why('runtime')})", remedy)
    else:
        remedy = "name its socket with --runtime-endpoint, or start it (containerd 1.6 or later, CRI-O)"
        yield unknown("runtime", f"no container runtime was found ({facts.why('runtime')})", remedy)


def _nri(facts: Facts) -> Iterator[Check]:
    if facts.agent and facts.agent.observes:
        yield ok("NRI", "not used, because corepin only observes here")
    elif facts.runtime and not facts.is_local:
        agent = facts.agent.nri if facts.agent else None
        yield from nri_checks(facts.runtime, facts.nri, agent)
        holds = agent is not None and agent.holds
        yield from held_back_checks(facts.runtime, holds=holds, is_guarded=facts.is_guarded)


def _kubelet(facts: Facts) -> Iterator[Check]:
    if facts.policy is KubeletPolicy.STATIC:
        remedy = (
            "drain the node, set cpuManagerPolicy: none, remove cpu_manager_state, start the kubelet again"
        )
        message = "its static policy allocates CPUs, so corepin only observes; pods with spec.resources get none from it"
        yield finding("kubelet", f"{message} while the gate PodLevelResourceManagers is off", remedy)
    elif facts.policy is KubeletPolicy.NONE:
        yield ok("kubelet", "policy none, so corepin allocates the CPUs")
    elif facts.kubelet_runs:
        remedy = "name its file with --kubelet-state (ROOT_DIR/cpu_manager_state of the kubelet)"
        yield unknown("kubelet", "it runs, but its CPU policy is unknown", remedy)
    else:
        yield ok("kubelet", "no kubelet runs here")


def _kubelet_amount(facts: Facts) -> Iterator[Check]:
    subject = "kubelet's CPUs"
    if facts.agent is None:
        yield unknown(
            subject, "not compared with corepin's, because the agent does not answer", "start the agent"
        )
        return
    if facts.agent.observes:
        yield ok(subject, "not compared with corepin's, because corepin allocates none here")
        return
    if facts.is_local:
        yield ok(subject, "not compared with corepin's, because no scheduler places these pods")
        return
    if facts.kubelet_millicores is None:
        remedy = "let KUBECONFIG reach the cluster, and name this node with --node"
        yield unknown(subject, f"not compared with corepin's ({facts.why('kubelet_millicores')})", remedy)
        return
    own = len(facts.agent.allocatable) - facts.agent.is_strict
    ours, theirs = 1000 * own, facts.kubelet_millicores
    message = f"the scheduler may place {theirs}m, corepin can allocate {ours}m"
    if facts.agent.is_strict:
        message += ", because strictReserved keeps one more CPU for containers without CPUs of their own"
    if (shared := facts.agent.static_shared) is not None:
        message += f", containers without CPUs of their own share {1000 * len(shared)}m (CPUs {shared})"
    if theirs <= ours:
        yield ok(subject, message)
    else:
        remedy = f'set reservedSystemCPUs: "{facts.agent.reserved}" in the kubelet\'s configuration'
        yield finding(
            subject, f"{message}, so the scheduler may place pods here that cannot be pinned", remedy
        )


def _reserved(facts: Facts) -> Iterator[Check]:
    """Yield the check that the reserved CPUs cover the CPU requests in system namespaces.

    If no such namespace is configured, propose to configure kube-system.
    """
    subject = "reserved CPUs"
    agent = facts.agent
    if agent is None or agent.observes or facts.is_local:
        return
    requested, reserved = agent.system_millicores, 1000 * len(agent.reserved)
    named = ", ".join(agent.system_namespaces)
    amounts = f"containers of {named or KUBE_SYSTEM} request {requested}m, and {reserved}m are reserved ({agent.reserved})"
    if not named and requested <= reserved:
        also = "" if agent.is_strict else ", and strictReserved: true would keep other containers off"
        proposal = f"systemNamespaces: [{KUBE_SYSTEM}] would keep them there{also}"
        yield ok(subject, f"{amounts}: {proposal}")
    elif not named:
        yield ok(subject, f"{amounts}, too few to keep them there by systemNamespaces")
    elif requested <= reserved:
        yield ok(subject, f"{amounts}, where they run")
    else:
        remedy = "reserve more CPUs, or name fewer namespaces in systemNamespaces"
        yield finding(subject, f"{amounts}, where they run", remedy)


def _writers(facts: Facts) -> Iterator[Check]:
    subject = "other writers"
    remedy = "stop it, so that only one program owns the CPUs"
    plugins = facts.agent.other_plugins if facts.agent else ()
    for name in facts.writers:
        yield finding(subject, f"{name} may write cpusets too", remedy)
    for name in plugins:
        message = f"another NRI plugin ({name}) sets CPUs too, and a container whose CPUs two plugins set does not start"
        yield finding(subject, message, remedy)
    if not facts.writers and not plugins:
        yield ok(subject, "no program known to write cpusets runs here")


def _agent(facts: Facts) -> Iterator[Check]:
    if facts.agent is None and facts.unknown_needs:
        message = f"it moves nothing: the checkpoint needs {listed(facts.unknown_needs)}"
        remedy = "start the version of corepin that wrote the checkpoint, or a later one"
        yield finding("agent", f"{message}, which this version of corepin does not know", remedy)
    elif facts.agent is None:
        remedy = "start `corepin agent`, name its --socket, or ask as root"
        yield unknown("agent", f"it does not answer ({facts.why('agent')})", remedy)
    elif facts.agent.observes:
        yield ok("agent", "it only observes and allocates no CPUs")
    else:
        yield ok("agent", f"allocates CPUs {facts.agent.allocatable}, keeps {facts.agent.reserved} reserved")


def _troubles(facts: Facts) -> Iterator[Check]:
    if facts.agent is None:
        return
    log = "the agent tries again; its log has the reason"
    if not facts.agent.pods_complete:
        yield finding(
            "pods", "the agent has no complete list of this node's pods, so no container loses its CPUs", log
        )
    if not facts.agent.containers_complete:
        message = "the runtime does not list them for the agent"
        yield finding("containers", f"{message} ({facts.agent.runtime_reason or 'no reason given'})", log)
    for kill in facts.agent.memory_kills:
        remedy = (
            "raise resources.limits.memory of its DaemonSet; docs/troubleshooting.md names what takes memory"
        )
        yield finding(
            "memory", f"the kernel killed a container of corepin for its memory limit: {kill}", remedy
        )
    for name in facts.agent.conflicts:
        remedy = (
            "find the program that writes its cpuset (see other writers) and stop it; the agent repairs it after 10"
            " minutes without such a write"
        )
        yield finding("conflicts", f"another program keeps rewriting the CPUs of {name}", remedy)
    for name in facts.agent.failures:
        yield finding("failures", f"the CPUs of {name} could not be set", log)
    for message in facts.agent.refusals:
        remedy = "do what the message says; the agent tries again whenever CPUs become free"
        yield finding("refusals", message, remedy)


def _foreign_threads(facts: Facts) -> Iterator[Check]:
    if facts.agent is None or facts.foreign_threads is None:
        message = "not checked, because only the agent knows the exclusive CPUs"
        yield unknown("strangers", message, "start the agent")
        return
    agent, threads = facts.agent, facts.foreign_threads
    yield from stranger_checks(threads.by_cgroup, agent.exclusive, _other_cpus(facts, agent), agent.pod_names)
    if agent.exclusive:
        kernel = threads.fixed.total() + threads.movable.total()
        yield ok("kernel", f"{kernel} of its threads ran on exclusive CPUs, which is normal")


def _noise(facts: Facts) -> Iterator[Check]:
    if facts.agent and facts.noise and (threads := facts.foreign_threads):
        others = _other_cpus(facts, facts.agent)
        noise = _without_kept(facts.noise, facts.agent.quiet)
        yield from noise_checks(noise, threads.movable, threads.fixed, facts.agent.exclusive, others)


def _without_kept(noise: Noise, quiet: Quiet | None) -> Noise:
    """Return the noise without interrupts that stay by the `irq-policy` of pods."""
    kept = {number for it in (quiet.kept if quiet else ()) for number in it.numbers}
    if not kept or isinstance(noise.interrupts, str):
        return noise
    return replace(noise, interrupts=tuple(row for row in noise.interrupts if row.name not in kept))


def _other_cpus(facts: Facts, agent: AgentFacts) -> CPUSet:
    """Return the online CPUs that no exclusive container owns."""
    online = facts.topology.online if facts.topology else agent.allocatable | agent.reserved
    return online - agent.exclusive


def _l2(facts: Facts) -> Iterator[Check]:
    if facts.topology is None:
        yield unknown("L2 cache", f"not known ({facts.why('topology')})", "mount sysfs, or name --sysfs-root")
        return
    cores = {core.cpus for core in facts.topology.cores}
    shared = [cpus for cpus in facts.topology.l2_caches.values() if cpus not in cores]
    if not shared:
        yield ok("L2 cache", "every core has its own")
        return
    groups = ", ".join(map(str, shared[:_LISTED])) + (", ..." if len(shared) > _LISTED else "")
    remedy = "to have a cache alone, request as many CPUs as one group has"
    yield finding("L2 cache", f"several cores share one: CPUs {groups}", remedy)
