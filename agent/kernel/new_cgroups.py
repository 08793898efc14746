"""Watch for new containers' cgroups, which appear tens of milliseconds before a container's first instruction.

A runtime creates a container's cgroup below its pod's, puts a process of its own into it, and finally executes the
container's command. A folder whose name ends in a container id is a container's; every other one below the pod root
may contain pods or containers, and is watched (interface `ContainerWatch`).

CRI-O creates the cgroup early, and lists the container only some 10 ms before its first instruction. So a container of
CRI-O is reported with the pod that the parent folder names.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Refused
from agent.interfaces import NewContainer
from agent.kernel.cgroup_names import container_id, pod_uid
from agent.kernel.cgroupfs import find_hierarchy, subfolders
from agent.kernel.inotify import CREATE, ONLY_FOLDERS, NamedWatches
from agent.node_state import Path as Way
from agent.node_state import StartWay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from agent.interfaces import Owners
    from agent.node_state import LastUpdate
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.start_table import StartTable

_CRIO: Final = "crio-"


class CgroupWatcher:
    """Watches the pods' cgroups and their parents for new containers. It cannot delay the start of a container."""

    start_way = StartWay(Way.CGROUP)
    puts_home = False

    def __init__(self, cgroup_root: Path, owners: Owners, pod_roots: Iterable[str]) -> None:
        self._hierarchy = find_hierarchy(cgroup_root)
        self.owners = owners
        self._pod_roots = frozenset(pod_roots)
        self._watches = NamedWatches(CREATE | ONLY_FOLDERS)
        self._asking: set[asyncio.Task[None]] = set()
        self._created: Callable[[NewContainer], None] = lambda _: None

    def publish(self, table: StartTable | None) -> None:
        """Ignore the table, because the callback of `watch` looks up the CPUs."""

    def started(self, container_id: str) -> CPUSet | None:
        """Return None, because this watch starts no containers."""
        return None

    def last_update(self, container_id: str) -> LastUpdate | None:
        """Return None, because no runtime asks the agent about updates."""
        return None

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch the pod roots, and the cgroups above these containers and their pods; raise Refused."""
        pods = {_above(cgroup) for cgroup in cgroups}
        wanted = (pods | {_above(pod) for pod in pods} | self._pod_roots) - {""}
        watched = self._watches.names
        for cgroup in watched - wanted:
            if not self._hierarchy.has(cgroup):
                self._watches.remove(cgroup)
        for cgroup in sorted(wanted - watched):
            self._watch(cgroup)

    def _watch(self, cgroup: str) -> None:
        """Watch one cgroup and treat its existing children as new, because they may have appeared just before."""
        folder = self._hierarchy.folder(cgroup)
        if self._watches.add(cgroup, folder):
            for child in subfolders(folder):
                self._made(f"{cgroup}/{child.name}")

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Call `created` with each new container, until cancelled."""
        loop = asyncio.get_running_loop()
        self._created = created
        loop.add_reader(self._watches, self._report)
        try:
            await loop.create_future()
        finally:
            loop.remove_reader(self._watches)
            self._created = lambda _: None

    def _report(self) -> None:
        events = self._watches.events()
        if events is None:
            for cgroup in self._watches.names:
                self._watches.remove(cgroup)  # the next pass adds all watches again and lists the children
            return
        for event in events:
            with suppress(Refused):  # the next pass retries the watch and reports the failure
                self._made(f"{event.name}/{event.file}")

    def _made(self, cgroup: str) -> None:
        identity = container_id(cgroup.rpartition("/")[2])
        if identity is None:
            self._watch(cgroup)
            return
        task = asyncio.ensure_future(self._ask(identity, cgroup))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _ask(self, identity: str, cgroup: str) -> None:
        above, _, name = cgroup.rpartition("/")
        pod = pod_uid(above.rpartition("/")[2]) if name.startswith(_CRIO) else None
        with suppress(AgentError):  # a sandbox, or a container that the next pass finds
            owner = (self.owners.known(identity) or pod) if pod else await self.owners.owner(identity)
            self._created(NewContainer(identity, owner, cgroup))

    def close(self) -> None:
        """Remove all watches."""
        self._watches.close()


def _above(cgroup: str) -> str:
    return cgroup.rpartition("/")[0]
