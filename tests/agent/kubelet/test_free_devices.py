"""The devices of a node that no container has, from the kubelet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from agent.errors import AgentError, Refused, TooLarge, Unavailable
from agent.kubelet.call_limit import BURST, CALLS_PER_SECOND, CallLimit
from agent.kubelet.device_answers import ANSWER_BYTES, LONGEST_REASON
from agent.kubelet.device_list import DeviceList
from agent.kubelet.devices import KubeletDevices
from agent.kubelet.free_devices import (
    MOST_DEVICES,
    MOST_KINDS,
    STALE_SECONDS,
    FreeDeviceList,
    FreeDeviceWatch,
    free_kinds,
)
from agent.kubelet.podresources_pb2 import (
    AllocatableResourcesResponse,
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    NUMANode,
    TopologyInfo,
)
from agent.kubelet.podresources_pb2 import PodResources as Pod
from agent.metrics import Metrics
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import DEVICES_NOT_NAMED, Observed, Owner, SeenPod
from tests.agent import virtual_time
from tests.agent.kubelet.fake_kubelet import GPU, NIC, FakeKubelet, entry, listed
from tests.agent.states import MACHINE, bound
from tests.environments.waiting import background
from tests.pinning.machines import FLAT
from tests.pods import container

if TYPE_CHECKING:
    from pinning.machine.near_rooms import Kinds


ONE: Kinds = {GPU: {CPUSet([1]): 1}}
OTHER: Kinds = {GPU: {CPUSet([0]): 1}}


def observed(*names: str, phase: str = "Running", gpus: int = 1) -> Observed:
    """Return an observation of pods with GPUs and no CPUs of their own."""
    pods = [bound(name, container("main", {"cpu": 1, **({GPU: gpus} if gpus else {})})) for name in names]
    shown = ({**pod, "status": {"phase": phase}} for pod in pods)
    seen = tuple(SeenPod.of(pod, name) for name, pod in zip(names, shown, strict=True))  # type: ignore[arg-type]
    return Observed(MACHINE, MACHINE.online, seen)


class FakeFreeDevices:
    """A kubelet whose answers the test chooses; each call takes a minute of the fake clock."""

    def __init__(self) -> None:
        self.kinds: Kinds = ONE
        self.error: AgentError | None = None
        self.seconds = 60.0  # seconds by which each call advances the fake clock
        self.now = 1000.0
        self.calls = 0
        self.called = asyncio.Event()

    async def ask(self) -> Kinds:
        """Return the free devices, or raise the error."""
        self.now += self.seconds
        self.calls += 1
        self.called.set()
        if self.error:
            raise self.error
        return self.kinds


class Scene:
    """The watch with its kubelet; `passes` counts the requested passes."""

    def __init__(self) -> None:
        self.kubelet, self.passes = FakeFreeDevices(), 0
        clock = lambda: self.kubelet.now  # noqa: E731 - a name for what is passed on
        self.limit = CallLimit(clock)
        self.watch = FreeDeviceWatch(self.kubelet, Metrics(), self.limit, clock)  # type: ignore[arg-type]

    def request_pass(self) -> None:
        """Count a requested pass."""
        self.passes += 1

    async def calls(self, number: int) -> None:
        """Wait until the kubelet was asked so many times, and its answer is known."""
        while self.kubelet.calls < number:
            self.kubelet.called.clear()
            await self.kubelet.called.wait()
        for _ in range(3):
            await asyncio.sleep(0)


@asynccontextmanager
async def stage() -> AsyncIterator[Scene]:
    """Run the block beside the watch's task."""
    scene = Scene()
    async with background(scene.watch.run(scene.request_pass)) as work:
        async with asyncio.timeout(30):
            yield scene
        assert not work.done()


