"""Devices of ResourceClaims beside those of device plugins: which answers of the kubelet count, and what is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agent.kubelet.device_list import MOST_ENTRIES, ClaimedDevice, devices_of
from agent.kubelet.devices import LATE_FOR_SOME, LATE_SECONDS, KubeletDevices
from agent.kubelet.podresources_pb2 import (
    ClaimResource,
    ContainerDevices,
    ContainerResources,
    DynamicResource,
)
from agent.metrics import Metrics
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import DEVICES_NOT_NAMED, MORE_MAY_FOLLOW, Observed, Owner, SeenPod
from tests.agent import virtual_time
from tests.agent.kubelet.fake_list import FakeList
from tests.environments.waiting import background
from tests.pinning.machines import FLAT

DRIVER, NIC = "gpu.example.com", "example.com/nic"
OWNER = Owner("u", "c")
GPU = ClaimedDevice("gpu", DRIVER, "pool", "gpu-0")
OTHER = ClaimedDevice("gpu", DRIVER, "pool", "gpu-1")
PLUGGED = Device(NIC, CPUSet([0]))
CPUS = ClaimedDevice("cpus", "cpu.corepin.io", "node-1", "cpudevnuma000")


def pod(*claims: str, plugin: bool = False, word: str = "prefer") -> SeenPod:
    """Return a pod whose container names claims, and a device of a plugin."""
    limits: dict[str, Any] = {"cpu": 2, **({NIC: 1} if plugin else {})}
    resources = {"limits": limits, "requests": limits, "claims": [{"name": name} for name in claims]}
    annotations = {"cpu-manager.corepin.io/pod": "exclusive", "device-policy.corepin.io/pod": word}
    return SeenPod.of(
        {
            "metadata": {"uid": "u", "name": "a", "namespace": "ns", "annotations": annotations},
            "spec": {  # type: ignore[typeddict-item]
                "containers": [{"name": "c", "resources": resources}],
                "resourceClaims": [{"name": name, "resourceClaimName": name} for name in claims],
            },
        }
    )


class Slices:
    """Fake ResourceSlices: nodes of devices that are known, and a reason for all others."""

    def __init__(self) -> None:
        self.nodes: dict[ClaimedDevice, CPUSet] = {GPU: CPUSet([1]), OTHER: CPUSet([0])}
        self.addresses: dict[ClaimedDevice, str] = {}
        self.why = ""
        self.changed: Callable[[], None] = lambda: None

    def nodes_of(self, device: ClaimedDevice) -> CPUSet | None:
        """Return the nodes of a device."""
        return self.nodes.get(device)

    def address_of(self, device: ClaimedDevice) -> str:
        """Return the PCI address of a device."""
        return self.addresses.get(device, "")

    def reason(self, _: ClaimedDevice) -> str:
        """Return the reason."""
        return self.why

    async def run(self, changed: Callable[[], None]) -> None:
        """Record the callback that announces a list."""
        self.changed = changed


class Scene:
    """The devices with kubelet and slices; `passes` counts the requested passes."""

    def __init__(self, *, looks_up: bool = True) -> None:
        self.kubelet, self.slices, self.passes = FakeList(), Slices(), 0
        claims: Any = self.slices if looks_up else None
        self.keeper = KubeletDevices(self.kubelet, Metrics(), claims=claims)  # type: ignore[arg-type]

    def lists(self, *entries: Device | ClaimedDevice) -> None:
        """Set what the kubelet lists of the container."""
        self.kubelet.pods[("ns", "a")] = [{"c": entries}]

    def see(self, *pods: SeenPod) -> None:
        """Run a pass with these pods."""
        self.keeper.follow(Observed(FLAT, FLAT.online, pods), {})

    async def calls(self, more: int = 1) -> None:
        """Wait for further calls."""
        number = len(self.kubelet.at) + more
        async with asyncio.timeout(20):
            while len(self.kubelet.at) < number:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)

    @property
    def known(self) -> tuple[Device, ...] | None:
        """The known devices of the container."""
        return self.keeper.known().get(OWNER)


@asynccontextmanager
async def stage(*, looks_up: bool = True) -> AsyncIterator[Scene]:
    """Run the block beside the devices' task."""
    scene = Scene(looks_up=looks_up)

    def request_pass() -> None:
        scene.passes += 1

    async with background(scene.keeper.run(request_pass)) as work:
        await asyncio.sleep(0)
        async with asyncio.timeout(30):
            yield scene
        assert not work.done()


