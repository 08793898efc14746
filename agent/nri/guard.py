"""Decide whether the runtime may create a container: not one that was promised CPUs and was given none.

While the agent is away, or does not answer in time, a runtime creates containers without the CPUs that the agent would
have given them. The guard is another program with a connection of its own: it is shown what all plugins made of a
container, and has the last word. It looks at pods that bear the webhook's mark and at no other ones.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from agent.nri.wire import CPUSET_CPUS, PluginName
from agent.nri.wire import nri_pb2 as pb
from pinning.contract import GUARDED, GUARDED_VALUE, NRI_PLUGIN, NRI_PLUGIN_INDEX
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GUARD: Final = PluginName("corepin-guard", 90)
AGENT: Final = PluginName(NRI_PLUGIN, NRI_PLUGIN_INDEX)
AWAY: Final = (
    "corepin's agent is not connected to this node's container runtime: it starts by itself as soon as the agent is"
    " back; look at the agent's pod on this node. If that runs, the node's condition CorepinDegraded names the pods"
    " that keep it out: delete them"
)
SILENT: Final = (
    "corepin's agent gave it none in time: the kubelet tries again by itself; if it stays so, look at the log of the"
    " agent's pod on this node"
)

logger = logging.getLogger(__name__)


class Guard:
    """What the guard answers to the runtime.

    `exempt` are the namespaces of pods that must always start; `observes` says whether the agent gives no CPUs on
    this node, and is asked only before a container is held back.
    """

    def __init__(self, exempt: frozenset[str], observes: Callable[[], bool]) -> None:
        self._exempt = exempt
        self._observes = observes

    def validate(self, request: pb.ValidateContainerAdjustmentRequest) -> str:
        """Return why a container may not be created; nothing when it may."""
        pod, name = request.pod, request.container.name
        if pod.annotations.get(GUARDED) != GUARDED_VALUE or pod.namespace in self._exempt:
            return ""
        if is_vm_handler(pod.runtime_handler):  # the agent gives it CPUs once it runs
            return ""
        lack = lack_of_cpus(request)
        if not lack or self._observes():
            return ""
        facts = {"namespace": pod.namespace, "pod": pod.name, "container": name, "reason": lack}
        logger.warning("container held back", extra={"facts": facts})
        return f"container {name} was promised CPUs of its own, but {lack}"

    def configure(self, request: pb.ConfigureRequest) -> None:
        """Need nothing of the runtime's configuration."""

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
        """Change nothing."""
        return pb.UpdateContainerResponse()

    def event(self, event: int, pod: Any, container: Any) -> None:
        """Take no notice."""


def lack_of_cpus(request: pb.ValidateContainerAdjustmentRequest) -> str:
    """Return why a container has no CPUs of the agent's, and what to do; nothing when it has some."""
    owners = request.owners.owners.get(request.container.id)
    owner = owners.simple.get(CPUSET_CPUS, "") if owners else ""
    if owner == str(AGENT) and request.adjust.linux.resources.cpu.cpus:
        return ""
    if owner not in {"", str(AGENT)}:
        return f"NRI plugin {owner} chose its CPUs: let only one program choose the CPUs of this node"
    asked = {f"{plugin.index}-{plugin.name}" for plugin in request.plugins}
    return SILENT if str(AGENT) in asked else AWAY
