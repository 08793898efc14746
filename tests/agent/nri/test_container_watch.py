"""New containers over NRI as the agent's loop sees them: when it holds, when it breaks, and what is left for cgroups."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.absent import NoOwners
from agent.errors import Gone
from agent.interfaces import NewContainer
from agent.node_state import LargeEnvironment, NodeState, StartWay
from agent.node_state import Path as Way
from agent.nri.container_watch import SWITCH_SECONDS, BirthOwners, EnvironmentSearch, NriContainerWatch
from agent.nri.plugin import Plugin
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.start_table import StartTable, start_table
from tests.agent.fakes import FakeNode
from tests.agent.nri.fake_runtime import FakeRuntime, container, pod
from tests.pinning.world import EXCLUSIVE, World, world

PATIENCE_SECONDS = 60
B = pod("b")
COMING = NewContainer("b-c0", Owner("uid-b", "c0"), "/kubepods/podb/b-c0")


@dataclass
class Cgroups:
    """A watch for new cgroups that the test speaks for."""

    start_way: StartWay = field(default_factory=lambda: StartWay(Way.CGROUP))
    followed: list[str] = field(default_factory=list)
    made: Callable[[NewContainer], None] = lambda _: None
    puts_home = False
    owners: NoOwners = field(default_factory=NoOwners)

    def publish(self, table: StartTable | None) -> None:
        """Take no table."""

    def started(self, container_id: str) -> CPUSet | None:
        """Know of none."""
        return None

    def follow(self, cgroups: Iterable[str]) -> None:
        """Remember what is followed."""
        self.followed = list(cgroups)

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Let the test tell of containers, until cancelled."""
        self.made = created
        await asyncio.get_running_loop().create_future()