def listed(*claims: DynamicResource) -> ContainerResources:
    """Return a container of the kubelet's list."""
    device = ContainerDevices(resource_name=NIC, device_ids=["x"])
    return ContainerResources(name="c", devices=[device], dynamic_resources=claims)


def claim(name: str, *devices: str) -> DynamicResource:
    """Return a claim in the kubelet's list."""
    resources = [ClaimResource(driver_name=DRIVER, pool_name="pool", device_name=it) for it in devices]
    return DynamicResource(claim_name=name, claim_resources=resources)


@pytest.mark.virtual_time
async def test_pod_that_waits_for_its_sandbox_is_reported_after_five_seconds() -> None:
    """A pod with a device of each claim is not asked for, and its reason still requests a pass when it is late."""
    kubelet, passes = FakeList(), list[float]()
    keeper = KubeletDevices(kubelet, Metrics(), clock=virtual_time.now, claims=Slices())  # type: ignore[arg-type]
    kubelet.pods[("ns", "a")] = [{"c": (GPU,)}]
    work = asyncio.create_task(keeper.run(lambda: passes.append(virtual_time.now())))
    keeper.follow(Observed(FLAT, FLAT.online, (pod("gpu"),)), {})
    await asyncio.sleep(3 * LATE_SECONDS)
    assert keeper.unknown() == {OWNER: LATE_FOR_SOME}
    work.cancel()
    assert [at >= LATE_SECONDS for at in passes] == [False, True]
    assert passes[1] < LATE_SECONDS + 1
    assert len(kubelet.at) == 1


def test_claimed_devices_are_read_after_those_of_plugins() -> None:
    """Devices of claims follow those of plugins; an unprepared claim has none, and too many are not read."""
    nic = Device(NIC, EMPTY)
    assert devices_of(listed(claim("gpu", "gpu-1", "gpu-0"), claim("b"))) == (nic, GPU, OTHER)
    many = [str(at) for at in range(MOST_ENTRIES + 1)]
    assert devices_of(listed(claim("gpu", *many))) is None
    assert devices_of(listed(*map(claim, many))) is None
    assert devices_of(listed(claim("a", *many[:200]), claim("b", *many[:200]))) is None
    # With the device of the plugin there is one too many.
    assert devices_of(listed(claim("gpu", *many[:MOST_ENTRIES]))) is None


async def test_device_of_a_claim_has_the_node_of_its_slice() -> None:
    """A claim's device has its driver's name, PCI address and NUMA node; CPUs of a CPU driver are no devices."""
    async with stage() as scene:
        scene.slices.addresses[GPU] = "0000:41:00.0"
        scene.lists(CPUS, GPU)
        scene.keeper.sandbox_started("u")
        await asyncio.sleep(0.002)
        scene.see(pod("gpu", "cpus"))
        assert dict(scene.keeper.unknown()) == {OWNER: DEVICES_NOT_NAMED}
        await scene.calls()
        assert scene.known == (Device(DRIVER, CPUSet([1]), "0000:41:00.0"),)
        assert (scene.passes, scene.keeper.unknown()) == (1, {})


async def test_answer_without_all_claims_waits_for_the_sandbox() -> None:
    """An answer without all claims is asked for again at the sandbox; a claim still missing is a device without a node.

    The other devices count in the meantime.
    """
    async with stage() as scene:
        scene.lists(Device(NIC, CPUSet([0])), GPU)
        scene.see(pod("gpu", "nic", plugin=True))
        await scene.calls(2)
        first = scene.known
        assert first == (Device(NIC, CPUSet([0])), Device(DRIVER, CPUSet([1])))
        assert scene.keeper.unknown() == {OWNER: MORE_MAY_FOLLOW}
        scene.keeper.sandbox_started("u")
        await scene.calls()
        assert scene.known == (*first, Device("resourceclaim/nic", EMPTY))


