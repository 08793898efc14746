"""Lists of devices that come late, or those of one plugin before those of another."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

from agent.errors import Refused, TooLarge, Unavailable
from agent.kubelet.device_answers import ANSWER_SECONDS, SLOW, SLOW_SECONDS
from agent.kubelet.device_list import MOST_ENTRIES, ClaimedDevice, Entries, Named
from agent.kubelet.devices import LATE, LATE_FOR_SOME, LATE_SECONDS, TOO_MANY
from agent.kubelet.waiting_pods import Waiting, merged
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import DEVICES_NOT_NAMED, MORE_MAY_FOLLOW, Owner, SeenPod
from tests.agent.kubelet.device_scene import Scene, observed, seen, stage
from tests.agent.kubelet.fake_kubelet import GPU

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.virtual_time


NIC, DONGLE = "example.com/nic", "example.com/dongle"
FIRST, SECOND = Device(GPU, CPUSet([1])), Device(NIC, CPUSet([0]))
OWNER, OTHER = Owner("u", "c"), Owner("u", "d")
PREPARED = ClaimedDevice("gpu", "gpu.example.com", "pool", "gpu-0")


def pod(*containers: dict[str, Any], init: dict[str, Any] | None = None) -> SeenPod:
    """Return a pod whose containers, c and d, have these devices in their limits."""

    def document(name: str, devices: dict[str, Any]) -> dict[str, Any]:
        limits = {"cpu": 2, **devices}
        return {"name": name, "resources": {"limits": limits, "requests": limits}}

    spec = {"containers": [document(*each) for each in zip("cd", containers, strict=False)]}
    spec |= {"initContainers": [document("i", init)]} if init else {}
    annotations = {"cpu-manager.corepin.io/pod": "exclusive"}
    metadata = {"uid": "u", "name": "a", "namespace": "ns", "annotations": annotations}
    return SeenPod.of({"metadata": metadata, "spec": spec})  # type: ignore[typeddict-item]


BOTH = pod({GPU: 1, NIC: 1})


async def test_first_plugins_devices_count_and_more_may_follow() -> None:
    """The container is placed beside the first plugin's device, and the kubelet is asked until it lists the second."""
    async with stage() as scene:
        await scene.asked(BOTH, FIRST, calls=2)
        assert (scene.known, scene.keeper.unknown()) == ({OWNER: (FIRST,)}, {OWNER: MORE_MAY_FOLLOW})
        assert scene.passes == 1
        scene.lists(SECOND, FIRST)
        await scene.calls(len(scene.kubelet.at) + 1)
        assert (scene.known, scene.keeper.unknown()) == ({OWNER: (SECOND, FIRST)}, {})
        assert scene.passes == 2
        calls = len(scene.kubelet.at)
        scene.see(BOTH, live=["u"])
        await asyncio.sleep(0.1)
        assert len(scene.kubelet.at) == calls


async def test_answer_after_the_sandbox_is_final() -> None:
    """The answer after the sandbox started is final, though a resource without a device plugin is missing in it."""
    async with stage() as scene:
        await scene.asked(BOTH, FIRST)
        assert scene.keeper.unknown() == {OWNER: MORE_MAY_FOLLOW}
        scene.keeper.sandbox_started("u")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert (scene.known, scene.keeper.unknown(), scene.passes) == ({OWNER: (FIRST,)}, {}, 2)


async def test_late_sandbox_is_no_failure_of_the_kubelet() -> None:
    """After five seconds without a sandbox the reason names it, in one pass; a failed call has another reason."""
    async with stage() as scene:
        scene.lists(FIRST)
        scene.see(BOTH)
        await asyncio.sleep(2 * LATE_SECONDS)
        assert scene.keeper.unknown() == {OWNER: LATE_FOR_SOME}
        assert scene.passes == 2
        scene.kubelet.error = Unavailable("silent")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert "silent" in scene.keeper.unknown()[OWNER]


