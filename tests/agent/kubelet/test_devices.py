"""When the kubelet is asked for devices, and which of its answers count."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest

from agent.errors import Refused, TooLarge, Unavailable
from agent.kubelet.devices import (
    BURST,
    CALLS_PER_SECOND,
    LATE,
    LATE_SECONDS,
    REASON_SECONDS,
    TOO_MANY,
    KubeletDevices,
    Name,
    Named,
)
from agent.metrics import Metrics
from pinning.contract import DevicePolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.observed import (
    DEVICES_NOT_NAMED,
    Observed,
    Owner,
    SeenContainer,
    SeenPod,
    State,
)
from tests.pinning.machines import FLAT

GPU = "nvidia.com/gpu"
NEAR = Device(GPU, CPUSet([1]))


def seen(uid: str, name: str = "a", *, devices: bool = True, claims: bool = True, word: str = "") -> SeenPod:
    """Return a pod of the API, with a device policy if there is a word for it."""
    limits: dict[str, Any] = {"cpu": 2, **({GPU: 1} if devices else {})}
    annotations = {"cpu-manager.corepin.io/pod": "exclusive"} if claims else {}
    annotations |= {"device-policy.corepin.io/pod": word} if word else {}
    return SeenPod.of(
        {
            "metadata": {"uid": uid, "name": name, "namespace": "ns", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]},
        }
    )


def observed(*pods: SeenPod, live: Iterable[str] = ()) -> Observed:
    """Return a node with these pods; of those in `live` a container runs."""
    containers = [SeenContainer(uid, Owner(uid, "c"), State.RUNNING, EMPTY) for uid in live]
    return Observed(FLAT, FLAT.online, pods, tuple(containers))


class Told:
    """A kubelet that answers what a test says, and counts how often it is asked."""

    def __init__(self) -> None:
        self.pods: dict[Name, list[Named]] = {}
        self.error: Exception | None = None
        self.at: list[float] = []
        self.hook: Callable[[], None] = lambda: None

    async def ask(self, pods: Iterable[Name]) -> dict[Name, list[Named]]:
        """Answer."""
        self.at.append(perf_counter())
        self.hook()
        await asyncio.sleep(0)
        if self.error:
            raise self.error
        return {name: self.pods[name] for name in pods if name in self.pods}


class Scene:
    """A keeper with its kubelet; `passes` counts the passes that it asked for."""

    def __init__(self, config: NodeConfig = DEFAULT) -> None:
        self.kubelet, self.metrics, self.passes = Told(), Metrics(), 0
        self.keeper = KubeletDevices(self.kubelet, self.metrics, config)  # type: ignore[arg-type]

    def request_pass(self) -> None:
        """Count."""
        self.passes += 1

    def tell(self, *devices: Device, name: str = "a") -> None:
        """Let the kubelet name these devices of a pod's container."""
        self.kubelet.pods[("ns", name)] = [{"c": devices}]

    def see(self, *pods: SeenPod, live: Iterable[str] = (), names: dict[str, Name] | None = None) -> None:
        """Do a pass that sees these pods, and containers of those in `live`."""
        self.keeper.follow(observed(*pods, live=live), names or dict.fromkeys(live, ("ns", "a")))

    async def calls(self, number: int) -> None:
        """Wait until the kubelet was asked so often."""
        while len(self.kubelet.at) < number:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)

    @property
    def known(self) -> dict[Owner, tuple[Device, ...]]:
        """The devices that are known."""
        return dict(self.keeper.known())


def stage(scenario: Callable[[Scene], Awaitable[None]], config: NodeConfig = DEFAULT) -> Scene:
    """Run a scenario while the keeper works."""
    scene = Scene(config)

    async def run() -> None:
        work = asyncio.create_task(scene.keeper.run(scene.request_pass))
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            await scenario(scene)
        assert not work.done()
        work.cancel()

    asyncio.run(run())
    return scene


def test_devices_are_known_as_soon_as_the_kubelet_names_them() -> None:
    """An answer with devices counts at once, asks for a pass, and is the last call."""

    async def scenario(scene: Scene) -> None:
        scene.tell(NEAR)
        scene.see(seen("u"))
        assert list(scene.keeper.unknown()) == [Owner("u", "c")]
        await scene.calls(1)
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.1)
        assert scene.known == {Owner("u", "c"): (NEAR,)}
        assert (scene.keeper.unknown(), scene.passes, len(scene.kubelet.at)) == ({}, 1, 1)

    stage(scenario)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(seen("u", devices=False), id="names no device"),
        pytest.param(seen("u", claims=False), id="claims no CPUs"),
    ],
)
def test_who_needs_no_answer_makes_no_call(pod: SeenPod) -> None:
    """The kubelet is asked for pods that have devices and claim CPUs, and for no others."""

    async def scenario(scene: Scene) -> None:
        scene.see(pod, live=["u"])
        await asyncio.sleep(0.05)
        assert scene.kubelet.at == []

    stage(scenario)


