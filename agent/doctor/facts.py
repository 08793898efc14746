"""Read the facts that `agent.doctor.checks` examines. Read-only; missing files are tolerated."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.doctor.checks import AgentFacts, Facts, ForeignThreads
from agent.doctor.devices import DeviceFacts
from agent.doctor.foreign_threads import foreign_threads
from agent.doctor.nri import AgentNRI, Socket
from agent.doctor.nri_socket import look_at
from agent.doctor.programs import kubelet_runs, pods_of_verb, programs, writers
from agent.doctor.vms import VMFacts
from agent.errors import AgentError
from agent.kernel.cgroup_names import pod_roots
from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.procfs import read_file, status_words
from agent.kernel.sysfs import read_topology
from agent.kubelet.policy import read_kubelet_policy
from agent.quiet.noise import measure
from agent.reconcile.checkpoint import NAME as CHECKPOINT
from agent.reconcile.checkpoint import unknown_needs
from pinning.contract import (
    AGENT_NAMESPACE,
    AGENT_STATE,
    DEBUGFS,
    KUBELET_STATE,
    NRI_SOCKET,
    CPUPolicy,
    KubeletPolicy,
)
from pinning.errors import PinningError
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from agent.kernel.cgroupfs import Hierarchy
    from agent.quiet.noise import Noise
    from pinning.machine.topology import Topology
    from published.agent_state import AgentState

SYS_PTRACE: Final = 19  # bit number of the capability CAP_SYS_PTRACE


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of the files and sockets that the doctor reads, and the namespace of corepin's pods."""

    root: Path = Path("/")
    cgroups: Path = Path("/sys/fs/cgroup")
    pod_roots: tuple[str, ...] = pod_roots()
    kubelet_state: Path = Path(KUBELET_STATE)
    runtime: Path | None = None  # None: the first of the usual sockets
    nri: Path = Path(NRI_SOCKET)
    debugfs: Path = Path(DEBUGFS)
    interrupts: Path | None = None  # the host's /proc/interrupts; None: noise is not measured
    state: Path = Path(AGENT_STATE)  # the agent's --state-dir
    namespace: str = AGENT_NAMESPACE  # namespace of the agent's and the guard's pods


def read_facts(places: Places, state: AgentState | None, seconds: float) -> Facts:
    """Return the facts. `state` is the agent's state; threads on exclusive CPUs are watched for `seconds`."""
    missing: dict[str, str] = {}
    proc = places.root / "proc"
    running = tuple(programs(proc))
    hierarchy = _hierarchy(places.cgroups, missing)
    agent = agent_facts(state) if state else None
    threads, noise = _watch(places, state, agent.exclusive, seconds) if state and agent else (None, None)
    return Facts(
        kubelet=read_kubelet_policy(places.kubelet_state),
        kubelet_runs=kubelet_runs(running),
        topology=_topology(places.root, missing),
        agent=agent,
        runtime=_runtime(places.runtime, missing),
        is_guarded=_is_guarded(proc, state, places.namespace),
        nri=Socket.ANSWERS if agent and agent.nri.holds else look_at(places.nri),
        cgroup_version=hierarchy.version if hierarchy else None,
        cgroup_writable=_is_writable(hierarchy, is_root=os.geteuid() == 0),
        pod_roots=places.pod_roots,
        pod_root=_first_there(places.pod_roots, hierarchy),
        writers=writers(running),
        foreign_threads=threads,
        noise=noise,
        vms=_vms(places),
        unknown_needs=unknown_needs(places.state / CHECKPOINT),
        missing=missing,
    )


def _is_guarded(proc: Path, state: AgentState | None, namespace: str) -> bool:
    """Return whether a `corepin guard` process runs, outside of all pods or in a pod of corepin's namespace."""
    ours = {pod.uid for pod in (state.pods if state else ()) if pod.namespace == namespace}
    return any(pod is None or pod in ours for pod in pods_of_verb(proc, "guard"))


def agent_facts(state: AgentState) -> AgentFacts:
    """Return the agent's facts that the checks need; raise BadCPUList if its state is damaged."""
    return AgentFacts(
        allocatable=CPUSet.parse(state.sets.allocatable),
        reserved=CPUSet.parse(state.sets.reserved),
        exclusive=union(exclusive_cpus(state).values()),
        shared=CPUSet.parse(state.sets.shared),
        claimable=CPUSet.parse(state.sets.exclusive_pool) & CPUSet.parse(state.sets.allocatable),
        claimed=union(
            CPUSet.parse(part["cpus"]) for grant in state.ledger.get("claims", ()) for part in grant["parts"]
        ),
        runtime=state.runtime,
        kubelet=KubeletPolicy(state.kubelet)
        if state.kubelet in set(KubeletPolicy)
        else KubeletPolicy.UNKNOWN,
        observes=state.observes,
        pods_complete=state.pods_complete,
        containers_complete=state.containers_complete,
        runtime_reason=state.runtime_reason,
        memory_kills=tuple(f"{kill.pod}/{kill.container}: {kill.time}" for kill in state.memory_kills),
        conflicts=tuple(conflict.container for conflict in state.conflicts),
        failures=state.failures,
        nri=AgentNRI(state.start_path == "nri", state.start_reason, bool(state.listing_fault)),
        other_plugins=state.other_plugins,
        refusals=tuple(f"{refusal.name}: {refusal.message}" for refusal in state.refusals),
        system_namespaces=state.system_namespaces,
        system_millicores=state.system_millicores,
        is_strict=state.strict_reserved and not state.static_pools,
        pod_names={pod.uid: f"{pod.namespace}/{pod.name}" for pod in state.pods},
        devices=DeviceFacts(state.topology_manager, _resources(state)),
        static_shared=CPUSet.parse(state.sets.shared) if state.static_pools else None,
        quiet=state.quiet,
    )