async def test_restarted_agent_asks_again() -> None:
    """A restarted agent asks for the devices of a container whose answer may have been incomplete."""
    async with stage() as scene:
        scene.lists(FIRST, SECOND)
        scene.keeper.resume({})
        scene.see(BOTH, live=["u"])
        await scene.calls(1)
        assert scene.known == {OWNER: (FIRST, SECOND)}


async def test_partial_devices_of_a_checkpoint_are_asked_for_again() -> None:
    """An earlier agent saved the first plugin's devices as all; while no container of the pod runs, more may follow."""
    async with stage() as scene:
        scene.keeper.resume({OWNER: (FIRST,)})
        scene.lists(FIRST)
        scene.see(BOTH)
        assert (scene.known, scene.keeper.unknown()) == ({OWNER: (FIRST,)}, {OWNER: MORE_MAY_FOLLOW})
        scene.lists(FIRST, SECOND)
        await scene.calls(1)
        assert (scene.known, scene.keeper.unknown()) == ({OWNER: (FIRST, SECOND)}, {})
        assert scene.passes == 1


@pytest.mark.parametrize(
    ("saved", "live"),
    [
        pytest.param((FIRST, SECOND), (), id="a device of each resource"),
        pytest.param((FIRST,), ("u",), id="a container runs"),
    ],
)
async def test_other_devices_of_a_checkpoint_are_final(
    saved: tuple[Device, ...], live: tuple[str, ...]
) -> None:
    """Devices of each resource are all there are; a running container was placed beside those that were saved."""
    async with stage() as scene:
        scene.keeper.resume({OWNER: saved})
        scene.see(BOTH, live=live)
        scene.see(BOTH)
        await asyncio.sleep(0.1)
        assert (scene.known, scene.keeper.unknown(), scene.kubelet.at) == ({OWNER: saved}, {}, [])


async def test_devices_of_a_checkpoint_are_final_until_the_runtime_lists_its_containers() -> None:
    """While the runtime has not listed all containers, it is not known whether one of the pod runs."""
    async with stage() as scene:
        scene.keeper.resume({OWNER: (FIRST,)})
        scene.keeper.follow(replace(observed(BOTH), containers_complete=False), {})
        assert scene.keeper.unknown() == {}
        scene.see(BOTH, live=["u"])
        await asyncio.sleep(0.1)
        assert (scene.keeper.unknown(), scene.kubelet.at) == ({}, [])


async def test_containers_of_one_plugin_each_are_known_together() -> None:
    """While one container of a pod lacks its devices, those of all its containers count as incomplete."""
    async with stage() as scene:
        scene.kubelet.pods[("ns", "a")] = [{"c": (FIRST,), "d": ()}]
        scene.see(pod({GPU: 1}, {NIC: 1}, init={DONGLE: 1}))
        await scene.calls(1)
        assert scene.known == {OWNER: (FIRST,)}
        assert scene.keeper.unknown() == dict.fromkeys([OWNER, OTHER], MORE_MAY_FOLLOW)
        scene.kubelet.pods[("ns", "a")] = [{"c": (FIRST,), "d": (SECOND,)}]
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known == {OWNER: (FIRST,), OTHER: (SECOND,)}
        assert scene.keeper.unknown() == {}


@pytest.mark.parametrize(
    "amounts",
    [
        pytest.param({GPU: 2}, id="several of one resource"),
        pytest.param({GPU: 1, NIC: 0}, id="none of another"),
        pytest.param({GPU: 1, "corepin.io/whole-cores": 1}, id="no device of another"),
    ],
)
async def test_all_devices_of_one_resource_come_at_once(amounts: dict[str, Any]) -> None:
    """The first answer with devices of a single resource is final."""
    async with stage() as scene:
        await scene.asked(pod(amounts), FIRST, FIRST)
        assert (scene.known, scene.keeper.unknown()) == ({OWNER: (FIRST, FIRST)}, {})


async def test_later_answer_without_a_device_forgets_none() -> None:
    """Devices of an earlier answer are kept if a later one lacks them, because a pod never loses devices."""
    async with stage() as scene:
        await scene.asked(BOTH, FIRST)
        scene.lists()
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known == {OWNER: (FIRST,)}
        scene.lists(SECOND)
        scene.keeper.sandbox_started("u")
        await scene.calls(len(scene.kubelet.at) + 1)
        assert scene.known == {OWNER: (SECOND, FIRST)}


