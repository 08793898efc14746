"""Requests for devices to the kubelet: their times, and the answers that count."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from agent.errors import Refused, TooLarge, Unavailable
from agent.kubelet.call_limit import BURST, CALLS_PER_SECOND
from agent.kubelet.call_results import LONGEST_SECONDS, OLD_SECONDS, REASON_SECONDS
from agent.kubelet.devices import (
    LATE,
    LATE_SECONDS,
    TOO_MANY,
    KubeletDevices,
)
from agent.metrics import Metrics
from pinning.contract import DevicePolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import (
    DEVICES_NOT_NAMED,
    DeviceTimes,
    Owner,
    SeenPod,
)
from tests.agent import virtual_time
from tests.agent.kubelet.device_scene import observed, seen, stage
from tests.agent.kubelet.fake_list import FakeList

pytestmark = pytest.mark.virtual_time

GPU = "nvidia.com/gpu"
NEAR = Device(GPU, CPUSet([1]))


async def test_answer_with_devices_counts_at_once() -> None:
    """An answer with devices counts at once, requests a pass, and ends the calls."""
    async with stage() as scene:
        scene.lists(NEAR)
        scene.see(seen("u"))
        assert list(scene.keeper.unknown()) == [Owner("u", "c")]
        await scene.calls(1)
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.1)
        assert scene.known == {Owner("u", "c"): (NEAR,)}
        assert (scene.keeper.unknown(), scene.passes, len(scene.kubelet.at)) == ({}, 1, 1)


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(seen("u", devices=False), id="names no device"),
        pytest.param(seen("u", claims=False), id="claims no CPUs"),
    ],
)
async def test_kubelet_is_not_asked_for_other_pods(pod: SeenPod) -> None:
    """The kubelet is asked only for pods that have devices and claim CPUs."""
    async with stage() as scene:
        scene.see(pod, live=["u"])
        await asyncio.sleep(0.05)
        assert scene.kubelet.at == []


@pytest.mark.parametrize(
    ("node", "word", "is_asked"),
    [
        pytest.param("prefer", "", True, id="the node says so"),
        pytest.param("none", "", False, id="the node says no"),
        pytest.param("prefer", "none", False, id="the pod says no"),
        pytest.param("none", "prefer", True, id="the pod says so"),
    ],
)
async def test_device_policy_enables_calls_to_the_kubelet(node: str, word: str, is_asked: bool) -> None:
    """The pod's policy overrides the node's, and an edit to `none` ends the calls."""
    async with stage(NodeConfig(device_policy=DevicePolicy(node))) as scene:
        scene.see(seen("u", word=word))
        assert set(scene.keeper.unknown()) == ({Owner("u", "c")} if is_asked else set())
        scene.see(seen("u", word="none"))
        assert scene.keeper.unknown() == {}


async def test_pool_of_a_pod_needs_the_kubelets_answer() -> None:
    """The pool of a pod with a budget is placed beside devices, so the kubelet is asked for them."""
    limits = {"cpu": 4}
    pod = SeenPod.of(
        {
            "metadata": {
                "uid": "u",
                "name": "a",
                "namespace": "ns",
                "annotations": {"cpu-manager.corepin.io/pod": "exclusive"},
            },
            "spec": {  # type: ignore[typeddict-item]
                "resources": {"limits": limits, "requests": limits},
                "containers": [{"name": "c", "resources": {"limits": {GPU: 1}}}],
            },
        }
    )
    async with stage() as scene:
        scene.lists(NEAR)
        scene.see(pod)
        assert set(scene.keeper.unknown()) == {Owner("u", "c")}
        await scene.calls(1)
        assert scene.known == {Owner("u", "c"): (NEAR,)}


@pytest.mark.parametrize(("irq", "is_asked"), [("devices", True), ("eth0", False)])
async def test_interrupts_of_devices_need_the_kubelets_answer(irq: str, is_asked: bool) -> None:
    """The kubelet is asked for devices whose interrupts follow the container, also with `device-policy: none`."""
    async with stage(NodeConfig(device_policy=DevicePolicy.NONE)) as scene:
        scene.see(seen("u", irq=irq))
        assert set(scene.keeper.unknown()) == ({Owner("u", "c")} if is_asked else set())


async def test_answer_without_devices_counts_after_the_sandbox_started() -> None:
    """A pod may be listed before its devices, so an empty answer counts only after the sandbox started."""
    async with stage() as scene:
        await scene.asked(seen("u"), calls=2)
        assert scene.known == {}
        scene.keeper.sandbox_started("u")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known == {Owner("u", "c"): ()}


async def test_answer_requested_before_the_sandbox_does_not_count() -> None:
    """Without NRI the first container shows the sandbox, and a call in flight at that time is too early."""
    async with stage() as scene:
        known: list[dict[Owner, tuple[Device, ...]]] = []  # when each call begins

        def show() -> None:
            known.append(scene.known)
            scene.see(seen("u"), live=["u"])

        scene.lists()
        scene.kubelet.hook = show
        scene.see(seen("u"))
        await scene.calls(2)
        assert known[:2] == [{}, {}]
        assert scene.known == {Owner("u", "c"): ()}


async def test_answer_without_the_pod_changes_nothing() -> None:
    """A restarted kubelet lists no pods at first: known devices are kept, and calls continue."""
    async with stage() as scene:
        await scene.asked(seen("u"), NEAR, live=["u"])
        scene.kubelet.pods = {}
        both = {"u": ("ns", "a"), "v": ("ns", "b")}
        scene.see(seen("u"), seen("v", "b"), live=["u", "v"], names=both)
        await scene.calls(3)
        assert scene.known == {Owner("u", "c"): (NEAR,)}
        assert list(scene.keeper.unknown()) == [Owner("v", "c")]


@pytest.mark.parametrize("before", ["API", "runtime"])
async def test_recreated_pod_does_not_get_stale_devices(before: str) -> None:
    """For a pod with a reused name only an answer after the start of the new sandbox counts."""
    async with stage() as scene:
        scene.lists(NEAR)
        if before == "runtime":
            scene.see(names={"old": ("ns", "a")})
        else:
            scene.see(seen("old"))
            await scene.calls(1)
        calls = len(scene.kubelet.at)
        scene.see(seen("new"))
        await scene.calls(calls + 2)
        assert Owner("new", "c") not in scene.known
        scene.lists(Device(GPU, CPUSet([0])))
        scene.keeper.sandbox_started("new")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known[Owner("new", "c")] == (Device(GPU, CPUSet([0])),)


async def test_duplicate_entries_of_a_pod_do_not_count() -> None:
    """An old kubelet lists a finished pod beside a new one of the same name."""
    async with stage() as scene:
        scene.kubelet.pods[("ns", "a")] = [{"c": (NEAR,)}, {"c": ()}]
        scene.see(seen("u"), live=["u"])
        await scene.calls(2)
        assert scene.known == {}


async def test_devices_are_kept_until_the_pod_is_deleted() -> None:
    """Devices of a pod without live containers are kept until the API deletes the pod."""
    async with stage() as scene:
        await scene.asked(seen("u"), NEAR, live=["u"])
        scene.see(seen("u"))
        assert scene.known == {Owner("u", "c"): (NEAR,)}
        scene.see()
        assert scene.known == {}


async def test_times_of_the_call_and_of_the_answer_are_kept_with_the_devices() -> None:
    """The times at which the agent began to ask and knew the devices are kept until the pod is deleted."""
    clock = SetClock()
    kubelet = FakeList()
    keeper = KubeletDevices(kubelet, Metrics(), clock=clock, time_of_day=lambda: f"{clock.now:g}")  # type: ignore[arg-type]
    clock.now = 3
    keeper.follow(observed(seen("u")), {})
    await keeper._ask()
    assert keeper.times == {}
    clock.now = 5
    kubelet.pods[("ns", "a")] = [{"c": (NEAR,)}]
    await keeper._ask()
    assert keeper.times == {"u": DeviceTimes("3", "5")}
    keeper.follow(observed(), {})
    assert keeper.times == {}


async def test_devices_of_a_checkpoint_are_not_requested_again() -> None:
    """Devices known from the checkpoint cause no call."""
    async with stage() as scene:
        scene.keeper.resume({Owner("u", "c"): (NEAR,), Owner("gone", "c"): ()})
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.05)
        assert (scene.known, scene.kubelet.at) == ({Owner("u", "c"): (NEAR,)}, [])


async def test_a_container_with_too_many_devices_stays_unknown(caplog: pytest.LogCaptureFixture) -> None:
    """The container's devices stay unknown with a reason and a log message, and no more calls."""
    async with stage() as scene:
        scene.kubelet.pods[("ns", "a")] = [{"c": None}]
        scene.see(seen("u"))
        await scene.calls(1)
        assert (scene.known, scene.keeper.unknown()) == ({}, {Owner("u", "c"): TOO_MANY})
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.05)
        assert len(scene.kubelet.at) == 1
        scene.see()
        assert scene.keeper.unknown() == {}
    assert "too many devices" in caplog.text


