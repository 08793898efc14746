"""The runtime `local`: a folder's pods as plain processes in cgroups of their own (interface `Runtime`).

It is kubelet and runtime in one, without images, namespaces and probes. All work is done when the agent lists the
containers, which it does in every pass. New containers are listed as created, so the agent sends their CPUs in the same
pass. They then start on these CPUs. A container that got no CPUs in that pass starts in the next one. If the
agent gets SIGTERM, its containers keep running, and the next agent finds them by their cgroups.
"""

from __future__ import annotations

import asyncio
import logging
import os
from hashlib import sha256
from typing import TYPE_CHECKING

from agent.absent import NoCpusetWatch, NoQuotas
from agent.errors import AgentError, Gone
from agent.interfaces import Cgroups
from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.cgroups import open_cgroups
from agent.kernel.split import KernelSplit
from agent.local.affinity import AffinityCgroups
from agent.local.cgroups import ROOT, KernelContainerCgroups
from agent.local.manifest import BadManifest, name_of
from agent.local.pod import LocalPod
from agent.local.spec import read_run
from pinning.machine.cpuset import EMPTY
from pinning.pods.phase import is_final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agent.interfaces import Cpusets, RuntimeContainer, RuntimeSandbox
    from agent.local.cgroups import ContainerCgroups
    from agent.local.pods_dir import PodsDir
    from pinning.machine.cpuset import CPUSet
    from pinning.pods.types import Pod

logger = logging.getLogger(__name__)


class LocalRuntime:
    """Runs the pods of a `PodsDir`."""

    def __init__(
        self,
        pods: PodsDir,
        cpusets: Cpusets,
        cgroups: ContainerCgroups,
        *,
        root: str = ROOT,
        logs: Path | None = None,
    ) -> None:
        how = (
            f"in cgroups v{cpusets.version}"
            if cpusets.version
            else "by affinity only, no cgroup protects them"
        )
        self.name = f"local processes {how}"
        self._source = pods
        self._cpusets = cpusets
        self._cgroups = cgroups
        self._root = root
        self._logs = logs
        self._pods: dict[str, LocalPod] = {}
        self._seen: dict[str, Pod] = {}  # the running pods of the manifests, by uid
        self._changed: Callable[[], None] = lambda: None
        self._has_adopted = False

    async def containers(self) -> tuple[RuntimeContainer, ...]:
        """Start and stop processes by the manifests, and return every container."""
        if not self._has_adopted:
            self._adopt()
        if self._source.complete:
            self._take_over(self._source.pods())
        for uid, pod in list(self._pods.items()):
            self._step(uid, pod)
        return tuple(container for pod in self._pods.values() for container in pod.listed())

    async def known_containers(self) -> None:
        """Return None, so that the caller lists the containers, which starts and stops processes."""
        return

    def changes(self) -> None:
        """Return None, because any container may have changed."""
        return

    def sandboxes(self) -> tuple[RuntimeSandbox, ...]:
        """Return the pods of Kata's runtime classes, whose processes stand for virtual machines."""
        return tuple(sandbox for pod in self._pods.values() if (sandbox := pod.sandbox))

    async def update_cpus(self, container_id: str, cpus: CPUSet, mems: CPUSet = EMPTY) -> None:
        """Set a container's CPUs and its memory's NUMA nodes, and start it if it waits for its CPUs.

        Raises Gone, Refused.
        """
        for pod in self._pods.values():
            container = pod.find(container_id)
            if container:
                self._cpusets.write(container.cgroup, cpus)
                if mems:
                    self._cgroups.bind_memory(container.cgroup, mems)
                pod.start(container)
                return
        raise Gone(f"container {container_id} does not exist any more")

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever a process exits or a container is due to start, until cancelled."""
        self._changed = changed
        changed()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self._changed = lambda: None
            for pod in self._pods.values():
                pod.close()

    def _notify(self) -> None:
        self._changed()

    def _adopt(self) -> None:
        """Adopt the processes of an earlier agent; remove empty cgroups that it left behind."""
        self._has_adopted = True
        for cgroup in self._cgroups.found():
            _, uid, name = cgroup.rsplit("/", 2)
            if not self._cgroups.pids(cgroup):
                self._cgroups.remove(cgroup)
                continue
            self._pod(uid).adopt(name)
            logger.info("container found running", extra={"facts": {"cgroup": cgroup}})

    def _pod(self, uid: str) -> LocalPod:
        if uid not in self._pods:
            self._pods[uid] = LocalPod(uid, f"{self._root}/{uid}", self._cgroups, self._logs, self._notify)
        return self._pods[uid]

    def _take_over(self, pods: Mapping[str, Pod]) -> None:
        """Start new pods and end removed ones; a pod that was added again waits until its old processes exit."""
        for uid, pod in pods.items():
            known = self._seen.get(uid)
            if is_final(pod):
                self._end_leftover(uid)
            elif known is not pod and not self._pod(uid).is_ending:
                self._begin(uid, pod)
        for uid in self._pods.keys() - pods.keys():
            self._pods[uid].end()

    def _end_leftover(self, uid: str) -> None:
        """End the processes of a pod that an earlier agent recorded as finished."""
        if uid in self._pods and self._pods[uid].run is None:
            self._pods[uid].end()

    def _begin(self, uid: str, pod: Pod) -> None:
        self._seen[uid] = pod
        try:
            self._pod(uid).begin(read_run(pod))
        except BadManifest as error:
            logger.warning("pod not started", extra={"facts": {"pod": name_of(pod), "reason": str(error)}})

    def _step(self, uid: str, pod: LocalPod) -> None:
        phase = pod.phase
        pod.step()
        if pod.phase and pod.phase != phase:
            self._source.finish(uid, pod.phase)
            self._notify()
        if pod.is_gone:
            del self._pods[uid]
            self._seen.pop(uid, None)
            self._notify()


def open_local(pods: PodsDir, cgroup_root: Path, state_dir: Path) -> tuple[LocalRuntime, Cgroups]:
    """Return the runtime and its cgroups: the kernel's, or affinity where no cgroup can be written.

    The cgroups' names depend on the agent's state directory, so that two agents never adopt the same processes.
    """
    root = f"{ROOT}-{sha256(os.fsencode(state_dir.resolve())).hexdigest()[:8]}"
    logs = state_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    try:
        hierarchy = find_hierarchy(cgroup_root)
        if not hierarchy.is_writable():
            return _open_affinity(pods, root, logs, "cgroups cannot be written: run as root")
        cgroups = open_cgroups(hierarchy)
    except AgentError as error:
        return _open_affinity(pods, root, logs, str(error))
    folders = KernelContainerCgroups(hierarchy, root)
    return LocalRuntime(pods, cgroups.cpusets, folders, root=root, logs=logs), cgroups


def _open_affinity(pods: PodsDir, root: str, logs: Path | None, why: str) -> tuple[LocalRuntime, Cgroups]:
    logger.warning("affinity only, CPUs are not isolated", extra={"facts": {"reason": why}})
    affinity = AffinityCgroups(root)
    cgroups = Cgroups(affinity, affinity, NoCpusetWatch(), NoQuotas(), KernelSplit(affinity.tasks, affinity))
    return LocalRuntime(pods, affinity, affinity, root=root, logs=logs), cgroups
