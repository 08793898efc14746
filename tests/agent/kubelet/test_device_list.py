"""Parsing the kubelet's device list, and its cost."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from agent.errors import Refused, TooLarge, Unavailable
from agent.kubelet.device_answers import ANSWER_BYTES, ANSWER_SECONDS, SLOW_SECONDS
from agent.kubelet.device_list import MOST_ENTRIES, DeviceList, devices_of
from agent.kubelet.free_devices import FreeDeviceList
from agent.kubelet.pod_resources import PodResources
from agent.kubelet.podresources_pb2 import AllocatableResourcesResponse, ContainerDevices, ContainerResources
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from tests.agent.kubelet.fake_kubelet import GPU, NIC, FakeKubelet, entry, listed
from tests.environments.waiting import background

NEAR = Device(GPU, CPUSet([1]))


@pytest.mark.parametrize(
    ("entries", "devices"),
    [
        pytest.param([], (), id="none"),
        pytest.param([entry(GPU, "x", 1)], (NEAR,), id="one"),
        pytest.param([entry(GPU, "y", 1), entry(GPU, "x", 1)], (NEAR, NEAR), id="two on one node"),
        pytest.param(
            [entry(GPU, "x", 1), entry(GPU, "x", 0)], (Device(GPU, CPUSet([0, 1])),), id="one on two nodes"
        ),
        pytest.param(
            [entry(NIC, "x", 0), entry(GPU, "x", 1)], (Device(NIC, CPUSet([0])), NEAR), id="one id, two kinds"
        ),
        pytest.param([entry(GPU, "x")], (Device(GPU, EMPTY),), id="without topology"),
        pytest.param(
            [entry(GPU, "x", -1, 1024, 2**62, 1)], (NEAR,), id="nodes that no machine has are left out"
        ),
        pytest.param(
            [entry("r" * 300, "x", 1)], (Device("r" * 253, CPUSet([1])),), id="a name that none can have"
        ),
        pytest.param(
            [
                entry(GPU, "0000:42:00.0", 1),
                entry(GPU, "0000:41:00.0", 1),
                entry(GPU, "0000:41:00.0/../x", 1),
            ],
            (NEAR, replace(NEAR, address="0000:41:00.0"), replace(NEAR, address="0000:42:00.0")),
            id="ids that are PCI addresses",
        ),
        pytest.param(
            [entry(GPU, str(at), 1) for at in range(MOST_ENTRIES)], (NEAR,) * MOST_ENTRIES, id="most"
        ),
        pytest.param([entry(GPU, str(at), 1) for at in range(MOST_ENTRIES + 1)], None, id="too many entries"),
        pytest.param([entry(GPU, "x", *range(MOST_ENTRIES + 1))], None, id="too many nodes"),
        pytest.param(
            [ContainerDevices(resource_name=GPU, device_ids=list(map(str, range(MOST_ENTRIES + 1))))],
            None,
            id="too many ids",
        ),
        pytest.param(
            [ContainerDevices(resource_name=str(at), device_ids=["x", "y"]) for at in range(MOST_ENTRIES)],
            None,
            id="too many together",
        ),
    ],
)
def test_devices_of_a_container(entries: list[ContainerDevices], devices: tuple[Device, ...] | None) -> None:
    """Each entry is one device and node, in any order; a container with too many is not read."""
    assert devices_of(ContainerResources(name="c", devices=entries)) == devices
    assert devices_of(ContainerResources(name="c", devices=entries[::-1])) == devices


@asynccontextmanager
async def play(
    tmp_path: Path, timeout_seconds: float = 60.0
) -> AsyncIterator[tuple[FakeKubelet, DeviceList]]:
    """Run a kubelet, and a client with this timeout."""
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    async with fake.serving():
        yield fake, DeviceList(fake.socket, timeout_seconds)


async def test_only_requested_pods_are_read(tmp_path: Path) -> None:
    """Other names and namespaces are skipped, and a name listed twice gives two entries."""
    async with play(tmp_path) as (fake, client):
        gpu = entry(GPU, "x", 1)
        fake.lists(listed("a", gpu), listed("b", gpu), listed("a", namespace="other"), listed("a"))
        assert await client.ask({("ns", "a"), ("ns", "z")}) == {("ns", "a"): [{"c": (NEAR,)}, {"c": ()}]}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(b"\xff" * 100, Refused, id="junk"),
        pytest.param(b"\x0a\xff\xff\xff\xff\x07", Refused, id="cut off"),
        pytest.param(b"\x0a\x09\x1a\x03\x0a\x01c\x0a\x02ns", Refused, id="containers before the name"),
        pytest.param(b"\x0a\x07\x1a\x05\x12\x03\xff\xff\xff", Refused, id="a container that is none"),
        pytest.param(b"\x00" * (ANSWER_BYTES + 1), TooLarge, id="too large"),
        pytest.param((grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit"), Unavailable, id="rate"),
        pytest.param((grpc.StatusCode.UNIMPLEMENTED, "no"), Refused, id="refused"),
        pytest.param(None, Unavailable, id="hangs"),
    ],
)
async def test_invalid_answers_raise(tmp_path: Path, answer: Any, error: type[Exception]) -> None:
    """A malformed answer raises Refused, and a rate limit or timeout Unavailable."""
    async with play(tmp_path, 60.0 if answer else 0.5) as (fake, client):
        fake.answer = answer if isinstance(answer, bytes) else b""
        fake.error = answer if isinstance(answer, tuple) else None
        fake.hangs = answer is None
        with pytest.raises(error):
            await client.ask({("", "")})


async def test_a_container_with_very_many_devices_is_not_decoded(tmp_path: Path) -> None:
    """A container with 60,000 devices is None, and the other containers are read."""
    async with play(tmp_path) as (fake, client):
        many = listed("b", *(entry("e.com/v", f"{at:030}", 0) for at in range(60_000)))
        fake.lists(listed("a", entry(GPU, "x", 1)), many)
        assert len(fake.answer) > ANSWER_BYTES * 0.6
        assert await client.ask({("ns", "a"), ("ns", "b")}) == {
            ("ns", "a"): [{"c": (NEAR,)}],
            ("ns", "b"): [{"c": None}],
        }


async def test_a_long_list_does_not_block_the_event_loop(tmp_path: Path) -> None:
    """While a list of 10,000 devices is read the event loop runs other tasks."""
    async with play(tmp_path) as (fake, client):
        names = [f"p{at}" for at in range(40)]
        fake.lists(*(listed(name, *(entry(GPU, str(at), 1) for at in range(250))) for name in names))
        turns = 0

        async def tick() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with background(tick()):
            found = await client.ask({("ns", name) for name in names})
        assert sum(len(its or ()) for named in found.values() for its in named[0].values()) == 10_000
        assert turns > len(names)


async def test_calls_for_devices_wait_longer_than_those_of_passes(tmp_path: Path) -> None:
    """The limit for lists of devices is ANSWER_SECONDS; a call for which a pass waits has two seconds."""
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    async with fake.serving():
        await DeviceList(fake.socket).ask({("ns", "a")})
        await FreeDeviceList(fake.socket).ask()
        await PodResources(fake.socket).ask()
    *devices, cpus = fake.limits
    assert len(devices) == 3
    assert all(SLOW_SECONDS < limit <= ANSWER_SECONDS for limit in devices)
    assert cpus <= 2.0


POD_DEVICES = 250  # of one container, which is just read


def cost(tmp_path: Path, way: str, devices: int, digits: int) -> Any:
    """Return what a process finds that asks a kubelet with this many devices."""
    names = [f"{number:0{digits}}" for number in range(devices)]
    parts = [names[at : at + POD_DEVICES] for at in range(0, devices, POD_DEVICES)]
    pods = [
        listed(f"p{number}", *(entry(GPU, name, number % 2) for name in part))
        for number, part in enumerate(parts)
    ]

    async def ask() -> Any:
        fake = FakeKubelet(tmp_path / "kubelet.sock")
        if way == "free":
            free = [entry(GPU, name, number % 2) for number, name in enumerate(names)]
            fake.allocatable = AllocatableResourcesResponse(devices=free).SerializeToString()
        else:
            fake.lists(*pods)
        async with fake.serving():
            module = "tests.agent.kubelet.device_list_cost"
            command = [
                sys.executable,
                "-m",
                module,
                way,
                str(fake.socket),
                str(len(pods) if way == "listed" else 1),
            ]
            done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        return json.loads(done.stdout)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("way", "devices", "digits", "found", "most"),
    [
        pytest.param("listed", 10_000, 32, (10_000, ""), 10, id="10,000"),
        pytest.param("free", 10_000, 32, (10_000, ""), 10, id="10,000 free"),
        pytest.param("listed", 100_000, 32, (0, "TooLarge"), 60, id="100,000"),
        pytest.param("free", 100_000, 32, (0, "TooLarge"), 60, id="100,000 free"),
        # With names of five characters the list has less than 4 MiB.
        pytest.param("one pod's", 100_000, 5, (POD_DEVICES, ""), 60, id="100,000 with short names"),
        pytest.param("free", 100_000, 5, (0, "Refused"), 60, id="100,000 free with short names"),
    ],
)
def test_the_event_loop_is_not_blocked(
    tmp_path: Path, way: str, devices: int, digits: int, found: tuple[int, str], most: float
) -> None:
    """10,000 devices block it for 10 ms at most and 100,000 for 60 ms; those of pods that do not wait are not read."""
    result = cost(tmp_path, way, devices, digits)
    assert (result["devices"], result["error"]) == found
    assert result["turn"] < most
