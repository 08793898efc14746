"""NUMA nodes of devices of ResourceClaims: what is read of ResourceSlices, and how often they are listed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent.kubelet.claimed_devices import (
    LIST_BYTES,
    LONGEST_SECONDS,
    MISSING_SECONDS,
    MOST_DRIVERS,
    MOST_MISSING,
    NO_GROUP,
    REMEMBERED_SECONDS,
    ClaimedDevices,
)
from agent.kubelet.device_list import ClaimedDevice
from apiserver.access import Access
from apiserver.client import Api
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.environments.waiting import background, settle

DRIVER = "gpu.example.com"
NUMA, PCI = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pciBusID"
GPU = ClaimedDevice("claim", DRIVER, "pool", "gpu-0")


def device(name: str, **attributes: Any) -> dict[str, Any]:
    """Return a device with attributes for its NUMA node and its PCI address."""
    names = {"numa": NUMA, "pci": PCI}
    return {"name": name, "attributes": {names.get(key, key): value for key, value in attributes.items()}}


def slice_of(
    *devices: dict[str, Any], pool: str = "pool", generation: int = 1, of: int = 1
) -> dict[str, Any]:
    """Return one slice of a pool that has this many slices."""
    named = {"name": pool, "generation": generation, "resourceSliceCount": of}
    return {"spec": {"driver": DRIVER, "nodeName": "node-1", "pool": named, "devices": list(devices)}}


@dataclass
class Server:
    """An API server that has slices, and the clock of the agent."""

    slices: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200
    body: bytes | None = None
    selectors: list[str] = field(default_factory=list)
    now: float = 1000.0

    def answer(self, request: httpx.Request) -> httpx.Response:
        """Answer a list."""
        self.selectors.append(request.url.params["fieldSelector"])
        content = self.body if self.body is not None else json.dumps({"items": self.slices}).encode()
        return httpx.Response(self.status, content=content)

    def clock(self) -> float:
        """Return the time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Let time pass at once."""
        self.now += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def play(
    root: Path = Path("/nowhere"),
) -> AsyncIterator[tuple[Server, ClaimedDevices, Callable[[], Awaitable[None]]]]:
    """Run the block beside a server and the devices; the last one yielded waits for the next list."""
    server = Server()
    api = Api(Access("http://here"), "test", httpx.MockTransport(server.answer))
    devices, listed = ClaimedDevices(api, "node-1", root, server.clock, server.sleep), asyncio.Event()

    async def next_list() -> None:
        async with asyncio.timeout(20):
            await listed.wait()
        listed.clear()
        server.now += 1

    async with background(devices.run(listed.set)):
        yield server, devices, next_list
    await api.close()


@pytest.mark.parametrize(
    ("attributes", "nodes"),
    [
        pytest.param({"numa": {"int": 1}}, [1], id="scalar"),
        pytest.param({"numa": {"ints": [1, 0]}}, [1], id="list: the first is the place"),
        pytest.param({"numa": {"ints": []}}, [], id="empty list"),
        pytest.param({"numa": {"int": -1}}, [], id="-1"),
        pytest.param({"numa": {"int": 1024}}, [], id="a node that no machine has"),
        pytest.param({"numa": {"string": "1"}}, [], id="a text"),
        pytest.param({"numaNode": {"int": 1}}, [], id="another name"),
        pytest.param({"pci": {"string": "0000:41:00.0"}}, [2], id="PCI address"),
        pytest.param({"numa": {"int": 1}, "pci": {"string": "0000:41:00.0"}}, [1], id="both"),
        pytest.param({"pci": {"string": "0000:42:00.0"}}, [], id="the kernel does not know"),
        pytest.param({"pci": {"string": "0000:43:00.0"}}, [], id="no such device"),
        pytest.param({"pci": {"string": "../../../../outside"}}, [], id="no address"),
        pytest.param({}, [], id="neither"),
    ],
)
async def test_place_of_a_device(tmp_path: Path, attributes: dict[str, Any], nodes: list[int]) -> None:
    """`numaNode` counts first, then the kernel's node of the PCI address."""
    for address, text in (("0000:41:00.0", "2\n"), ("0000:42:00.0", "-1\n")):
        folder = tmp_path / "sys/bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(text)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/numa_node").write_text("3")
    async with play(tmp_path) as (server, devices, listed):
        server.slices = [slice_of(device("gpu-0", **attributes))]
        assert (devices.nodes_of(GPU), devices.address_of(GPU)) == (None, "")
        await listed()
        assert devices.nodes_of(GPU) == CPUSet(nodes)
        text = attributes.get("pci", {}).get("string", "")
        assert devices.address_of(GPU) == (text if text.startswith("0000:") else "")
    assert server.selectors == [f"spec.nodeName=node-1,spec.driver={DRIVER}"]


