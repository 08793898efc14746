"""A PodResources socket that is absent, and then fails in every way in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.kubelet.call_limit import BURST, CALLS_PER_SECOND, CallLimit
from agent.kubelet.device_answers import LONGEST_REASON
from agent.kubelet.device_list import DeviceList
from agent.kubelet.devices import KubeletDevices
from agent.kubelet.podresources_pb2 import ContainerDevices, ContainerResources, NUMANode, TopologyInfo
from agent.kubelet.podresources_pb2 import PodResources as Pod
from agent.metrics import Metrics
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import DEVICES_NOT_NAMED, Observed, Owner, SeenPod
from tests.agent import virtual_time
from tests.agent.kubelet.fake_kubelet import FakeKubelet
from tests.pinning.machines import FLAT

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