async def test_it_asks_when_pods_with_devices_come_and_go() -> None:
    """The kubelet is asked at start and when a pod with devices appears or ends; a changed answer requests a pass."""
    async with stage() as scene:
        assert scene.watch.known() is None
        await scene.calls(1)
        assert (scene.watch.known(), scene.passes) == (ONE, 1)
        for number, seen in enumerate(
            (observed("a"), observed("a", "b"), observed("a", "b", phase="Succeeded"), observed()), 2
        ):
            scene.watch.follow(seen)
            await scene.calls(number)
        assert scene.passes == 1
        scene.kubelet.kinds = OTHER
        scene.watch.follow(observed("c"))
        await scene.calls(6)
        assert (scene.watch.known(), scene.passes) == (OTHER, 2)


def test_other_pods_are_not_asked_for() -> None:
    """Pods without devices, and passes without changes, cause no call to the kubelet."""
    scene = Scene()
    scene.watch.follow(observed("a"))
    assert scene.watch._wake.is_set()
    scene.watch._wake.clear()
    scene.watch.follow(observed("a"))
    assert not scene.watch._wake.is_set()
    devices = observed("a").pods
    plain = observed("b", gpus=0).pods
    scene.watch.follow(Observed(MACHINE, MACHINE.online, (*devices, *plain)))
    assert not scene.watch._wake.is_set()


async def test_it_asks_again_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any change the kubelet is asked at growing intervals, because devices fail and recover."""
    waits: list[float] = []
    timeout = asyncio.timeout

    def shortened(seconds: float) -> asyncio.Timeout:
        waits.append(seconds)
        return timeout(0)

    async with stage() as scene:
        monkeypatch.setattr("agent.kubelet.free_devices.asyncio.timeout", shortened)
        await scene.calls(9)
        monkeypatch.undo()
    assert waits[:8] == [0.25, 0.5, 1, 2, 4, 8, 10, 10]


def test_changes_without_end_are_asked_for_at_a_limited_rate() -> None:
    """Endless changes cause two calls at once and then one a second."""
    scene = Scene()
    starts = []
    now = 0.0
    while now < 10:
        if scene.watch._rounds.take(now):
            starts.append(now)
        now += 0.05
    assert len([at for at in starts if at < 1]) == 2
    assert len(starts) <= 12


async def test_a_round_waits_while_waiting_pods_use_the_calls_of_the_socket() -> None:
    """A round of two calls begins when the limit of the socket, which waiting pods share, allows both."""
    async with stage() as scene:
        scene.limit.bucket.seconds = 0.001
        scene.limit.bucket.spend(scene.kubelet.now, scene.limit.bucket.burst)
        await asyncio.sleep(0)
        assert scene.kubelet.calls == 0
        scene.kubelet.now += 0.0011
        await asyncio.sleep(0.002)
        assert scene.kubelet.calls == 0
        scene.kubelet.now += 0.001
        await scene.calls(1)


async def test_a_silent_kubelet(caplog: pytest.LogCaptureFixture) -> None:
    """The last answer is used for a minute; then nothing is known until the kubelet answers. The log has one line."""
    caplog.set_level(logging.WARNING, "agent.kubelet.free_devices")
    async with stage() as scene:
        scene.kubelet.seconds = STALE_SECONDS / 2 - 1
        await scene.calls(1)
        scene.kubelet.error = Unavailable("later")
        known = []
        for number in range(2, 6):
            scene.watch.follow(observed(str(number)))
            await scene.calls(number)
            known.append(scene.watch.known())
        assert known == [ONE, ONE, None, None]
        scene.kubelet.error = None
        scene.watch.follow(observed())
        await scene.calls(6)
        assert scene.watch.known() == ONE

        assert scene.passes == 3
    assert [record.message for record in caplog.records] == ["free devices not known"]


@pytest.mark.parametrize("error", [Refused("junk"), TooLarge("12 MB")])
async def test_answers_that_cannot_be_read_are_no_devices(error: AgentError) -> None:
    """An answer that cannot be read leaves the free devices unknown and requests no pass."""
    async with stage() as scene:
        scene.kubelet.error = error
        scene.watch.follow(observed("a"))
        await scene.calls(2)
    assert (scene.watch.known(), scene.passes) == (None, 0)


async def test_it_runs_beside_the_devices_of_waiting_pods() -> None:
    """The kubelet's devices include the free ones if the watch for them is enabled, otherwise None."""
    scene = Scene()
    silent = DeviceList(Path("/nowhere"))
    assert KubeletDevices(silent, Metrics()).free() is None
    keeper = KubeletDevices(silent, Metrics(), free=scene.watch)
    async with background(keeper.run(scene.request_pass)), asyncio.timeout(30):
        await scene.calls(1)
        keeper.follow(observed("a"), {})
        await scene.calls(2)
        assert keeper.free() == ONE