async def test_known_pools_are_not_listed_again() -> None:
    """A second device of a pool costs no call, and one that the pool lacks costs one."""
    async with play() as (server, devices, listed):
        server.slices = [slice_of(*(device(f"gpu-{at}", numa={"int": at % 2}) for at in range(8)))]
        devices.nodes_of(GPU)
        await listed()
        found = [devices.nodes_of(GPU._replace(name=f"gpu-{at}")) for at in range(8)]
        assert found == [CPUSet([at % 2]) for at in range(8)]
        server.slices = [slice_of(device("gpu-9", numa={"int": 1}), generation=2)]
        assert devices.nodes_of(GPU._replace(name="gpu-9")) is None
        await listed()
        assert devices.nodes_of(GPU._replace(name="gpu-9")) == CPUSet([1])
    assert len(server.selectors) == 2


async def test_only_the_newest_generation_counts_if_it_is_whole() -> None:
    """Older generations are ignored, and a pool of which a slice is missing is not used."""
    async with play() as (server, devices, listed):
        old = slice_of(device("gpu-0", numa={"int": 0}), generation=1)
        new = slice_of(device("gpu-0", numa={"int": 1}), generation=2, of=2)
        server.slices = [new, old]
        devices.nodes_of(GPU)
        await listed()
        assert devices.nodes_of(GPU) is None
        server.slices = [old, new, slice_of(generation=2, of=2)]
        await listed()
        assert devices.nodes_of(GPU) == CPUSet([1])


async def test_a_missing_device_has_no_node_after_a_while() -> None:
    """A restarted kubelet deletes slices, so a missing device is awaited for seconds, with few lists."""
    async with play() as (server, devices, _):
        while devices.nodes_of(GPU) is None:
            await settle()
            server.now += 0.5
        assert server.now >= 1000 + MISSING_SECONDS
        assert len(server.selectors) <= 7
        lists = len(server.selectors)
        server.now += REMEMBERED_SECONDS / 2
        assert devices.nodes_of(GPU) == EMPTY
        await settle()
        assert len(server.selectors) == lists


