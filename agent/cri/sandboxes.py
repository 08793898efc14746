"""The virtual machines of a runtime (Kata): one for each sandbox of a VM pod, even before its first container exists."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.cri.container_info import ContainerInfo
from agent.cri.statuses import sandbox_info
from agent.errors import Gone, Refused, TooLarge
from agent.interfaces import RuntimeSandbox
from pinning.planning.observed import State
from pinning.pods.vm_handlers import is_vm_handler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from agent.cri.lists import ListedContainer, ListedSandbox
    from agent.grpc_calls import Calls

    Found = tuple[ListedContainer, ContainerInfo]


@dataclass
class SandboxListing:
    """Lists virtual machines, and requests the status of each until the pid of its VMM is known."""

    calls: Calls
    machines: tuple[RuntimeSandbox, ...] = ()
    _infos: dict[str, ContainerInfo] = field(default_factory=dict)

    async def take(self, sandboxes: Mapping[str, ListedSandbox], found: Iterable[Found]) -> None:
        """Replace the list of machines; `found` has the containers with their status. Raises Unavailable."""
        inside: dict[str, list[Found]] = {}
        for container, info in found:
            inside.setdefault(container.sandbox, []).append((container, info))
        machines = [sandbox for sandbox in sandboxes.values() if _is_machine(sandbox, inside)]
        # one at a time, because an answer may be large
        infos = [await self._info_of(sandbox.id) for sandbox in machines]
        known = [(sandbox, info) for sandbox, info in zip(machines, infos, strict=True) if info]
        self._infos = {sandbox.id: info for sandbox, info in known}
        self.machines = tuple(_machine(sandbox, info, inside.get(sandbox.id, ())) for sandbox, info in known)

    async def _info_of(self, sandbox_id: str) -> ContainerInfo | None:
        """Return a sandbox's status; None if it does not exist, an empty status if the runtime fails."""
        known = self._infos.get(sandbox_id)
        if known and known.pid:
            return known
        try:
            return await sandbox_info(self.calls, sandbox_id)
        except Gone:
            return None
        except (Refused, TooLarge):
            return ContainerInfo()


def _is_machine(sandbox: ListedSandbox, inside: Mapping[str, Iterable[Found]]) -> bool:
    if not sandbox.is_ready:
        return False
    return is_vm_handler(sandbox.handler) or any(info.in_vm for _, info in inside.get(sandbox.id, ()))


def _machine(sandbox: ListedSandbox, info: ContainerInfo, inside: Iterable[Found]) -> RuntimeSandbox:
    live = [*_live(inside)]
    pids = (known.pid for known in (*live, info) if known.pid)  # Kata reports the VMM's pid for all of them
    return RuntimeSandbox(
        id=sandbox.id,
        pod_uid=sandbox.pod_uid,
        namespace=sandbox.namespace,
        pod=sandbox.pod,
        handler=sandbox.handler,
        pid=next(pids, 0),
        cgroup=info.cgroup,
        has_quota=any(known.has_quota for known in live),
    )


def _live(inside: Iterable[Found]) -> Iterator[ContainerInfo]:
    """Yield the status of the containers that have not exited, oldest first."""
    for container, info in sorted(inside, key=lambda found: (found[0].created_at, found[0].id)):
        if container.state is not State.EXITED:
            yield info
