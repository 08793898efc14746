"""A kubelet that answers late: its answers count, and pods show in the meantime why they wait."""

from __future__ import annotations

import asyncio
import logging
from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from agent.errors import Refused, TooLarge, Unavailable
from agent.kubelet.device_answers import ANSWER_SECONDS, SLOW, SLOW_SECONDS
from agent.kubelet.device_list import DeviceList
from agent.kubelet.devices import LATE
from agent.kubelet.free_devices import FreeDeviceList
from agent.kubelet.pod_resources import PodResources
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import DEVICES_NOT_NAMED, Owner
from tests.agent.kubelet.device_scene import Scene, seen, stage
from tests.agent.kubelet.fake_kubelet import GPU, FakeKubelet

if TYPE_CHECKING:
    from pathlib import Path

NEAR = Device(GPU, CPUSet([1]))
OWNER = Owner("u", "c")


def test_calls_for_devices_wait_longer_than_those_of_passes(tmp_path: Path) -> None:
    """The limit for lists of devices is ANSWER_SECONDS; a call for which a pass waits has two seconds."""

    async def run() -> list[float]:
        fake = FakeKubelet(tmp_path / "kubelet.sock")
        async with fake.serving():
            await DeviceList(fake.socket).ask({("ns", "a")})
            await FreeDeviceList(fake.socket).ask()
            await PodResources(fake.socket).ask()
        return fake.limits

    *devices, cpus = asyncio.run(run())
    assert len(devices) == 3
    assert all(SLOW_SECONDS < limit <= ANSWER_SECONDS for limit in devices)
    assert cpus <= 2.0


def test_late_answer_counts_and_its_reason_is_shown_before() -> None:
    """An answer after three seconds counts; after two seconds a pass is requested for the reason."""

    async def scenario(scene: Scene) -> None:
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

    stage(scenario)


def test_pod_that_starts_beside_a_late_call_is_asked_for_next() -> None:
    """One call is in flight, the next one asks for every pod that waits then."""

    async def scenario(scene: Scene) -> None:
        scene.lists(NEAR)
        scene.lists(NEAR, name="b")
        scene.kubelet.seconds = 3.0
        scene.see(seen("u"))
        await asyncio.sleep(1.0)
        scene.see(seen("u"), seen("v", "b"))
        await asyncio.sleep(5.1)
        assert len(scene.kubelet.at) == 2
        assert scene.known == {OWNER: (NEAR,), Owner("v", "c"): (NEAR,)}

    stage(scenario)


def test_silent_kubelet_has_one_reason_and_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The end of a call without an answer repeats the reason, which causes no further pass."""

    async def scenario(scene: Scene) -> None:
        scene.kubelet.seconds, scene.kubelet.error = ANSWER_SECONDS, Unavailable("no answer in 10.0 s")
        scene.see(seen("u"))
        await asyncio.sleep(5 * ANSWER_SECONDS)
        assert (scene.keeper.unknown(), scene.passes) == ({OWNER: SLOW}, 1)
        assert 4 <= len(scene.kubelet.at) <= 5

    with caplog.at_level(logging.WARNING, "agent.kubelet.call_results"):
        stage(scenario, seconds=60)
    assert [record.__dict__["facts"]["reason"] for record in caplog.records] == [SLOW]


@pytest.mark.parametrize("answers", [[3.0], [3.0, 3.0, 0.5]], ids=["late", "two of three late"])
def test_slow_kubelet_changes_no_reason_back_and_logs_one_line(
    answers: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    """Only the first late call of a kubelet that answers is shown; afterwards a pod waits for one reason."""
    reasons: list[str] = []

    async def scenario(scene: Scene) -> None:
        scene.kubelet.hook = lambda: vary(scene)
        scene.see(seen("u", word="require"))
        for _ in range(600):
            await asyncio.sleep(0.1)
            reasons.append(scene.keeper.unknown()[OWNER])
        assert len(scene.kubelet.at) > 10
        assert scene.passes <= 3

    def vary(scene: Scene) -> None:
        scene.kubelet.seconds = answers[(len(scene.kubelet.at) - 1) % len(answers)]

    with caplog.at_level(logging.WARNING, "agent.kubelet.call_results"):
        stage(scenario, seconds=61)
    assert [reason for reason, _ in groupby(reasons)] == [DEVICES_NOT_NAMED, SLOW, DEVICES_NOT_NAMED, LATE]
    assert [record.__dict__["facts"]["reason"] for record in caplog.records] == [SLOW]


def test_slow_kubelet_that_stops_answering_is_shown_at_the_end_of_its_call() -> None:
    """After late answers the wait for one is no reason; the first call without an answer is."""

    async def scenario(scene: Scene) -> None:
        scene.kubelet.seconds = 3.0
        scene.see(seen("u"))
        await scene.calls(3)
        scene.kubelet.error = Unavailable("no answer in 3.0 s")
        await asyncio.sleep(2.9)
        assert scene.keeper.unknown() == {OWNER: LATE}
        await asyncio.sleep(0.1)
        assert scene.keeper.unknown() == {OWNER: SLOW}

    stage(scenario, seconds=60)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Refused("junk"), "junk"),
        (TooLarge("12 MB"), "exceeds 4 MiB"),
        (Unavailable("no answer in 10.0 s"), SLOW),
    ],
)
def test_late_answer_that_cannot_be_read_has_its_own_reason(error: Exception, reason: str) -> None:
    """A late answer that is refused replaces the reason of the wait; the end of the wait repeats it."""

    async def scenario(scene: Scene) -> None:
        scene.kubelet.seconds, scene.kubelet.error = 3.0, error
        scene.see(seen("u"))
        await asyncio.sleep(3.1)
        assert reason in scene.keeper.unknown()[OWNER]

    stage(scenario)