async def test_early_answer_is_asked_for_again_at_the_sandbox() -> None:
    """An answer from before the sandbox is asked for again, because a claim of two drivers is prepared in parts."""
    async with stage() as scene:
        scene.lists(GPU)
        scene.see(pod("gpu"))
        await scene.calls()
        first = scene.known
        assert first == (Device(DRIVER, CPUSet([1])),)
        scene.see(pod("gpu"))
        scene.lists(GPU, OTHER)
        assert (scene.keeper.unknown(), len(scene.kubelet.at)) == ({OWNER: MORE_MAY_FOLLOW}, 1)
        scene.keeper.sandbox_started("u")
        await scene.calls()
        assert scene.keeper.unknown() == {}
        assert scene.known == (*first, Device(DRIVER, CPUSet([0])))
        assert scene.passes == 2
        scene.see(pod("gpu"))
        await asyncio.sleep(0.05)
        assert len(scene.kubelet.at) == 2
        scene.see()
        assert scene.known is None


async def test_equal_answer_at_the_sandbox_requests_a_pass() -> None:
    """An unchanged answer after the sandbox started is final and requests a pass."""
    async with stage() as scene:
        scene.lists(GPU)
        scene.see(pod("gpu"))
        await scene.calls()
        scene.keeper.follow(Observed(FLAT, FLAT.online, (pod("gpu"),)), {"u": ("ns", "a")})
        await scene.calls()
        assert (scene.passes, len(scene.kubelet.at), scene.keeper.unknown()) == (2, 2, {})


async def test_pod_waits_for_slices_with_their_reason() -> None:
    """A pod waits with the reason while ResourceSlices cannot be read; a new list triggers the next call."""
    async with stage() as scene:
        scene.slices.nodes, scene.slices.why = {}, "the ResourceSlices cannot be read: no right"
        scene.lists(GPU)
        scene.see(pod("gpu"))
        await scene.calls()
        assert (scene.known, scene.keeper.unknown()[OWNER]) == (None, scene.slices.why)
        scene.see(pod("gpu"))
        assert scene.keeper.unknown()[OWNER] == scene.slices.why
        scene.slices.nodes = {GPU: CPUSet([1])}
        scene.slices.changed()
        await scene.calls()
        assert scene.known == (Device(DRIVER, CPUSet([1])),)
        scene.see()
        assert scene.keeper.unknown() == {}


@pytest.mark.parametrize(
    ("seen", "known"),
    [
        pytest.param(pod("gpu"), None, id="named"),
        pytest.param(pod(plugin=True), (Device(DRIVER, EMPTY),), id="behind an extended resource"),
        pytest.param(pod("gpu", plugin=True), (PLUGGED,), id="named beside a device of a plugin"),
    ],
)
async def test_without_the_component_claims_cause_no_call(
    seen: SeenPod, known: tuple[Device, ...] | None
) -> None:
    """Without the claims component claims cause no call; devices of extended resources have no NUMA node."""
    async with stage(looks_up=False) as scene:
        scene.lists(*([PLUGGED] if PLUGGED in (known or ()) else []), GPU)
        scene.see(seen)
        await asyncio.sleep(0.05)
        assert bool(scene.kubelet.at) is (known is not None)
        assert scene.known == known
        assert (scene.keeper.unknown(), scene.keeper.looks_up_claims) == ({}, False)


async def test_device_policy_none_causes_no_call_for_claims() -> None:
    """With `device-policy: none` the kubelet is not asked for the devices of claims."""
    async with stage() as scene:
        scene.see(pod("gpu", word="none"))
        await asyncio.sleep(0.05)
        assert (scene.kubelet.at, scene.keeper.unknown()) == ([], {})