@pytest.mark.parametrize(
    ("error", "result", "reason"),
    [
        pytest.param(Unavailable("silent"), "later", "does not name devices: silent", id="silent"),
        pytest.param(Refused("no"), "refused", "does not name devices: no", id="refused"),
        pytest.param(TooLarge("5 MiB"), "too_large", "list of devices exceeds 4 MiB", id="too large"),
    ],
)
async def test_failed_call_is_retried(
    error: Exception, result: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reason is logged once and counted; the first answer requests a pass."""
    async with stage() as scene:
        scene.kubelet.error = error
        scene.see(seen("u"))
        await scene.calls(3)
        assert reason in scene.keeper.unknown()[Owner("u", "c")]
        assert scene.passes == 1
        scene.kubelet.error = None
        scene.lists(NEAR)
        await scene.calls(len(scene.kubelet.at) + 1)
        assert (scene.known, scene.passes) == ({Owner("u", "c"): (NEAR,)}, 2)
    count = scene.metrics.registry.get_sample_value(
        "corepin_agent_podresources_calls_total", {"result": result}
    )
    assert count == len(scene.kubelet.at) - 1
    assert caplog.text.count("devices not known") == 1


async def test_calls_and_waits_are_measured() -> None:
    """Each call is in the histogram of calls, and each pod once in that of the time until its devices were known."""
    async with stage() as scene:
        scene.see(seen("u"))
        await scene.calls(3)
        scene.lists(NEAR)
        await scene.calls(4)
    value = scene.metrics.registry.get_sample_value
    assert value("corepin_agent_podresources_seconds_count") == 4
    assert value("corepin_agent_devices_unknown_seconds_count") == 1
    waited = value("corepin_agent_devices_unknown_seconds_sum")
    assert waited is not None
    assert 0.1 < waited < 0.3  # after 25, 75 and 175 ms


async def test_alternating_errors_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each error is logged once until an answer succeeds, and again afterwards."""
    async with stage() as scene:
        scene.see(seen("u"))
        for error in (Unavailable("slow"), Refused("junk"), Unavailable("slow"), None, Refused("junk")):
            scene.kubelet.error = error
            await scene.calls(len(scene.kubelet.at) + 1)
        assert "junk" in scene.keeper.unknown()[Owner("u", "c")]
    reasons = [record.__dict__["facts"]["reason"].rpartition(" ")[2] for record in caplog.records]
    assert reasons == ["slow", "junk", "junk"]


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


async def test_passes_for_alternating_errors_are_rate_limited() -> None:
    """The first error requests a pass, and later ones at most one in ten seconds."""
    clock, kubelet, passes = SetClock(), FakeList(), list[int]()
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


async def test_missing_devices_are_reported_after_five_seconds() -> None:
    """After five seconds the reason changes once, and requests a pass."""
    clock, owner = SetClock(), Owner("u", "c")
    keeper = KubeletDevices(FakeList(), Metrics(), clock=clock)  # type: ignore[arg-type]
    keeper.follow(observed(seen("u")), {})
    reasons, passes = [], []
    for second in (0.0, LATE_SECONDS - 1, LATE_SECONDS, LATE_SECONDS + 1):
        clock.now = second
        passes.append(await keeper._ask())
        reasons.append(keeper.unknown()[owner])
    assert reasons == [DEVICES_NOT_NAMED, DEVICES_NOT_NAMED, LATE, LATE]
    assert passes == [False, False, True, False]


async def test_devices_of_every_late_pod_are_reported() -> None:
    """A second pod that waits for five seconds requests a pass too, ten seconds after the first one's at the earliest."""
    clock = SetClock()
    keeper = KubeletDevices(FakeList(), Metrics(), clock=clock)  # type: ignore[arg-type]
    first, second = seen("u"), seen("v", "b")
    passes = []
    for clock.now, pods in (
        (0.0, (first,)),
        (5.0, (first, second)),
        (10.0, (first, second)),
        (15.0, (second,)),
    ):
        keeper.follow(observed(*pods), {})
        passes.append(await keeper._ask())
    assert passes == [False, True, False, True]


async def test_calls_for_a_pod_that_waits_for_minutes_are_rare() -> None:
    """After three minutes the kubelet is asked every 30 seconds, again at once at the sandbox, and each second if it fails."""
    async with stage(seconds=3600) as scene:
        scene.see(seen("u"))
        await asyncio.sleep(OLD_SECONDS)
        before = len(scene.kubelet.at)
        assert OLD_SECONDS <= before < OLD_SECONDS + 10
        await asyncio.sleep(1000)
        assert 1000 // LONGEST_SECONDS <= len(scene.kubelet.at) - before <= 40
        scene.kubelet.error, before = Unavailable("silent"), len(scene.kubelet.at)
        await asyncio.sleep(LONGEST_SECONDS + 60)
        assert 60 <= len(scene.kubelet.at) - before <= LONGEST_SECONDS + 70
        scene.kubelet.error = None
        await asyncio.sleep(100)
        scene.lists(NEAR)
        scene.keeper.sandbox_started("u")
        await asyncio.sleep(0.1)
        assert scene.known == {Owner("u", "c"): (NEAR,)}


async def test_sandbox_in_the_runtimes_list_is_followed_by_a_call() -> None:
    """Without NRI a pass shows the sandbox of a pod that has waited for minutes, and the kubelet is asked at once."""
    async with stage(seconds=3600) as scene:
        scene.see(seen("u"))
        await asyncio.sleep(OLD_SECONDS + 2 * LONGEST_SECONDS)
        scene.lists(NEAR)
        scene.see(seen("u"), live=["u"])
        await asyncio.sleep(0.1)
        assert scene.known == {Owner("u", "c"): (NEAR,)}


async def test_calls_are_rate_limited() -> None:
    """With new pods all the time there is a burst, then five calls a second on average."""
    async with stage() as scene:
        pods: list[SeenPod] = []
        while virtual_time.now() < 2:
            pods.append(seen(f"u{len(pods)}", f"p{len(pods)}"))
            scene.see(*pods)
            await asyncio.sleep(0.01)
    at = scene.kubelet.at
    assert 5 <= len(at) <= BURST + 2 * CALLS_PER_SECOND + 1
    assert all(sum(start <= other < start + 1 for other in at) <= 10 for start in at)
