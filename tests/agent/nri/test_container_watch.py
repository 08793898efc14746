"""New containers that NRI reports to the agent's loop, and the fallback to cgroups."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.absent import NoOwners
from agent.errors import Gone
from agent.interfaces import NewContainer
from agent.node_state import LargeEnvironment, LastUpdate, NodeState, StartWay
from agent.node_state import Path as Way
from agent.nri.container_watch import SWITCH_SECONDS, EnvironmentSearch, NriContainerWatch, StartedOwners
from agent.nri.plugin import COVERED_SECONDS, KEPT_SECONDS, Plugin
from agent.nri.wire import Event, Reject
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.start_table import StartTable, start_table
from tests.agent.fakes import FakeNode
from tests.agent.nri.fake_runtime import FakeRuntime, container, known, known_pod, pod
from tests.environments.waiting import background
from tests.pinning.world import EXCLUSIVE, World, world

PATIENCE_SECONDS = 60
B = pod("b")
MARKED = {"cpu-manager.corepin.io/pod": "exclusive"}
COMING = NewContainer("b-c0", Owner("uid-b", "c0"), "/kubepods/podb/b-c0")


@dataclass
class Cgroups:
    """A fake watch for new cgroups."""

    start_way: StartWay = field(default_factory=lambda: StartWay(Way.CGROUP))
    followed: list[str] = field(default_factory=list)
    made: Callable[[NewContainer], None] = lambda _: None
    puts_home = False
    owners: NoOwners = field(default_factory=NoOwners)

    def publish(self, table: StartTable | None) -> None:
        """Ignore the start table."""

    def started(self, container_id: str) -> CPUSet | None:
        """Return None for every container."""
        return None

    def last_update(self, container_id: str) -> LastUpdate | None:
        """Return None, because no runtime asks the agent about updates."""
        return None

    def follow(self, cgroups: Iterable[str]) -> None:
        """Record for which cgroups the watch was started."""
        self.followed = list(cgroups)

    async def watch(self, created: Callable[[NewContainer], None], changed: Callable[[], None]) -> None:
        """Wait until cancelled; the test itself reports containers."""
        self.made = created
        await asyncio.get_running_loop().create_future()


class Scene:
    """A watch on a socket, a planned node of 4 cores, and the reported containers."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "nri.sock"
        self.world: World = world(4)
        self.plugin = Plugin(lambda _: False)
        self.cgroups = Cgroups()
        self.watch = NriContainerWatch(self.socket, self.plugin, self.cgroups)
        self.created: list[NewContainer] = []
        self.changed = asyncio.Event()

    def table(self) -> StartTable:
        """Plan, and return the table of CPUs for new containers."""
        self.world.run_all()
        return start_table(self.world.plan(), self.world.observe())

    async def until(self, holds: bool) -> None:
        """Wait until the watch is connected, or is not."""
        while self.watch.holds is not holds:
            self.changed.clear()
            if self.watch.holds is not holds:
                await self.changed.wait()


@asynccontextmanager
async def watching(folder: Path) -> AsyncIterator[Scene]:
    """Run the watch beside the block."""
    scene = Scene(folder)
    async with background(scene.watch.watch(scene.created.append, scene.changed.set)):
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield scene


@pytest.fixture(autouse=True)
def _switches() -> Iterator[None]:
    """Restore the interpreter's switch interval."""
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize("is_on_host", [True, False])
def test_container_started_in_a_virtual_machine_has_no_cpus_of_its_creation(
    tmp_path: Path, *, is_on_host: bool
) -> None:
    """If a container runs in a virtual machine without its own CPUs, a pass moves the machine at once."""
    scene = Scene(tmp_path)
    scene.plugin = Plugin(lambda _: False, is_on_host=lambda _: is_on_host)
    scene.watch = NriContainerWatch(scene.socket, scene.plugin, scene.cgroups)
    scene.plugin.table = scene.table()
    scene.plugin.create_container(B, container("c0", "b"))
    assert scene.watch.started("b-c0") is not None
    scene.plugin.event(Event.START_CONTAINER, known_pod(B), known(container("c0", "b")))

    assert (scene.watch.started("b-c0") is not None) is is_on_host


async def test_plugin_connects_after_the_first_table_and_reconnects(tmp_path: Path) -> None:
    """The plugin connects after the first table is published, and reconnects to a restarted runtime."""
    async with watching(tmp_path) as scene:
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


async def test_newest_table_answers(tmp_path: Path) -> None:
    """The answer to a creation has the CPUs of the table that was published last."""
    async with watching(tmp_path) as scene:
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


async def test_rejected_creation_requests_a_pass(tmp_path: Path) -> None:
    """After a rejected creation a pass is requested, and the next table contains the pod."""
    async with watching(tmp_path) as scene:
        scene.watch.publish(scene.table())
        late = pod("late", annotations=MARKED)
        with FakeRuntime(scene.socket) as runtime:
            await asyncio.to_thread(runtime.plugin)
            await scene.until(holds=True)
            assert scene.watch.start_way.rejected == frozenset()
            scene.changed.clear()
            with pytest.raises(Reject):
                await asyncio.to_thread(scene.plugin.create_container, late, container("c0", "late"))
            await scene.changed.wait()
            assert scene.watch.start_way.rejected == {"uid-late"}