@pytest.mark.parametrize(
    ("node", "word", "is_asked"),
    [
        pytest.param("prefer", "", True, id="the node says so"),
        pytest.param("none", "", False, id="the node says no"),
        pytest.param("prefer", "none", False, id="the pod says no"),
        pytest.param("none", "prefer", True, id="the pod says so"),
    ],
)
def test_the_device_policy_decides_whether_the_kubelet_is_asked(node: str, word: str, is_asked: bool) -> None:
    """The pod's word overrules the node's; a pod whose word is edited to `none` is not asked for any more."""

    async def scenario(scene: Scene) -> None:
        scene.see(seen("u", word=word))
        assert set(scene.keeper.unknown()) == ({Owner("u", "c")} if is_asked else set())
        scene.see(seen("u", word="none"))
        assert scene.keeper.unknown() == {}

    stage(scenario, NodeConfig(device_policy=DevicePolicy(node)))


def test_an_answer_without_devices_counts_after_the_sandbox() -> None:
    """A pod is listed without its devices for a moment; what is asked for after its sandbox was seen is final."""

    async def scenario(scene: Scene) -> None:
        scene.tell()
        scene.see(seen("u"))
        await scene.calls(2)
        assert scene.known == {}
        scene.keeper.sandbox_started("u")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known == {Owner("u", "c"): ()}

    stage(scenario)


def test_an_answer_asked_before_the_sandbox_was_seen_does_not_count() -> None:
    """Without NRI the first container that a pass sees shows the sandbox; a call on its way then is too early."""

    async def scenario(scene: Scene) -> None:
        scene.tell()
        scene.kubelet.hook = lambda: scene.see(seen("u"), live=["u"])
        scene.see(seen("u"))
        await scene.calls(1)
        assert scene.known == {}
        await scene.calls(2)
        assert scene.known == {Owner("u", "c"): ()}

    stage(scenario)


def test_an_answer_that_lacks_a_pod_says_nothing() -> None:
    """A kubelet that has just started lists no pod, though they run: what is known stays, who waits waits on."""

    async def scenario(scene: Scene) -> None:
        scene.tell(NEAR)
        scene.see(seen("u"), live=["u"])
        await scene.calls(1)
        scene.kubelet.pods = {}
        both = {"u": ("ns", "a"), "v": ("ns", "b")}
        scene.see(seen("u"), seen("v", "b"), live=["u", "v"], names=both)
        await scene.calls(3)
        assert scene.known == {Owner("u", "c"): (NEAR,)}
        assert list(scene.keeper.unknown()) == [Owner("v", "c")]

    stage(scenario)


@pytest.mark.parametrize("before", ["API", "runtime", "checkpoint"])
def test_a_remade_pod_never_gets_the_devices_of_the_one_before(before: str) -> None:
    """While the kubelet may still name the old pod of that name, only an answer after the new sandbox counts."""

    async def scenario(scene: Scene) -> None:
        scene.tell(NEAR)
        if before == "runtime":
            scene.see(names={"old": ("ns", "a")})
        else:
            scene.see(seen("old"))
            await scene.calls(1)
        calls = len(scene.kubelet.at)
        scene.see(seen("new"))
        await scene.calls(calls + 2)
        assert Owner("new", "c") not in scene.known
        scene.tell(Device(GPU, CPUSet([0])))
        scene.keeper.sandbox_started("new")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known[Owner("new", "c")] == (Device(GPU, CPUSet([0])),)

    stage(scenario)


def test_two_entries_of_one_name_count_for_none() -> None:
    """An old kubelet lists a finished pod beside the new one of its name."""

    async def scenario(scene: Scene) -> None:
        scene.kubelet.pods[("ns", "a")] = [{"c": (NEAR,)}, {"c": ()}]
        scene.see(seen("u"), live=["u"])
        await scene.calls(2)
        assert scene.known == {}

    stage(scenario)


def test_devices_are_kept_until_the_pod_is_gone() -> None:
    """A pod without live containers keeps its devices while the API has it; they are forgotten with it."""

    async def scenario(scene: Scene) -> None:
        scene.tell(NEAR)
        scene.see(seen("u"), live=["u"])
        await scene.calls(1)
        scene.see(seen("u"))
        assert scene.known == {Owner("u", "c"): (NEAR,)}
        scene.see()
        assert scene.known == {}

    stage(scenario)


def test_a_checkpoint_is_gone_on_from() -> None:
    """What an earlier agent was told is not asked for again."""

    async def scenario(scene: Scene) -> None:
        scene.keeper.resume({Owner("u", "c"): (NEAR,), Owner("gone", "c"): ()})
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.05)
        assert (scene.known, scene.kubelet.at) == ({Owner("u", "c"): (NEAR,)}, [])

    stage(scenario)