def test_free_devices_are_counted_by_their_nodes() -> None:
    """Free devices are counted by resource and NUMA nodes; a resource without a free device stays in the result."""
    there = {(GPU, "x"): [1], (GPU, "y"): [1], (GPU, "z"): [0, 1], (GPU, "w"): [], (NIC, "x"): [0]}
    kinds = free_kinds(there, {(GPU, "x"), (NIC, "x"), (NIC, "gone")})
    assert kinds == {GPU: {CPUSet([1]): 1, CPUSet([0, 1]): 1, EMPTY: 1}, NIC: {}}
    with pytest.raises(Refused, match=str(MOST_KINDS)):
        free_kinds({(str(at), "x"): [] for at in range(MOST_KINDS + 1)}, set())


def asked(
    tmp_path: Path, there: list[ContainerDevices], *given: ContainerDevices, error: bool = False
) -> Kinds:
    """Return the free devices that are read from a kubelet with these devices."""

    async def ask() -> Kinds:
        kubelet = FakeKubelet(tmp_path / "k.sock")
        kubelet.allocatable = AllocatableResourcesResponse(devices=there).SerializeToString()
        kubelet.answer = ListPodResourcesResponse(pod_resources=[listed("a", *given)]).SerializeToString()
        kubelet.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit") if error else None
        async with kubelet.serving():
            return await FreeDeviceList(kubelet.socket, timeout_seconds=60).ask()

    return asyncio.run(ask())


def test_allocatable_devices_less_given_ones(tmp_path: Path) -> None:
    """Free devices come from two calls of the kubelet.

    A device of several NUMA nodes may have several entries, and unknown nodes are left out.
    """
    there = [
        entry(GPU, "x", 1),
        entry(GPU, "y", 0),
        entry(GPU, "y", 1),
        entry(NIC, "x", -1, 0),
        entry(NIC, "y"),
    ]
    kinds = asked(tmp_path, there, entry(GPU, "x", 1), entry("other", "x", 1))
    assert kinds == {GPU: {CPUSet([0, 1]): 1}, NIC: {CPUSet([0]): 1, EMPTY: 1}}


def test_the_kubelets_rate_limit_is_not_final(tmp_path: Path) -> None:
    """The kubelet's rate limit is shared by all clients, so a refused call is retried."""
    with pytest.raises(Unavailable, match="rate limit"):
        asked(tmp_path, [], error=True)