def test_rejected_pods_are_kept_for_a_minute(tmp_path: Path) -> None:
    """A rejected pod is stored until a minute after its last rejection, and only its first rejection is reported."""
    now, reported = [0.0], list[float]()
    plugin = Plugin(lambda _: False, clock=lambda: now[0])
    plugin.table = Scene(tmp_path).table()
    plugin.pod_rejected = lambda: reported.append(now[0])
    for now[0], name, kept in (
        (0.0, "x", {"uid-x"}),
        (KEPT_SECONDS / 2, "x", {"uid-x"}),
        (KEPT_SECONDS, "y", {"uid-x", "uid-y"}),
        (2 * KEPT_SECONDS, "x", {"uid-x"}),
    ):
        with pytest.raises(Reject):
            plugin.create_container(pod(name, annotations=MARKED), container("c0", name))
        assert plugin.rejected.keys() == kept
    assert reported == [0.0, KEPT_SECONDS, 2 * KEPT_SECONDS]


async def test_container_created_on_its_cpus_is_not_reported(tmp_path: Path) -> None:
    """While NRI is connected, a new container is reported only if its CPUs were assigned to another one since."""
    async with watching(tmp_path) as scene:
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


async def test_container_whose_answer_was_late_is_reported(tmp_path: Path) -> None:
    """If the runtime closed the connection before it read the answer, the container is reported."""
    async with watching(tmp_path) as scene:
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


async def test_container_known_to_a_pass_is_not_reported(tmp_path: Path) -> None:
    """A container that a pass has seen is not reported, because the pass itself moves it."""
    async with watching(tmp_path) as scene:
        scene.watch.publish(scene.table())
        scene.plugin.create_container(B, container("c0", "b"))
        scene.cgroups.made(COMING)
        number = scene.world.start("uid-b", "c0")
        scene.world.containers["b-c0"] = replace(scene.world.containers.pop(number), id="b-c0")
        scene.world.add("uid-a", [EXCLUSIVE])
        scene.watch.publish(start_table(scene.world.plan(), scene.world.observe()))
        assert scene.created == []


async def test_cgroups_are_watched_while_nri_is_connected(tmp_path: Path) -> None:
    """The cgroup watch runs also while NRI is connected, so that it is ready when the connection ends."""
    async with watching(tmp_path) as scene:
        scene.watch.follow(["/kubepods/podb/b-c0"])
        assert scene.cgroups.followed == ["/kubepods/podb/b-c0"]


async def test_owner_of_a_container_is_known_from_nri(tmp_path: Path) -> None:
    """The agent looks up only those containers in the runtime that NRI did not create."""

    class Nobody:
        def known(self, container_id: str) -> Owner | None:
            raise Gone(container_id)

        async def owner(self, container_id: str) -> Owner:
            raise Gone(container_id)

        async def created(self, container_ids: Collection[str]) -> Mapping[str, Owner | None]:
            return dict.fromkeys(container_ids)

    async with watching(tmp_path) as scene:
        scene.watch.publish(scene.table())
        scene.plugin.create_container(B, container("c0", "b"))
        owners = StartedOwners(scene.plugin, Nobody())
        assert await owners.owner("b-c0") == owners.known("b-c0") == Owner("uid-b", "c0")
        assert await owners.created(["a-c0"]) == {"a-c0": None}
        assert scene.watch.owners is scene.cgroups.owners
        with pytest.raises(Gone):
            await owners.owner("other")


async def test_runtime_is_not_asked_about_sandboxes_while_it_asks(tmp_path: Path) -> None:
    """While NRI reports every new container, an unknown id is a sandbox; after a disconnect the runtime is called again."""
    now = [0.0]
    plugin = Plugin(lambda _: False, clock=lambda: now[0])
    watch = NriContainerWatch(tmp_path / "nri.sock", plugin, Cgroups())
    calls: list[str] = []

    class Others(NoOwners):
        async def owner(self, container_id: str) -> Owner:
            calls.append(container_id)
            return Owner("uid-x", "c0")

    owners = StartedOwners(plugin, Others())

    async def asked(seconds: float) -> bool:
        now[0] += seconds
        calls.clear()
        with suppress(Gone):
            await owners.owner("sandbox")
        return bool(calls)

    assert await asked(2 * COVERED_SECONDS)
    plugin.asked(is_asked=True)
    assert await asked(COVERED_SECONDS)
    plugin.asked(is_asked=True)
    assert not await asked(1.0)
    watch.publish(None)
    assert await asked(2 * COVERED_SECONDS)


class Ways:
    """A reporter that waits until the published state has a certain start path."""

    def __init__(self) -> None:
        self._newest: Way | None = None
        self._told = asyncio.Event()

    async def publish(self, state: NodeState) -> None:
        """Record the start path."""
        self._newest = state.start_path
        self._told.set()

    async def reset(self) -> None:
        """Do nothing."""

    async def until(self, way: Way) -> None:
        """Wait until the state has this start path."""
        while self._newest is not way:
            self._told.clear()
            await self._told.wait()


def test_agent_switches_between_nri_and_cgroups(node: FakeNode, tmp_path: Path) -> None:
    """The published start path follows the connection, and each change requests a pass."""
    plugin = Plugin(lambda _: False)
    node.container_watch = NriContainerWatch(tmp_path / "nri.sock", plugin, Cgroups())

    async def story() -> None:
        ways = Ways()
        async with background(node.new_agent(ways).loop.run()):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await ways.until(Way.CGROUP)
                with FakeRuntime(tmp_path / "nri.sock") as runtime:
                    await asyncio.to_thread(runtime.plugin)
                    await ways.until(Way.NRI)
                await ways.until(Way.CGROUP)

    node.runner.run(story())


async def test_search_for_large_environments_is_rate_limited() -> None:
    """The search runs once an hour, however often listing fails, and is retried within 30 s if it failed."""
    asked = 0
    large = LargeEnvironment("u", "team", "web", "main", 2**20)

    async def find() -> tuple[LargeEnvironment, ...] | None:
        nonlocal asked
        asked += 1
        return None if asked == 1 else (large,)

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