def test_a_container_with_too_many_devices_stays_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """It is not asked for again, the log says so, and so does the reason, until the pod is gone."""

    async def scenario(scene: Scene) -> None:
        scene.kubelet.pods[("ns", "a")] = [{"c": None}]
        scene.see(seen("u"))
        await scene.calls(1)
        assert (scene.known, scene.keeper.unknown()) == ({}, {Owner("u", "c"): TOO_MANY})
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.05)
        assert len(scene.kubelet.at) == 1
        scene.see()
        assert scene.keeper.unknown() == {}

    stage(scenario)
    assert "too many devices" in caplog.text


@pytest.mark.parametrize(
    ("error", "result", "reason"),
    [
        pytest.param(Unavailable("silent"), "later", "does not name devices: silent", id="silent"),
        pytest.param(Refused("no"), "refused", "does not name devices: no", id="refused"),
        pytest.param(TooLarge("5 MiB"), "too_large", "list of devices exceeds 4 MiB", id="too large"),
    ],
)
def test_a_kubelet_that_does_not_answer_is_asked_again(
    error: Exception, result: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is known, logged once and counted; as soon as it answers a pass is asked for."""

    async def scenario(scene: Scene) -> None:
        scene.kubelet.error = error
        scene.see(seen("u"))
        await scene.calls(3)
        assert reason in scene.keeper.unknown()[Owner("u", "c")]
        assert scene.passes == 1
        scene.kubelet.error = None
        scene.tell(NEAR)
        await scene.calls(4)
        assert (scene.known, scene.passes) == ({Owner("u", "c"): (NEAR,)}, 2)

    scene = stage(scenario)
    count = scene.metrics.registry.get_sample_value(
        "corepin_agent_podresources_calls_total", {"result": result}
    )
    assert count == 3
    assert caplog.text.count("devices not known") == 1


def test_causes_that_alternate_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """The last cause is the reason; each is logged once until an answer comes, and again after it."""

    async def scenario(scene: Scene) -> None:
        scene.see(seen("u"))
        for error in (Unavailable("slow"), Refused("junk"), Unavailable("slow"), None, Refused("junk")):
            scene.kubelet.error = error
            await scene.calls(len(scene.kubelet.at) + 1)
        assert "junk" in scene.keeper.unknown()[Owner("u", "c")]

    stage(scenario)
    reasons = [record.__dict__["facts"]["reason"].rpartition(" ")[2] for record in caplog.records]
    assert reasons == ["slow", "junk", "junk"]


class SetClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def test_causes_that_alternate_cause_no_passes_in_a_loop() -> None:
    """The first reason asks for a pass, others at most every ten seconds, whatever the kubelet answers in turn."""

    async def run() -> None:
        clock, kubelet, passes = SetClock(), Told(), list[int]()
        keeper = KubeletDevices(kubelet, Metrics(), clock=clock)  # type: ignore[arg-type]
        keeper.follow(observed(seen("u")), {})
        errors = [Unavailable("slow"), Refused("junk"), TooLarge("12 MB"), None]
        for second in range(60):
            clock.now, kubelet.error = float(second), errors[second % 4]
            if await keeper._ask():
                passes.append(second)
        assert passes[0] == 0
        assert all(later - earlier >= REASON_SECONDS for earlier, later in pairwise(passes))
        kubelet.error = None
        kubelet.pods[("ns", "a")] = [{"c": (NEAR,)}]
        assert await keeper._ask()

    asyncio.run(run())


def test_a_kubelet_that_answers_without_the_devices_is_reported_late() -> None:
    """For five seconds that is usual; then the reason changes, once, and a pass shows it."""

    async def run() -> None:
        clock, owner = SetClock(), Owner("u", "c")
        keeper = KubeletDevices(Told(), Metrics(), clock=clock)  # type: ignore[arg-type]
        keeper.follow(observed(seen("u")), {})
        reasons, passes = [], []
        for second in (0.0, LATE_SECONDS - 1, LATE_SECONDS, LATE_SECONDS + 1):
            clock.now = second
            passes.append(await keeper._ask())
            reasons.append(keeper.unknown()[owner])
        assert reasons == [DEVICES_NOT_NAMED, DEVICES_NOT_NAMED, LATE, LATE]
        assert passes == [False, False, True, False]

    asyncio.run(run())


def test_calls_are_limited_however_many_pods_come() -> None:
    """New pods all the time: a burst, and then five calls a second in the mean, one at a time."""

    async def scenario(scene: Scene) -> None:
        pods: list[SeenPod] = []
        start = perf_counter()
        while perf_counter() < start + 2:
            pods.append(seen(f"u{len(pods)}", f"p{len(pods)}"))
            scene.see(*pods)
            await asyncio.sleep(0.01)

    scene = stage(scenario)
    at = scene.kubelet.at
    assert 5 <= len(at) <= BURST + 2 * CALLS_PER_SECOND + 1
    assert all(sum(start <= other < start + 1 for other in at) <= 10 for start in at)
