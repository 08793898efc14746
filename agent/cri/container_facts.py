"""Pid and cgroup of each container, which the runtime's lists lack: from its verbose status or from NRI.

A verbose status carries the container's environment and costs as much as three events. Over NRI the runtime shows pid
and cgroup of each container that starts, but not its shim, which may start virtual machines. So the agent requests
the statuses of a runtime handler's containers until one of them shows that the handler's shim starts no virtual
machine. It also requests a status if the host lacks the cgroup that NRI named: containerd starts pods with the
annotation io.kubernetes.cri.untrusted-workload by another shim, though their handler is the default one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.cri.container_info import ContainerInfo, cgroup_path
from agent.cri.statuses import container_info
from agent.errors import Gone, Refused, TooLarge
from pinning.planning.observed import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.cri.lists import ListedContainer
    from agent.grpc_calls import Calls

_AT_ONCE: Final = 1  # a status carries the container's environment, up to 16 MiB

logger = logging.getLogger(__name__)


class ContainerFacts:
    """Cache of the facts of each container."""

    def __init__(self, calls: Calls) -> None:
        self.turn = asyncio.Semaphore(_AT_ONCE)  # held by a call whose answer is a status
        # returns pid and cgroupsPath of a container that has started, as NRI showed them
        self.first_process: Callable[[str], tuple[int, str] | None] = lambda _: None
        # returns whether a cgroup exists on the host, unlike one in the guest of a virtual machine
        self.has_cgroup: Callable[[str], bool] = lambda _: False
        self._calls = calls
        self._infos: dict[str, ContainerInfo] = {}
        self._host_handlers: set[str] = set()  # handlers that had a shim without virtual machines

    async def of(
        self, container: ListedContainer, handler: str, *, is_followed: bool
    ) -> ContainerInfo | None:
        """Return the facts of a container, None if it does not exist; raise Unavailable.

        `is_followed`: events prove that the runtime, and so the shim of each handler, is the same as before.
        """
        if known := _settled(self._infos.get(container.id), container.state):
            return known
        is_on_host = is_followed and handler in self._host_handlers
        if is_on_host and container.state is State.RUNNING and (shown := self._shown(container.id)):
            return shown
        async with self.turn:
            info = await self._asked(container.id)
        if is_followed and info and info.has_host_shim:
            self._host_handlers.add(handler)
        return replace(info, of_running=container.state is State.RUNNING) if info else None

    def _shown(self, container_id: str) -> ContainerInfo | None:
        """Return the facts of a running container by NRI; None if there are none, or the host lacks the cgroup."""
        pid, oci_path = self.first_process(container_id) or (0, "")
        cgroup = cgroup_path(oci_path)
        if cgroup is None or not self.has_cgroup(cgroup):
            return None
        return ContainerInfo(pid, cgroup, has_host_shim=True, of_running=True)

    def keep(self, found: Iterable[tuple[ListedContainer, ContainerInfo]]) -> None:
        """Drop the facts of all containers except these."""
        self._infos = {container.id: info for container, info in found}

    def lost(self) -> None:
        """Forget which handlers start no virtual machines, because the runtime may have restarted with other shims."""
        self._host_handlers.clear()

    async def _asked(self, container_id: str) -> ContainerInfo | None:
        """Read a container's status; None if the container does not exist, an empty status if the runtime fails."""
        try:
            return await container_info(self._calls, container_id)
        except Gone:
            return None
        except (Refused, TooLarge) as refused:
            facts = {"container": container_id, "reason": str(refused)}
            logger.warning("container status refused", extra={"facts": facts})
            return ContainerInfo(is_too_large=isinstance(refused, TooLarge))


def _settled(known: ContainerInfo | None, state: State) -> ContainerInfo | None:
    """Return a container's known facts; None if its status must be read: after creation, and again when it runs."""
    if state is State.EXITED:
        return replace(known, pid=0) if known and known.pid else known or ContainerInfo()
    is_read = known and (known.is_too_large or state is State.CREATED or (known.pid and known.of_running))
    return known if is_read else None
