"""NRI handlers: answer the runtime by the latest start table when it creates or updates a container.

They run in the connection's thread, while passes and their disk writes run in the event loop. The runtime waits two
seconds at most, so there is no lock here, no network and no log: the table is replaced by reference. At a start the
handler looks for the container's cgroup, which takes one stat. If the container may run on more CPUs than it owns, the
handler reads its threads too, and moves them to its own CPUs.
"""

from __future__ import annotations

import math
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.nri.versions import names_process
from agent.nri.wire import CPUSET_CPUS, Event, PluginName, Reject
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import (
    ASKING_MARKS,
    KUBEVIRT_LABEL,
    NRI_PLUGIN,
    NRI_PLUGIN_INDEX,
    VIRT_LAUNCHER,
)
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.observed import Owner
from pinning.pods.annotations import is_policy_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pinning.planning.start_table import Start, StartTable

NAME: Final = PluginName(NRI_PLUGIN, NRI_PLUGIN_INDEX)
# After this time a container that no listing has shown was never created, and a rejected pod is not tried again.
KEPT_SECONDS: Final = 60.0
# After this time passes have listed the containers that were created before the runtime began to ask.
COVERED_SECONDS: Final = 10.0
# Plugin whose name the agent does not learn: the error of two plugins that set one cpuset goes to the pod's event.
UNNAMED: Final = "named in the events of failed pods"
# Annotation of the kubelet; a value other than "api" means a static pod.
_SOURCE: Final = "kubernetes.io/config.source"


class StartedContainer(NamedTuple):
    """The CPUs with which a container was created."""

    owner: Owner
    cpus: CPUSet
    at: float


