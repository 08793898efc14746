"""The agent's devices with a fake kubelet, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from agent.kubelet.device_list import Name
from agent.kubelet.devices import KubeletDevices
from agent.metrics import Metrics
from pinning.machine.cpuset import EMPTY
from pinning.machine.near import Device
from pinning.planning.node_config import DEFAULT, NodeConfig
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from tests.agent import virtual_time
from tests.agent.kubelet.fake_kubelet import GPU
from tests.agent.kubelet.fake_list import FakeList
from tests.environments.waiting import background
from tests.pinning.machines import FLAT


def seen(
    uid: str, name: str = "a", *, devices: bool = True, claims: bool = True, word: str = "", irq: str = ""
) -> SeenPod:
    """Return a pod of the API, with a policy for devices or interrupts if a word is given."""
    limits: dict[str, Any] = {"cpu": 2, **({GPU: 1} if devices else {})}
    annotations = {"cpu-manager.corepin.io/pod": "exclusive"} if claims else {}
    annotations |= {"device-policy.corepin.io/pod": word} if word else {}
    annotations |= {"irq-policy.corepin.io/pod": irq} if irq else {}
    return SeenPod.of(
        {
            "metadata": {"uid": uid, "name": name, "namespace": "ns", "annotations": annotations},
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]},
        }
    )


def observed(*pods: SeenPod, live: Iterable[str] = ()) -> Observed:
    """Return a node with these pods; those in `live` have a running container."""
    containers = [SeenContainer(uid, Owner(uid, "c"), State.RUNNING, EMPTY) for uid in live]
    return Observed(FLAT, FLAT.online, pods, tuple(containers))


class Scene:
    """The devices with their kubelet; `passes` counts the requested passes."""

    def __init__(self, config: NodeConfig = DEFAULT) -> None:
        self.kubelet, self.metrics, self.passes = FakeList(), Metrics(), 0
        self.keeper = KubeletDevices(self.kubelet, self.metrics, config, virtual_time.now)  # type: ignore[arg-type]

    def request_pass(self) -> None:
        """Count a requested pass."""
        self.passes += 1

    def lists(self, *devices: Device, name: str = "a") -> None:
        """Set the devices of a pod's container in the kubelet."""
        self.kubelet.pods[("ns", name)] = [{"c": devices}]

    def see(self, *pods: SeenPod, live: Iterable[str] = (), names: dict[str, Name] | None = None) -> None:
        """Run a pass with these pods, and containers of those in `live`."""
        self.keeper.follow(observed(*pods, live=live), names or dict.fromkeys(live, ("ns", "a")))

    async def asked(self, pod: SeenPod, *devices: Device, calls: int = 1, **more: Any) -> None:
        """Run a pass with a pod of which the kubelet lists these devices, and wait for calls."""
        self.lists(*devices)
        self.see(pod, **more)
        await self.calls(calls)

    async def calls(self, number: int) -> None:
        """Wait for this number of calls."""
        while len(self.kubelet.at) < number:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.002)

    @property
    def known(self) -> dict[Owner, tuple[Device, ...]]:
        """The known devices."""
        return dict(self.keeper.known())


@asynccontextmanager
async def stage(config: NodeConfig = DEFAULT, seconds: float = 20) -> AsyncIterator[Scene]:
    """Run the block for at most some seconds beside the devices' task, in virtual time."""
    scene = Scene(config)
    async with background(scene.keeper.run(scene.request_pass)) as work:
        await asyncio.sleep(0)
        async with asyncio.timeout(seconds):
            yield scene
        assert not work.done()