async def test_a_device_without_a_node_is_looked_up_again_after_ten_minutes() -> None:
    """A driver may publish nodes after an upgrade; until the list is read the device has none."""
    async with play() as (server, devices, listed):
        server.slices = [slice_of(device("gpu-0"))]
        devices.nodes_of(GPU)
        await listed()
        assert devices.nodes_of(GPU) == EMPTY
        server.slices = [slice_of(device("gpu-0", numa={"int": 1}), generation=2)]
        server.now += REMEMBERED_SECONDS
        assert devices.nodes_of(GPU) == EMPTY
        await listed()
        assert devices.nodes_of(GPU) == CPUSet([1])
    assert len(server.selectors) == 2


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        pytest.param(403, b'{"message": "resourceslices is forbidden"}', "is forbidden", id="no right"),
        pytest.param(404, b"", NO_GROUP, id="old API server"),
        pytest.param(500, b"", "cannot be read", id="failing"),
        pytest.param(200, b"[1, 2", "cannot be read", id="junk"),
        pytest.param(200, b'{"items": ' + b"[" * 5000, "cannot be read", id="brackets"),
        pytest.param(200, b" " * (LIST_BYTES + 1), "they exceed 1 MiB", id="too large"),
    ],
)
async def test_failed_lists_are_retried_seldom(
    status: int, body: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """While lists fail the device stays unknown with the reason, logged once, and lists are retried rarely."""
    async with play() as (server, devices, listed):
        server.status, server.body = status, body
        assert devices.reason(GPU) == ""
        for _ in range(600):
            assert devices.nodes_of(GPU) is None
            await settle()
            server.now += 1
            if not server.selectors or not devices.reason(GPU):
                await listed()
        assert reason in devices.reason(GPU)
        assert len(server.selectors) <= 600 / LONGEST_SECONDS * 2 + 8
        server.status, server.body = 200, None
        server.slices = [slice_of(device("gpu-0", numa={"int": 1}))]
        server.now += LONGEST_SECONDS * 5
        assert devices.nodes_of(GPU) is None
        while devices.nodes_of(GPU) is None:
            await listed()
        assert (devices.nodes_of(GPU), devices.reason(GPU)) == (CPUSet([1]), "")
    assert caplog.text.count("devices of claims not known") == 1


@pytest.mark.parametrize("name", ["a,spec.nodeName=other", "A", "", "x" * 64, "a=b"])
async def test_a_name_that_no_driver_has_causes_no_call(name: str) -> None:
    """An invalid driver name would change the field selector, so nothing is requested, and the devices have no NUMA node."""
    async with play() as (server, devices, _):
        assert devices.nodes_of(GPU._replace(driver=name)) == EMPTY
        await settle()
        assert (server.selectors, devices.reason(GPU._replace(driver=name))) == ([], "")


async def test_drivers_are_listed_one_a_second_and_are_limited() -> None:
    """With very many drivers the first are looked up, one list a second."""
    async with play() as (server, devices, listed):
        many = [GPU._replace(driver=f"d{at}.example.com") for at in range(MOST_DRIVERS + 5)]
        found = [devices.nodes_of(it) for it in many]
        assert found == [None] * MOST_DRIVERS + [EMPTY] * 5
        await listed()
        await listed()
        assert len(server.selectors) == 2


async def test_unused_driver_is_evicted() -> None:
    """A driver that comes after many others replaces the one that was not used for the longest time, after ten minutes."""
    async with play() as (server, devices, listed):
        server.slices = [slice_of(device("gpu-0", numa={"int": 1}))]
        many = [GPU._replace(driver=f"d{at}.example.com") for at in range(MOST_DRIVERS)]
        for it in many:
            devices.nodes_of(it)
            await listed()
        server.now += REMEMBERED_SECONDS / 2
        assert [devices.nodes_of(it) for it in many[1:]] == [CPUSet([1])] * (MOST_DRIVERS - 1)
        assert devices.nodes_of(GPU) == EMPTY
        server.now += REMEMBERED_SECONDS / 2
        assert devices.nodes_of(GPU) is None
        await listed()
        assert devices.nodes_of(GPU) == CPUSet([1])
        assert devices.nodes_of(many[0]) == EMPTY


async def test_a_pool_of_very_many_devices_is_read() -> None:
    """A driver may have 2,688 devices with other attributes in 21 slices."""
    async with play() as (server, devices, listed):
        more = {f"example.com/attribute{at}": {"string": "x" * 30} for at in range(4)}
        slices = [
            slice_of(*(device(f"gpu-{at}-{number}", numa={"int": 1}, **more) for number in range(128)), of=21)
            for at in range(21)
        ]
        server.body = json.dumps({"items": slices}).encode()
        assert LIST_BYTES * 0.8 < len(server.body) <= LIST_BYTES
        last = GPU._replace(name="gpu-20-127")
        devices.nodes_of(last)
        await listed()
        assert devices.nodes_of(last) == CPUSet([1])


async def test_devices_that_no_list_has_are_bounded() -> None:
    """While lists fail only the last missing devices are remembered."""
    async with play() as (server, devices, next_list):
        server.status = 403
        for number in range(MOST_MISSING + 10):
            assert devices.nodes_of(GPU._replace(name=str(number))) is None
        await next_list()
        missing = devices._drivers[DRIVER].missing
        assert (len(missing), ("pool", "9") in missing, ("pool", "10") in missing) == (
            MOST_MISSING,
            False,
            True,
        )
