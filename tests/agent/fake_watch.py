"""A runtime of the fake node that asks the agent before it makes a container (interface `ContainerWatch`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.absent import NoOwners
from agent.node_state import Path, StartWay
from pinning.planning.observed import Owner, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.interfaces import NewContainer, Owners
    from pinning.machine.cpuset import CPUSet
    from pinning.planning.start_table import StartTable
    from tests.agent.fakes import FakeNode


@dataclass
class FakeWatch:
    """Makes containers by the newest table, as long as it holds."""

    node: FakeNode
    holds: bool = True
    reason: str = ""
    other_plugins: tuple[str, ...] = ()
    tables: list[StartTable | None] = field(default_factory=list)
    births: dict[str, CPUSet] = field(default_factory=dict)
    published: Callable[[], None] = lambda: None
    changed: Callable[[], None] = lambda: None
    puts_home: bool = True
    owners: Owners = field(default_factory=NoOwners)

    @property
    def start_way(self) -> StartWay:
        """Return the way of the next start."""
        path = Path.NRI if self.holds else Path.CGROUP
        return StartWay(path, self.reason, self.other_plugins)

    def publish(self, table: StartTable | None) -> None:
        """Keep every table."""
        self.tables.append(table)
        self.published()

    def started(self, container_id: str) -> CPUSet | None:
        """Return what a container was made with."""
        return self.births.get(container_id)

    def follow(self, cgroups: Iterable[str]) -> None:
        """Watch nothing: tests make containers themselves."""

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Tell of changes until cancelled."""
        self.changed = changed
        await asyncio.get_running_loop().create_future()

    def create(self, uid: str, name: str = "c0", *, claims: bool = True) -> str:
        """Make a container as the table says; return its id, or why it was not made."""
        table = self.tables[-1]
        assert table is not None
        start = table.start(Owner(uid, name), claims=claims)
        if isinstance(start, str):
            return start
        number = self.node.start(uid, name, State.CREATED)
        cpus = start.cpus if self.puts_home else start.own or start.cpus
        self.node.records[number] = self.births[number] = cpus
        return number