class Plugin:
    """The handlers of `agent.nri.wire`.

    `in_vm` returns whether a runtime handler starts virtual machines. `put` sets the affinity of all threads of a
    process, and returns False if threads start faster than they are moved. `is_on_host` returns whether the host has
    the cgroup of a cgroupsPath; without one, the container's process belongs to a virtual machine, whose runtime handler
    may be the usual one. The event loop replaces `table`, calls `asked`, removes from `unsettled`, and reads the other
    members; only the connection's thread changes those.
    """

    def __init__(
        self,
        in_vm: Callable[[str], bool],
        clock: Callable[[], float] = monotonic,
        put: Callable[[int, CPUSet], bool] = lambda *_: True,
        is_on_host: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.table: StartTable | None = None  # None: leave every container unchanged
        # By container id, until the runtime removes it, or starts it in a virtual machine.
        self.started: dict[str, StartedContainer] = {}
        # The runtime shows the first process of each container before it starts, so it can be moved to its own CPUs.
        self.puts_home = True
        self.validates = False  # whether the runtime asks plugins to validate every creation
        self.other_plugins: frozenset[str] = frozenset()  # names of other plugins that set cpusets
        self.sandbox_started: Callable[[str], None] = lambda _: None  # called with the uid of the pod
        # Pods of which a container was rejected, by uid with the time; replaced by reference.
        self.rejected: Mapping[str, float] = {}
        self.pod_rejected: Callable[[], None] = lambda: None  # called at the first rejection of a pod
        # since when the runtime asks before each creation, on `clock`; set by the watch
        self.asked_since = math.inf
        self._in_vm = in_vm
        self._clock = clock
        self._put = put
        self._is_on_host = is_on_host
        # Containers with threads that started faster than they were moved, until a pass moves them.
        self.unsettled: set[str] = set()
        # pids and cgroupsPaths of first processes, by container id, from before the start until the removal
        self._first_processes: dict[str, tuple[int, str]] = {}
        self.connections = 0  # number of connections that ended
        # updates in this connection by container id: their number, and the cpuset of the last one
        self._updates: dict[str, tuple[int, str]] = {}
        self._unseen: dict[str, StartedContainer] = {}  # containers that no pass has observed yet
        self._judged: StartTable | None = None  # the table for which `_unseen` was checked
        self._in_the_way = EMPTY
        self._answered = self._answered_pod = (
            ""  # the newest container whose answer the runtime has not confirmed yet
        )
        self._unmade: frozenset[str] = (
            frozenset()
        )  # pods with creations that failed after the answer, in a row

    @property
    def names_all(self) -> bool:
        """Return whether each new container on the host is in `started` before its cgroup is made."""
        return self._clock() - self.asked_since > COVERED_SECONDS

    def first_process(self, container_id: str) -> tuple[int, str] | None:
        """Return pid and cgroupsPath of a container that starts or has started, None if they were not shown."""
        return self._first_processes.get(container_id)

    def asked(self, *, is_asked: bool) -> None:
        """Record whether the runtime asks the plugin from now on."""
        self.asked_since = min(self.asked_since, self._clock()) if is_asked else math.inf

    def configure(self, request: pb.ConfigureRequest) -> None:
        """Record whether the runtime reports the first process of a container before it starts."""
        self.puts_home = names_process(f"{request.runtime_name} {request.runtime_version}")

    def synchronize(
        self, pods: Sequence[pb.KnownPodSandbox], containers: Sequence[pb.KnownContainer]
    ) -> tuple[pb.ContainerUpdate, ...]:
        """Drop records of containers that no longer exist; return no updates, because a pass moves the others.

        All sandboxes are reported as started, because some may have started while the plugin was not connected.
        """
        for pod in pods:
            self.sandbox_started(pod.uid)
        there = {container.id for container in containers}
        self.started = {key: container for key, container in self.started.items() if key in there}
        self._unseen = {key: container for key, container in self._unseen.items() if key in there}
        self._first_processes = {key: first for key, first in self._first_processes.items() if key in there}
        self._judged = None
        return ()

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Return a new container's CPUs and variables; raise Reject if it may not start yet."""
        answer = pb.CreateContainerResponse()
        table = self.table
        if table is None:
            return answer
        owner = Owner(pod.uid, container.name)
        asks = pod.uid not in table.known and _asks(pod)
        devices = [device.name for device in container.CDI_devices]  # none where no pod claims devices
        start = table.start(
            owner, claims=asks, namespace=pod.namespace, busy=self._busy(table), cdi_devices=devices
        )
        if isinstance(start, str):
            # The event of the sandbox's start may have been missed, and the container waits for the pass that it causes.
            self.sandbox_started(pod.uid)
            self._note_rejection(pod.uid)
            raise Reject(start)
        if self._in_vm(pod.runtime_handler):  # its cpuset is in the guest and is sent over CRI
            return answer
        environment = table.environment(start)
        if start.own and not self.puts_home:
            start = start._replace(cpus=start.own)  # a pass adds the pools, without moving tasks there
        self._note_unmade()
        self._answered = container.id
        self._answered_pod = pod.uid
        self.started[container.id] = self._unseen[container.id] = StartedContainer(
            owner, start.cpus, self._clock()
        )
        _adjust(answer.adjust, start, environment)
        return answer

    def _note_rejection(self, pod_uid: str) -> None:
        """Record a pod whose container was rejected; the kubelet tries again within KEPT_SECONDS."""
        now = self._clock()
        recent = {uid: at for uid, at in self.rejected.items() if now - at < KEPT_SECONDS}
        self.rejected = {**recent, pod_uid: now}
        if pod_uid not in recent:
            self.pod_rejected()

    def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """Return an update with the container's CPUs if the request has others; none in a conflict."""
        answer = pb.UpdateContainerResponse()
        asked = resources.cpu.cpus
        cpus = self._corrected(pod, container, asked)
        number, _ = self.last_update(container.id)
        self._updates[container.id] = number + 1, str(cpus) if cpus else asked
        if cpus:
            update = answer.update.add(container_id=container.id)
            update.linux.resources.cpu.cpus = str(cpus)
        return answer

    def _corrected(self, pod: pb.PodSandbox, container: pb.Container, asked: str) -> CPUSet:
        """Return the cpuset to apply instead of `asked`; empty if `asked` is right, or the container is left alone."""
        table = self.table
        if table is None or self._in_vm(pod.runtime_handler):
            return EMPTY
        owner = Owner(pod.uid, container.name)
        return table.corrected(owner, container.id, asked, namespace=pod.namespace, busy=self._busy(table))

    def last_update(self, container_id: str) -> tuple[int, str]:
        """Return how many updates of a container this connection asked about, and the cpuset that the last one applied."""
        return self._updates.get(container_id, (0, ""))

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Admit every container, and record other plugins that set cpusets.

        The plugin is a validator because a runtime creates no container while a validator does not answer.
        """
        self._answered, self._unmade = "", frozenset()
        if self.table is None:  # while this agent sets no CPUs, other plugins may set them
            self.other_plugins = frozenset()
            return ""
        connected = {f"{plugin.index}-{plugin.name}" for plugin in request.plugins}
        self.other_plugins &= connected  # plugins that disconnected set no CPUs
        owners = request.owners.owners.get(request.container.id)
        other = owners.simple.get(CPUSET_CPUS, "") if owners else ""
        if other and other != str(NAME):
            self.other_plugins |= {other}
        return ""

    def event(self, event: int, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> None:
        """Record started sandboxes and containers, and forget removed containers."""
        if event == Event.REMOVE_CONTAINER:
            self._forget(container.id)
        elif event == Event.RUN_POD_SANDBOX:
            self.sandbox_started(pod.uid)
        elif event == Event.START_CONTAINER:
            if container.id == self._answered:
                self._answered = ""
            if self._is_on_host(container.linux.cgroups_path):
                self._note_start(pod, container)
            else:  # it runs in a virtual machine, which is not on the CPUs of the answer: a pass has to move it
                self._forget(container.id)

    def _note_start(self, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> None:
        if container.pid and container.linux.cgroups_path:
            self._first_processes[container.id] = container.pid, container.linux.cgroups_path
        self._put_home(pod, container)

    def _put_home(self, pod: pb.KnownPodSandbox, container: pb.KnownContainer) -> None:
        """Move the first process of a container that may run on more CPUs than it owns to its own CPUs.

        Its children inherit the affinity. The runtime sets the mask at creation, so this cannot happen earlier.
        """
        table = self.table
        if table is not None and container.pid and not self._in_vm(pod.runtime_handler):
            home = table.home(Owner(pod.uid, container.name))
            if home and not self._put(container.pid, home):
                self.unsettled.add(container.id)

    def disconnected(self) -> None:
        """Forget the updates, and the last answer unless the runtime confirmed it or a pass has observed its container.

        A runtime disconnects a plugin that is too slow, and creates the container without its answer.
        """
        self.connections += 1
        self._updates = {}
        table = self.table
        if table is None or self._answered not in table.seen:
            self._forget(self._answered)
        self._answered, self._unmade = "", frozenset()

    def _forget(self, container_id: str) -> None:
        self.started.pop(container_id, None)
        self._first_processes.pop(container_id, None)
        self._updates.pop(container_id, None)
        self.unsettled.discard(container_id)
        if self._unseen.pop(container_id, None):
            self._judged = None

    def _note_unmade(self) -> None:
        """Record another plugin if creations of two pods in a row failed after this plugin's answer.

        A plugin that sets the cpuset too fails all of them. One that refuses a pod, for reasons of its own, fails those
        of that pod alone, which the kubelet tries again.
        """
        if self.validates and self._answered:
            self._unmade |= {self._answered_pod}
            if len(self._unmade) > 1:
                self.other_plugins |= {UNNAMED}

    def _busy(self, table: StartTable) -> CPUSet:
        """Return owned CPUs on which unobserved containers from older tables may run."""
        if table is not self._judged:
            self._judged = table
            self._forget_seen(table)
            started = self._unseen.values()
            self._in_the_way = union(table.trespass(container.owner, container.cpus) for container in started)
        return self._in_the_way

    def _forget_seen(self, table: StartTable) -> None:
        for key, container in tuple(self._unseen.items()):
            is_late = self._clock() - container.at > KEPT_SECONDS
            if is_late or key in table.seen:
                del self._unseen[key]
            if is_late and key not in table.seen:
                self.started.pop(key, None)


def _asks(pod: pb.PodSandbox) -> bool:
    """Return whether a sandbox requests CPUs.

    A static pod counts as requesting none, because the API server shows it only once it runs.
    """
    if pod.annotations.get(_SOURCE, "api") != "api":
        return False
    is_vm = pod.labels.get(KUBEVIRT_LABEL) == VIRT_LAUNCHER
    return is_vm or any(key in ASKING_MARKS or is_policy_key(key) for key in pod.annotations)


def _adjust(adjust: pb.ContainerAdjustment, start: Start, environment: Mapping[str, str]) -> None:
    adjust.linux.resources.cpu.cpus = str(start.cpus)
    if start.mems:
        adjust.linux.resources.cpu.mems = str(start.mems)
    for key, value in environment.items():
        adjust.env.add(key=key, value=value)