async def test_first_devices_of_another_pod_of_the_name_do_not_count() -> None:
    """Partial devices do not count while two pods have the same name, because they may be the other pod's."""
    async with stage() as scene:
        await scene.asked(BOTH, FIRST, calls=2, names={"old": ("ns", "a")})
        assert scene.known == {}


async def test_too_many_devices_later_are_not_all_known() -> None:
    """If a later answer has too many devices, the first device is kept and the container has the reason."""
    async with stage() as scene:
        await scene.asked(BOTH, FIRST)
        scene.kubelet.pods[("ns", "a")] = [{"c": None}]
        await scene.calls(len(scene.kubelet.at) + 1)
        assert (scene.known, scene.keeper.unknown()) == ({OWNER: (FIRST,)}, {OWNER: TOO_MANY})


async def test_deleted_pods_are_forgotten() -> None:
    """A pod that is deleted before its sandbox starts causes no more calls."""
    async with stage() as scene:
        await scene.asked(BOTH, FIRST)
        scene.see()
        assert (scene.known, scene.keeper.unknown()) == ({}, {})
        calls = len(scene.kubelet.at)
        await asyncio.sleep(1.5)
        assert len(scene.kubelet.at) == calls


@pytest.mark.parametrize(
    ("entries", "has_all", "is_whole"),
    [
        pytest.param((), False, False, id="none"),
        pytest.param((FIRST,), False, False, id="one of two"),
        pytest.param((FIRST, FIRST), False, False, id="two of one resource"),
        pytest.param((FIRST, SECOND), False, False, id="no claim"),
        pytest.param((FIRST, PREPARED), False, False, id="a claim and one of two"),
        pytest.param((FIRST, SECOND, PREPARED), True, False, id="all, of a claim perhaps more"),
        pytest.param(
            (FIRST, PREPARED, PREPARED._replace(claim="extended")),
            True,
            False,
            id="one by an extended resource",
        ),
        pytest.param(None, True, True, id="too many"),
    ],
)
def test_whole_answers(entries: Entries | None, has_all: bool, is_whole: bool) -> None:
    """An answer is complete if it has each resource and claim, and no claim that may have several drivers."""
    waiting = Waiting(("ns", "a"), {"c": 2}, 0.0, {"c": frozenset({"gpu"})}, awaits_claims=True)
    named: Named = {"c": entries}
    assert (waiting.lists_all(named), waiting.is_whole(named)) == (has_all, is_whole)


def test_merged_answers() -> None:
    """Equal devices of both answers count once; too many together are not read, and fewer than before are."""
    before: Named = {"c": (FIRST, FIRST), "d": None}
    assert merged(before, {"c": (FIRST, SECOND), "d": (FIRST,)}) == {
        "c": (FIRST, SECOND, FIRST),
        "d": (FIRST,),
    }
    many: Named = {"c": tuple(Device(GPU, CPUSet([0]), f"{at:04}:00:00.0") for at in range(MOST_ENTRIES))}
    assert merged(many, many) == many
    assert merged(many, {"c": (FIRST,)}) == {"c": None}
    assert merged({}, {"c": None, "d": (Device(GPU, EMPTY),)}) == {"c": None, "d": (Device(GPU, EMPTY),)}


NEAR = Device(GPU, CPUSet([1]))


async def test_late_answer_counts_and_its_reason_is_shown_before() -> None:
    """An answer after three seconds counts; after two seconds a pass is requested for the reason."""
    async with stage() as scene:
        scene.lists(NEAR)
        scene.kubelet.seconds = 3.0
        scene.see(seen("u", word="require"))
        await asyncio.sleep(SLOW_SECONDS - 0.1)
        assert (scene.keeper.unknown(), scene.passes) == ({OWNER: DEVICES_NOT_NAMED}, 0)
        await asyncio.sleep(0.2)
        assert (scene.keeper.unknown(), scene.passes) == ({OWNER: SLOW}, 1)
        await asyncio.sleep(1.0)
        assert (scene.known, scene.keeper.unknown(), scene.passes) == ({OWNER: (NEAR,)}, {}, 2)
        assert len(scene.kubelet.at) == 1