def test_bounds(tmp_path: Path) -> None:
    """An answer with too many devices, or of too many bytes, is refused."""
    many = [ContainerDevices(resource_name="r", device_ids=[str(at) for at in range(MOST_DEVICES + 1)])]
    for there, given in ((many, []), ([], many)):
        with pytest.raises(Refused, match=f"more than {MOST_DEVICES} devices"):
            asked(tmp_path, there, *given)
    large = [entry("r" * 250, str(at)) for at in range(ANSWER_BYTES // 250)]
    with pytest.raises(TooLarge):
        asked(tmp_path, large)


def test_ten_thousand_devices_let_the_event_loop_go_on(tmp_path: Path) -> None:
    """While ten thousand devices are read, the event loop runs other tasks."""
    there = [entry(GPU, str(at), at % 2) for at in range(10_000)]
    turns: list[float] = []

    async def ask() -> Kinds:
        kubelet = FakeKubelet(tmp_path / "k.sock")
        kubelet.allocatable = AllocatableResourcesResponse(devices=there).SerializeToString()
        async with kubelet.serving():
            asking = asyncio.create_task(FreeDeviceList(kubelet.socket, timeout_seconds=60).ask())
            while not asking.done():
                turns.append(perf_counter())
                await asyncio.sleep(0)
            return await asking

    assert asyncio.run(ask()) == {GPU: {CPUSet([0]): 5000, CPUSet([1]): 5000}}
    assert len(turns) > 100


GPU = "nvidia.com/gpu"
OWNER = Owner("u", "c")
AMOUNTS: dict[str, Any] = {"cpu": 2, GPU: 1}
POD = SeenPod.of(
    {
        "metadata": {
            "uid": "u",
            "name": "a",
            "namespace": "ns",
            "annotations": {"cpu-manager.corepin.io/pod": "exclusive"},
        },
        "spec": {"containers": [{"name": "c", "resources": {"limits": AMOUNTS, "requests": AMOUNTS}}]},
    }
)
LIMITED = grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(60):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_every_failure_has_its_reason_and_the_next_answer_counts(tmp_path: Path) -> None:
    """After each failure the devices stay unknown with the truncated reason; the next valid answer counts."""
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    agent = KubeletDevices(DeviceList(fake.socket, 0.5), Metrics())
    work = asyncio.create_task(agent.run(lambda: None))
    await asyncio.sleep(0)
    agent.follow(Observed(FLAT, FLAT.online, (POD,)), {})

    async def reads(text: str) -> None:
        await until(lambda: text in agent.unknown()[OWNER])
        assert OWNER not in agent.known()

    await reads("does not name devices")  # there is no socket
    async with fake.serving():
        await reads(DEVICES_NOT_NAMED)  # a starting kubelet gives an empty answer
        fake.answer = b"\x00" * (12 * 2**20)
        await reads("exceeds 4 MiB")
        fake.answer = b"\xff" * 100
        await reads("does not name devices")
        fake.error = LIMITED
        await reads("rejected by rate limit")
        fake.error = LIMITED[0], "x" * 10_000
        await reads("xxx...")
        assert len(agent.unknown()[OWNER]) < 2 * LONGEST_REASON
        fake.error, fake.hangs = None, True
        await reads("no answer in 0.5 s")
        fake.hangs = False
        device = ContainerDevices(
            resource_name=GPU, device_ids=["x"], topology=TopologyInfo(nodes=[NUMANode(ID=1)])
        )
        fake.lists(Pod(namespace="ns", name="a", containers=[ContainerResources(name="c", devices=[device])]))
        await until(lambda: agent.known() == {OWNER: (Device(GPU, CPUSet([1])),)})
        assert not agent.unknown()
    work.cancel()


@pytest.mark.virtual_time
async def test_callers_take_turns_in_order() -> None:
    """A caller of two calls is not overtaken by another one that calls whenever a single call may begin."""
    limit = CallLimit(virtual_time.now)

    async def saturate() -> None:
        while True:
            await limit.turn()

    work = asyncio.create_task(saturate())
    await asyncio.sleep(1)
    asked = virtual_time.now()
    async with asyncio.timeout(60):
        await limit.turn(2)
    work.cancel()
    assert virtual_time.now() - asked <= 4 / CALLS_PER_SECOND


@pytest.mark.virtual_time
async def test_calls_are_limited_after_a_burst() -> None:
    """Five calls begin at once, and then five a second."""
    limit = CallLimit(virtual_time.now)
    for _ in range(BURST + 5):
        await limit.turn()
    assert round(virtual_time.now(), 2) == 5 / CALLS_PER_SECOND
