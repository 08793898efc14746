"""Refuse to create containers that were promised CPUs and got none.

While the agent is down, or too slow, a runtime creates containers without the agent's CPUs. The guard is a separate
program with its own NRI connection: it validates the result of all plugins. It checks only pods with the webhook's
mark, and containers that name a CDI device of a ResourceClaim with CPUs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from agent.nri.wire import CPUSET_CPUS, PluginName
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED, GUARDED_VALUE, NRI_PLUGIN, NRI_PLUGIN_INDEX
from pinning.dra.claims import claimed_by
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GUARD: Final = PluginName("corepin-guard", 90)
AGENT: Final = PluginName(NRI_PLUGIN, NRI_PLUGIN_INDEX)
AWAY: Final = (
    "corepin's agent is not connected to this node's container runtime: the container starts by itself once the"
    " agent is back; look at the agent's pod on this node. If that runs, delete the pods that the node's condition"
    " CorepinDegraded names"
)
SILENT: Final = (
    "corepin's agent gave it none in time: the kubelet tries again by itself; if this persists, look at the log of"
    " the agent's pod on this node"
)

logger = logging.getLogger(__name__)


class Guard:
    """NRI handlers of the guard.

    `exempt` are the namespaces of pods that must always start; `observes` returns whether the agent assigns no CPUs on
    this node, and is called only before a refusal.
    """

    def __init__(self, exempt: frozenset[str], observes: Callable[[], bool]) -> None:
        self._exempt = exempt
        self._observes = observes

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Return why a container may not be created; empty if it may."""
        pod, name = request.pod, request.container.name
        if pod.namespace in self._exempt or not _is_guarded(pod, request.container):
            return ""
        if is_vm_handler(pod.runtime_handler):  # the agent moves virtual machines once they run
            return ""
        lack = lack_of_cpus(request)
        if not lack or self._observes():
            return ""
        facts = {"namespace": pod.namespace, "pod": pod.name, "container": name, "reason": lack}
        logger.warning("container held back", extra={"facts": facts})
        return f"container {name} was promised CPUs of its own, but {lack}"

    def configure(self, request: pb.ConfigureRequest) -> None:
        """Ignore the runtime's configuration."""

    def synchronize(
        self, pods: Sequence[pb.KnownPodSandbox], containers: Sequence[pb.KnownContainer]
    ) -> tuple[()]:
        """Return no updates: running containers stay unchanged."""
        return ()

    def create_container(self, pod: pb.PodSandbox, container: pb.Container) -> pb.CreateContainerResponse:
        """Return no adjustment."""
        return pb.CreateContainerResponse()

    def update_container(
        self, pod: pb.PodSandbox, container: pb.Container, resources: pb.LinuxResources
    ) -> pb.UpdateContainerResponse:
        """Return no update."""
        return pb.UpdateContainerResponse()

    def event(self, event: int, pod: Any, container: Any) -> None:
        """Ignore the event."""


def _is_guarded(pod: pb.PodSandbox, container: pb.Container) -> bool:
    """Return whether a container must not start without CPUs: by the mark of its pod, else by its ResourceClaims."""
    mark = pod.annotations.get(GUARDED)
    if mark is not None:
        return mark == GUARDED_VALUE
    return any(claimed_by(device.name) for device in container.CDI_devices)


def lack_of_cpus(request: pb.ValidateContainerAdjustmentRequest) -> str:
    """Return why a container has no CPUs from the agent, with the remedy; empty if it has some."""
    owners = request.owners.owners.get(request.container.id)
    owner = owners.simple.get(CPUSET_CPUS, "") if owners else ""
    if owner == str(AGENT) and request.adjust.linux.resources.cpu.cpus:
        return ""
    if owner not in {"", str(AGENT)}:
        return f"NRI plugin {owner} chose its CPUs: let only one program choose the CPUs of this node"
    asked = {f"{plugin.index}-{plugin.name}" for plugin in request.plugins}
    return SILENT if str(AGENT) in asked else AWAY
