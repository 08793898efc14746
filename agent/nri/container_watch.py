"""Pin new containers over NRI, or by their cgroups if NRI misses them (interface `ContainerWatch`).

A container created over NRI is pinned again at its cgroup's creation only if a pass has reassigned its CPUs.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Final

from agent.errors import Gone
from agent.node_state import LastUpdate, ListingFault, StartWay
from agent.node_state import Path as Way
from agent.nri.plugin import NAME
from agent.nri.wire import Client, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from agent.interfaces import ContainerWatch, NewContainer, Owners
    from agent.node_state import LargeEnvironment

    FindLarge = Callable[[], Awaitable[tuple[LargeEnvironment, ...] | None]]
    from agent.nri.plugin import Plugin
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.observed import Owner
    from pinning.planning.start_table import StartTable

# Interpreter switch interval in seconds. An answer takes the interpreter's lock several times, and with the default a
# pass would hold it for 5 ms each time. With 0.1 ms passes take as long as before.
SWITCH_SECONDS: Final = 0.0001

SEARCH_SECONDS: Final = 3600.0  # between two searches for large environments
AGAIN_SECONDS: Final = 30.0  # until the next search, if the runtime could not be asked

logger = logging.getLogger(__name__)


class StartedOwners:
    """Looks up owners among the containers created over NRI, without asking the runtime."""

    def __init__(self, plugin: Plugin, others: Owners) -> None:
        self._plugin = plugin
        self._others = others

    def known(self, container_id: str) -> Owner | None:
        """Return a container's owner without asking the runtime; raise Gone for a sandbox."""
        started = self._plugin.started.get(container_id)
        return started.owner if started else self._others.known(container_id)

    async def owner(self, container_id: str) -> Owner:
        """Return a container's owner; raise AgentError."""
        if known := self.known(container_id):
            return known
        # Every new container is in `started`, so this is a sandbox. Each new pod has one, and a request would be costly.
        if self._plugin.names_all:
            raise Gone(f"{container_id} is no container")
        return await self._others.owner(container_id)

    async def created(self, container_ids: Collection[str]) -> Mapping[str, Owner | None]:
        """Return the owners of those containers that wait for their start; raise AgentError."""
        return await self._others.created(container_ids)


