"""A fake NRI watch that creates containers by the agent's table (interface `ContainerWatch`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.absent import NoOwners
from agent.node_state import LastUpdate, Path, StartWay
from pinning.planning.observed import Owner, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.interfaces import NewContainer, Owners
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.start_table import StartTable
    from tests.agent.fakes import FakeNode


@dataclass
class FakeWatch:
    """Creates containers by the newest table while `holds` is true."""

    node: FakeNode
    holds: bool = True
    reason: str = ""
    other_plugins: tuple[str, ...] = ()
    tables: list[StartTable | None] = field(default_factory=list)
    rejected: frozenset[str] = frozenset()
    births: dict[str, CPUSet] = field(default_factory=dict)
    published: Callable[[], None] = lambda: None
    changed: Callable[[], None] = lambda: None
    puts_home: bool = True
    owners: Owners = field(default_factory=NoOwners)
    connection: int = 0
    updates: dict[str, LastUpdate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Count the updates of the node's runtime from now on."""
        self.node.asked = self.asked

    def asked(self, container_id: str, cpus: str) -> None:
        """Record an update about which the runtime asks."""
        before = self.last_update(container_id)
        if before:
            self.updates[container_id] = before._replace(number=before.number + 1, cpus=cpus)

    def last_update(self, container_id: str) -> LastUpdate | None:
        """Return the last update of a container; None while the runtime does not ask."""
        return self.updates.get(container_id, LastUpdate(self.connection, 0, "")) if self.holds else None

    def reconnect(self) -> None:
        """Begin another connection, which knows no updates."""
        self.connection += 1
        self.updates.clear()

    @property
    def start_way(self) -> StartWay:
        """Return the start path and its reason."""
        path = Path.NRI if self.holds else Path.CGROUP
        return StartWay(path, self.reason, self.other_plugins, rejected=self.rejected)

    def publish(self, table: StartTable | None) -> None:
        """Record the table."""
        self.tables.append(table)
        self.published()

    def started(self, container_id: str) -> CPUSet | None:
        """Return the CPUs on which a container was created."""
        return self.births.get(container_id)

    def follow(self, cgroups: Iterable[str]) -> None:
        """Ignore the cgroups, because tests create containers themselves."""

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Report changes until cancelled."""
        self.changed = changed
        await asyncio.get_running_loop().create_future()

    def create(self, uid: str, name: str = "c0", *, claims: bool = True) -> str:
        """Create a container by the table; return its id, or why it was refused."""
        table = self.tables[-1]
        assert table is not None
        start = table.start(Owner(uid, name), claims=claims)
        if isinstance(start, str):
            self.rejected |= {uid}
            return start
        number = self.node.start(uid, name, State.CREATED)
        cpus = start.cpus if self.puts_home else start.own or start.cpus
        self.node.records[number] = self.births[number] = cpus
        return number
