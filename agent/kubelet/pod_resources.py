"""Client of the kubelet's PodResources API: the CPUs that its static policy assigned to containers.

The API is a unix socket in the kubelet's root folder. It lists the containers of pods that have not ended, without
ordinary init containers; a container without exclusive CPUs is listed with none. It names containers by namespace, pod
and name, because it has no uids.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Refused
from agent.grpc_calls import Calls, decoded
from agent.kubelet.podresources_pb2 import ListPodResourcesRequest
from agent.kubelet.podresources_pb2 import PodResources as Pod
from pinning.errors import BadCPUList
from pinning.machine.cpuset import MAX_CPU, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

SERVICE: Final = "v1.PodResourcesLister"
PODS: Final = 1  # field number of the pods
SOCKET: Final = "pod-resources/kubelet.sock"  # in the kubelet's root folder

logger = logging.getLogger(__name__)


def socket_beside(state: Path) -> Path:
    """Return the kubelet's socket, which is in the folder of its `cpu_manager_state`."""
    return state.parent / SOCKET


class PodResources:
    """The kubelet behind one socket. An outage is logged once."""

    def __init__(self, socket: Path, timeout_seconds: float = 2.0) -> None:
        self._calls = Calls(socket, SERVICE, timeout_seconds)
        self._is_silent = False

    async def exclusive(self) -> Mapping[str, CPUSet] | None:
        """Return each container's own CPUs by namespace/pod/container, empty sets included.

        None if the kubelet is unavailable.
        """
        try:
            exclusive = await self.ask()
        except AgentError as error:
            if not self._is_silent:
                facts = {"reason": str(error)}
                logger.warning("the kubelet does not report which CPUs it assigned", extra={"facts": facts})
            self._is_silent = True
            return None
        self._is_silent = False
        return exclusive

    async def ask(self) -> Mapping[str, CPUSet]:
        """Return each container's own CPUs as `exclusive` does; raise Unavailable or Refused.

        Pods are decoded one at a time, because devices make the list long.
        """
        found: list[tuple[str, CPUSet]] = []
        try:
            async with self._calls.reading("List", ListPodResourcesRequest()) as fields:
                while number := await fields.next():
                    if number == PODS:
                        found += own_cpus(decoded(Pod, await fields.content()))
            return agreed(found)
        except BadCPUList as error:
            raise Refused(f"{self._calls.socket}: the answer cannot be understood: {error}") from error


def agreed(named: Iterable[tuple[str, CPUSet]]) -> dict[str, CPUSet]:
    """Return CPUs by name, without names that two pods have with different CPUs, as during a replacement."""
    found: dict[str, CPUSet] = {}
    doubtful: set[str] = set()
    for name, cpus in named:
        if found.setdefault(name, cpus) != cpus:
            doubtful.add(name)
    return {name: cpus for name, cpus in found.items() if name not in doubtful}


def own_cpus(pod: Pod) -> Iterator[tuple[str, CPUSet]]:
    """Yield names and CPUs, or raise BadCPUList; containers without own CPUs get the rest of a pod-level allocation."""
    own = {container.name: _cpus(container.cpu_ids) for container in pod.containers}
    rest = _cpus(pod.cpu_ids) - union(own.values())
    for name, cpus in own.items():
        yield f"{pod.namespace}/{pod.name}/{name}", cpus or rest


def _cpus(ids: Sequence[int]) -> CPUSet:
    if len(ids) > MAX_CPU + 1:  # checked before the ids are decoded
        raise BadCPUList(f"{len(ids)} CPUs of one container, more than a machine has")
    return CPUSet(ids)