def _resources(state: AgentState) -> dict[str, tuple[str, ...]]:
    """Return the device resources of each container, by namespace/pod/container."""
    return {
        f"{pod.namespace}/{pod.name}/{name}": tuple(device.resource for device in container.devices)
        for pod in state.pods
        for name, container in pod.containers.items()
        if container.devices
    }


def exclusive_cpus(state: AgentState) -> dict[str, CPUSet]:
    """Return, by pod uid, the CPUs that the pod's containers own exclusively, with the siblings kept idle."""
    owned: dict[str, CPUSet] = {}
    for pod in state.pods:
        if pod.pool:
            owned[pod.uid] = CPUSet.parse(pod.pool.cpus) | CPUSet.parse(pod.pool.idle)
        for container in pod.containers.values():
            if container.policy == CPUPolicy.EXCLUSIVE:
                cpus = CPUSet.parse(container.cpus) | CPUSet.parse(container.idle or "")
                owned[pod.uid] = owned.get(pod.uid, EMPTY) | cpus
    return owned


def _watch(
    places: Places, state: AgentState, exclusive: CPUSet, seconds: float
) -> tuple[ForeignThreads, Noise | None]:
    """Watch exclusive CPUs for some seconds; return the foreign threads and, if requested, the noise."""
    proc = places.root / "proc"

    def threads() -> ForeignThreads:
        return foreign_threads(proc, exclusive_cpus(state), seconds)

    if places.interrupts is None or not exclusive:
        return threads(), None
    noise, seen = measure(places.interrupts, proc, exclusive, _first_pids(state), threads)
    return seen, noise


def _first_pids(state: AgentState) -> dict[str, int]:
    """Return the pid of the first process of each container with exclusive CPUs, by namespace/pod/container."""
    owners = {
        f"{pod.namespace}/{pod.name}/{name}"
        for pod in state.pods
        for name, container in pod.containers.items()
        if container.policy == CPUPolicy.EXCLUSIVE
    }
    return {name: pid for name, pid in state.first_pids.items() if name in owners}


def _vms(places: Places) -> VMFacts:
    is_static = read_kubelet_policy(places.kubelet_state) is KubeletPolicy.STATIC
    return VMFacts(
        has_kvm=(places.root / "sys/module/kvm").is_dir(),
        has_debugfs=_can_list(places.debugfs / "kvm"),
        may_probe=bool(_capabilities(places.root / "proc/self/status") >> SYS_PTRACE & 1),
        kubelet_silence=asyncio.run(_kubelet_silence(places.kubelet_state)) if is_static else None,
    )


def _can_list(folder: Path) -> bool:
    try:
        list(folder.iterdir())
    except OSError:
        return False
    return True


def _capabilities(status: Path) -> int:
    """Return a process's effective capabilities as bits; 0 if they cannot be read."""
    try:
        words = status_words(read_file(str(status)), "CapEff")
    except OSError:
        return 0
    return int(words[0], 16) if words else 0


async def _kubelet_silence(state: Path) -> str:
    from agent.kubelet.pod_resources import PodResources, socket_beside

    try:
        await PodResources(socket_beside(state)).ask()
    except AgentError as error:
        return str(error)
    return ""


def _hierarchy(root: Path, missing: dict[str, str]) -> Hierarchy | None:
    try:
        return find_hierarchy(root)
    except AgentError as error:
        missing["cgroup_version"] = str(error)
        return None


def _is_writable(hierarchy: Hierarchy | None, *, is_root: bool) -> bool | None:
    """Return whether cgroups are writable; for root they are unless mounted read-only."""
    if hierarchy is not None and os.access(hierarchy.cpuset / "cgroup.procs", os.W_OK):
        return True
    return False if is_root else None


def _first_there(pod_roots: tuple[str, ...], hierarchy: Hierarchy | None) -> str | None:
    there = (root for root in pod_roots if hierarchy and hierarchy.folder(root).is_dir())
    return next(there, None)


def _topology(root: Path, missing: dict[str, str]) -> Topology | None:
    try:
        return read_topology(root)
    except (PinningError, OSError) as error:
        missing["topology"] = str(error)
        return None


def _runtime(socket: Path | None, missing: dict[str, str]) -> str | None:
    from agent.cri.container_info import find_socket

    try:
        socket = socket or find_socket()
        if socket is None:
            missing["runtime"] = "none of the usual CRI sockets exists"
        elif not socket.exists():
            missing["runtime"] = f"{socket} does not exist"
        else:
            return asyncio.run(_identify(socket))
    except AgentError as error:
        missing["runtime"] = str(error)
    except OSError as error:  # no permission to search its folder
        missing["runtime"] = f"{socket}: {error.strerror}"
    return None


async def _identify(socket: Path) -> str:
    from agent.cri.runtime import CRI

    return await CRI(socket, timeout_seconds=3.0).identify()