async def test_pod_that_starts_beside_a_late_call_is_asked_for_next() -> None:
    """One call is in flight, the next one asks for every pod that waits then."""
    async with stage() as scene:
        scene.lists(NEAR)
        scene.lists(NEAR, name="b")
        scene.kubelet.seconds = 3.0
        scene.see(seen("u"))
        await asyncio.sleep(1.0)
        scene.see(seen("u"), seen("v", "b"))
        await asyncio.sleep(5.1)
        assert len(scene.kubelet.at) == 2
        assert scene.known == {OWNER: (NEAR,), Owner("v", "c"): (NEAR,)}


async def test_silent_kubelet_has_one_reason_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The end of a call without an answer repeats the reason, which causes no further pass."""
    caplog.set_level(logging.WARNING, "agent.kubelet.call_results")
    async with stage(seconds=60) as scene:
        scene.kubelet.seconds, scene.kubelet.error = ANSWER_SECONDS, Unavailable("no answer in 10.0 s")
        scene.see(seen("u"))
        await asyncio.sleep(5 * ANSWER_SECONDS)
        assert (scene.keeper.unknown(), scene.passes) == ({OWNER: SLOW}, 1)
        assert 4 <= len(scene.kubelet.at) <= 5
    assert [record.__dict__["facts"]["reason"] for record in caplog.records] == [SLOW]


@pytest.mark.parametrize("answers", [[3.0], [3.0, 3.0, 0.5]], ids=["late", "two of three late"])
async def test_slow_kubelet_changes_no_reason_back_and_logs_one_line(
    answers: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first late call of a kubelet that answers is shown; afterwards a pod waits for one reason."""
    caplog.set_level(logging.WARNING, "agent.kubelet.call_results")
    reasons: list[str] = []

    def vary(scene: Scene) -> None:
        scene.kubelet.seconds = answers[(len(scene.kubelet.at) - 1) % len(answers)]

    async with stage(seconds=61) as scene:
        scene.kubelet.hook = lambda: vary(scene)
        scene.see(seen("u", word="require"))
        for _ in range(600):
            await asyncio.sleep(0.1)
            reasons.append(scene.keeper.unknown()[OWNER])
        assert len(scene.kubelet.at) > 10
        assert scene.passes <= 3
    assert [reason for reason, _ in groupby(reasons)] == [DEVICES_NOT_NAMED, SLOW, DEVICES_NOT_NAMED, LATE]
    assert [record.__dict__["facts"]["reason"] for record in caplog.records] == [SLOW]


async def test_slow_kubelet_that_stops_answering_is_shown_at_the_end_of_its_call() -> None:
    """After late answers the wait for one is no reason; the first call without an answer is."""
    async with stage(seconds=60) as scene:
        scene.kubelet.seconds = 3.0
        scene.see(seen("u"))
        await scene.calls(3)
        scene.kubelet.error = Unavailable("no answer in 3.0 s")
        await asyncio.sleep(2.9)
        assert scene.keeper.unknown() == {OWNER: LATE}
        await asyncio.sleep(0.1)
        assert scene.keeper.unknown() == {OWNER: SLOW}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("junk"), "junk"),
        (TooLarge("12 MB"), "exceeds 4 MiB"),
        (Unavailable("no answer in 10.0 s"), SLOW),
    ],
)
async def test_late_answer_that_cannot_be_read_has_its_own_reason(error: Exception, reason: str) -> None:
    """A late answer that is refused replaces the reason of the wait; the end of the wait repeats it."""
    async with stage() as scene:
        scene.kubelet.seconds, scene.kubelet.error = 3.0, error
        scene.see(seen("u"))
        await asyncio.sleep(3.1)
        assert reason in scene.keeper.unknown()[OWNER]