class Scene:
    """A watch over a socket, a planned node of 4 cores, and what the agent was told."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "nri.sock"
        self.world: World = world(4)
        self.plugin = Plugin(lambda _: False)
        self.cgroups = Cgroups()
        self.watch = NriContainerWatch(self.socket, self.plugin, self.cgroups)
        self.created: list[NewContainer] = []
        self.changed = asyncio.Event()

    def table(self) -> StartTable:
        """Do what is planned, and return what new containers get."""
        self.world.run_all()
        return start_table(self.world.plan(), self.world.observe())

    async def until(self, holds: bool) -> None:
        """Wait until the agent is told that the watch holds, or does not."""
        while self.watch.holds is not holds:
            self.changed.clear()
            if self.watch.holds is not holds:
                await self.changed.wait()


def play(folder: Path, story: Callable[[Scene], Awaitable[None]]) -> None:
    """Run a story beside the watch."""

    async def run() -> None:
        scene = Scene(folder)
        watching = asyncio.create_task(scene.watch.watch(scene.created.append, scene.changed.set))
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await story(scene)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching

    asyncio.run(run())


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Leave the interpreter as it was."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_it_connects_when_there_is_a_table_and_comes_back(tmp_path: Path) -> None:
    """Before the first plan nothing could be answered; a runtime that restarts finds the plugin again."""

    async def story(scene: Scene) -> None:
        scene.watch.publish(None)
        with FakeRuntime(scene.socket) as runtime:
            assert not scene.watch.holds
            scene.watch.publish(scene.table())
            plugin = await asyncio.to_thread(runtime.plugin)
            await scene.until(holds=True)
            assert (plugin.name, scene.watch.reason) == ("10-corepin", "")
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
            scene.watch.publish(None)
            assert not scene.watch.holds
            scene.watch.publish(scene.table())
        await scene.until(holds=False)
        assert "nri.sock" in scene.watch.reason or "closed" in scene.watch.reason
        with FakeRuntime(scene.socket) as runtime:
            await asyncio.to_thread(runtime.plugin)
            await scene.until(holds=True)

    play(tmp_path, story)


def test_newest_table_answers(tmp_path: Path) -> None:
    """From the moment it is published, without a word to the thread that answers."""

    async def story(scene: Scene) -> None:
        scene.watch.publish(scene.table())
        with FakeRuntime(scene.socket) as runtime:
            plugin = await asyncio.to_thread(runtime.plugin)
            answer = await asyncio.to_thread(plugin.create, B, container("c0", "b"))
            assert answer.adjust.linux.resources.cpu.cpus == "0-7"
            scene.world.add("uid-a", [EXCLUSIVE])
            scene.watch.publish(scene.table())
            answer = await asyncio.to_thread(plugin.create, B, container("c1", "b"))
            assert answer.adjust.linux.resources.cpu.cpus == "0,2-4,6-7"
            assert scene.watch.started("b-c1") == CPUSet.parse("0,2-4,6-7")

    play(tmp_path, story)


def test_container_that_was_made_right_needs_nobody(tmp_path: Path) -> None:
    """Its cgroup is told of when it was not made over NRI, or when its CPUs are given away before it is seen."""

    async def story(scene: Scene) -> None:
        first = scene.table()
        scene.watch.publish(first)
        scene.cgroups.made(COMING)
        assert scene.created == [COMING]
        scene.plugin.create_container(B, container("c0", "b"))
        scene.cgroups.made(COMING)
        scene.watch.publish(scene.table())
        assert scene.created == [COMING]

        scene.world.add("uid-a", [EXCLUSIVE])
        scene.watch.publish(scene.table())
        scene.watch.publish(scene.table())
        assert scene.created == [COMING] * 2

    play(tmp_path, story)


def test_answer_that_came_too_late_is_not_believed(tmp_path: Path) -> None:
    """The runtime hung up and made the container anywhere: it is told of, also when its cgroup was there before."""

    async def story(scene: Scene) -> None:
        scene.watch.publish(scene.table())
        with FakeRuntime(scene.socket) as runtime:
            plugin = await asyncio.to_thread(runtime.plugin)
            await scene.until(holds=True)
            await asyncio.to_thread(plugin.create, B, container("c0", "b"))
            scene.cgroups.made(COMING)
            assert scene.created == []
        await scene.until(holds=False)
        scene.watch.publish(scene.table())
        assert scene.created == [COMING]
        assert scene.watch.started("b-c0") is None

    play(tmp_path, story)


def test_pass_that_knows_a_container_looks_after_it(tmp_path: Path) -> None:
    """What it wants of the container it does by itself."""

    async def story(scene: Scene) -> None:
        scene.watch.publish(scene.table())
        scene.plugin.create_container(B, container("c0", "b"))
        scene.cgroups.made(COMING)
        number = scene.world.start("uid-b", "c0")
        scene.world.containers["b-c0"] = replace(scene.world.containers.pop(number), id="b-c0")
        scene.world.add("uid-a", [EXCLUSIVE])
        scene.watch.publish(start_table(scene.world.plan(), scene.world.observe()))
        assert scene.created == []

    play(tmp_path, story)


def test_cgroups_are_followed_all_the_while(tmp_path: Path) -> None:
    """When the connection breaks there is no time to begin with it."""

    async def story(scene: Scene) -> None:
        scene.watch.follow(["/kubepods/podb/b-c0"])
        assert scene.cgroups.followed == ["/kubepods/podb/b-c0"]

    play(tmp_path, story)


def test_owner_of_a_container_made_over_nri_is_known(tmp_path: Path) -> None:
    """The runtime is asked about the others only."""

    class Nobody:
        def known(self, container_id: str) -> Owner | None:
            raise Gone(container_id)

        async def owner(self, container_id: str) -> Owner:
            raise Gone(container_id)

        async def created(self, container_ids: Collection[str]) -> Mapping[str, Owner | None]:
            return dict.fromkeys(container_ids)

    async def story(scene: Scene) -> None:
        scene.watch.publish(scene.table())
        scene.plugin.create_container(B, container("c0", "b"))
        owners = BirthOwners(scene.plugin, Nobody())
        assert await owners.owner("b-c0") == owners.known("b-c0") == Owner("uid-b", "c0")
        assert await owners.created(["a-c0"]) == {"a-c0": None}
        assert scene.watch.owners is scene.cgroups.owners
        with pytest.raises(Gone):
            await owners.owner("other")

    play(tmp_path, story)


class Ways:
    """A reporter that waits for a way by which new containers get their CPUs."""

    def __init__(self) -> None:
        self._newest: Way | None = None
        self._told = asyncio.Event()

    async def publish(self, state: NodeState) -> None:
        """Take a state."""
        self._newest = state.start_path
        self._told.set()

    async def reset(self) -> None:
        """Leave it."""

    async def until(self, way: Way) -> None:
        """Wait until new containers get their CPUs so."""
        while self._newest is not way:
            self._told.clear()
            await self._told.wait()


def test_agent_goes_from_one_way_to_the_other_and_back(node: FakeNode, tmp_path: Path) -> None:
    """Its state tells the way of the moment, and every change asks for a pass."""
    plugin = Plugin(lambda _: False)
    node.container_watch = NriContainerWatch(tmp_path / "nri.sock", plugin, Cgroups())

    async def story() -> None:
        ways = Ways()
        running = asyncio.create_task(node.new_agent(ways).loop.run())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await ways.until(Way.CGROUP)
                with FakeRuntime(tmp_path / "nri.sock") as runtime:
                    await asyncio.to_thread(runtime.plugin)
                    await ways.until(Way.NRI)
                await ways.until(Way.CGROUP)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    node.runner.run(story())


def test_large_environments_are_searched_for_once_an_hour() -> None:
    """However often the runtime fails to list its containers in between, and again soon if it could not be asked."""
    asked = 0
    large = LargeEnvironment("u", "team", "web", "main", 2**20)

    async def find() -> tuple[LargeEnvironment, ...] | None:
        nonlocal asked
        asked += 1
        return None if asked == 1 else (large,)

    async def story() -> None:
        loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        search = EnvironmentSearch(find, changed.set)
        search.follow(is_needed=True)
        while asked == 0:
            await asyncio.sleep(0)
        assert search.largest is None
        assert 0 < search._next - loop.time() <= 30
        search.stop()
        search._next = 0.0
        for _ in range(10):
            search.follow(is_needed=True)
            await changed.wait()
            search.follow(is_needed=False)
        assert search.largest == (large,)
        assert search._next - loop.time() > 3000
        assert asked == 2

    asyncio.run(story())