class EnvironmentSearch:
    """Finds the largest environments while the runtime fails to list its containers over NRI, once an hour at most."""

    def __init__(self, find: FindLarge | None, changed: Callable[[], None]) -> None:
        self.largest: tuple[LargeEnvironment, ...] | None = None
        self._find = find
        self._changed = changed
        self._next = 0.0  # loop time of the next search
        self._task: asyncio.Task[None] | None = None

    def follow(self, *, is_needed: bool) -> None:
        """Start the search if it is needed, and stop it otherwise."""
        if is_needed and self._task is None and self._find:
            self._task = asyncio.create_task(self._search(self._find))
        elif not is_needed:
            self.stop()

    def stop(self) -> None:
        """Stop the search."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _search(self, find: FindLarge) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._next - loop.time())
            largest = await find()
            self._next = loop.time() + (AGAIN_SECONDS if largest is None else SEARCH_SECONDS)
            if largest is not None and largest != self.largest:
                self.largest = largest
                self._changed()


class NriContainerWatch:
    """Answers the runtime by an NRI plugin, from the first table on.

    `cgroups` watches for containers that NRI misses. `find_large` returns the containers with the largest environments.
    """

    def __init__(
        self, socket: Path, plugin: Plugin, cgroups: ContainerWatch, find_large: FindLarge | None = None
    ) -> None:
        self._plugin = plugin
        plugin.pod_rejected = self._pod_rejected
        self._cgroups = cgroups
        self._client = Client(socket, NAME, plugin, changed=self._status_changed)
        self._is_started = False
        self._was_connected = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._created: Callable[[NewContainer], None] = lambda _: None
        self._changed: Callable[[], None] = lambda: None
        self._search = EnvironmentSearch(find_large, self._found_large)
        # Containers pinned over NRI whose cgroup exists, and that no pass has observed yet.
        self._coming: dict[str, NewContainer] = {}

    @property
    def holds(self) -> bool:
        """Return whether the runtime asks the agent before each creation."""
        return self._plugin.table is not None and self._client.status.is_connected

    @property
    def reason(self) -> str:
        """Return why the runtime does not ask."""
        return "" if self.holds else str(self.listing_fault or self._client.status.reason)

    @property
    def listing_fault(self) -> ListingFault | None:
        """Return why the runtime accepts no plugin, if its list of containers is the cause."""
        status = self._client.status
        return ListingFault(status.reason, self._search.largest) if status.is_not_listed else None

    @property
    def start_way(self) -> StartWay:
        """Return how new containers get their CPUs, with the other plugins that were seen to set cpusets."""
        others = tuple(sorted(self._plugin.other_plugins))
        if self.holds:
            return StartWay(Way.NRI, "", others, rejected=frozenset(self._plugin.rejected))
        return StartWay(Way.CGROUP, self.reason, others, self.listing_fault)

    @property
    def puts_home(self) -> bool:
        """Return whether the first process of a container is moved to its own CPUs before it starts."""
        return self._plugin.puts_home

    @property
    def owners(self) -> Owners:
        """Return the lookup for owners of containers that were reported with only their pod."""
        return self._cgroups.owners

    def publish(self, table: StartTable | None) -> None:
        """Answer by this table from now on; report containers that an older table put on CPUs of others."""
        self._plugin.table = table
        self._plugin.asked(is_asked=self.holds)
        for container_id in tuple(self._plugin.unsettled):
            self._plugin.unsettled.discard(container_id)
            logger.warning(
                "container starts threads faster than they are moved, retried with the next pass",
                extra={"facts": {"container": container_id}},
            )
        for container in tuple(self._coming.values()):
            if table is None or container.id in table.seen:
                del self._coming[container.id]
            elif not self._is_right(container, table):
                del self._coming[container.id]
                self._created(container)
        if table is not None and not self._is_started:
            self._is_started = True
            sys.setswitchinterval(SWITCH_SECONDS)
            self._client.start()

    def started(self, container_id: str) -> CPUSet | None:
        """Return the CPUs that a container was created with."""
        started = self._plugin.started.get(container_id)
        return started.cpus if started else None

    def last_update(self, container_id: str) -> LastUpdate | None:
        """Return the last update of a container's resources; None while the runtime does not ask."""
        if not self.holds:
            return None
        return LastUpdate(self._plugin.connections, *self._plugin.last_update(container_id))

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch the cgroups too, because NRI may miss a container, or its CPUs may be reassigned. Raises Refused."""
        self._cgroups.follow(cgroups)

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Call `created` with new containers that lack their CPUs, and `changed` when the start way changes."""
        self._loop, self._created, self._changed = asyncio.get_running_loop(), created, changed
        try:
            await self._cgroups.watch(self._cgroup_made, changed)
        finally:
            self._search.stop()
            if self._is_started:
                self._client.stop()
            self._loop = None

    def _cgroup_made(self, container: NewContainer) -> None:
        table = self._plugin.table
        if table is not None and self._is_right(container, table):
            self._coming[container.id] = container
        else:
            self._created(container)

    def _is_right(self, container: NewContainer, table: StartTable) -> bool:
        started = self._plugin.started.get(container.id)
        return started is not None and not table.trespass(started.owner, started.cpus)

    def _found_large(self) -> None:
        self._changed()

    def _pod_rejected(self) -> None:
        """Notify the event loop; called in the connection's thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed)

    def _status_changed(self, status: Status) -> None:
        """Notify the event loop; called in the connection's thread."""
        self._plugin.validates = status.validates
        self._plugin.asked(is_asked=status.is_connected and self._plugin.table is not None)
        if self._was_connected and not status.is_connected:
            self._plugin.disconnected()
        self._was_connected = status.is_connected
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._log_and_notify, status)

    def _log_and_notify(self, status: Status) -> None:
        facts = {"runtime": status.runtime, "validates": status.validates, "reason": status.reason}
        if status.is_connected:
            logger.info("NRI connected", extra={"facts": facts})
        self._search.follow(is_needed=status.is_not_listed)
        self._changed()
