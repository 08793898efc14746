"""Pods that are deleted and created again under one name while kubelet and agent restart: random histories of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count
from random import Random

import pytest

from agent.kubelet.device_list import Name, Named
from agent.kubelet.devices import KubeletDevices
from agent.metrics import Metrics
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from tests.pinning.machines import FLAT

GPU, NIC = "nvidia.com/gpu", "example.com/nic"
NAME = "ns", "a"


@dataclass
class Pod:
    """One pod of the name; its two devices are on a NUMA node of its own number."""

    number: int
    # Steps of the kubelet: it lists the pod, has allocated one device and the other, has started its sandbox.
    steps: int = 0

    @property
    def uid(self) -> str:
        """The uid."""
        return str(self.number)

    @property
    def has_sandbox(self) -> bool:
        """Whether the runtime lists the pod's sandbox."""
        return self.steps > 3

    @property
    def devices(self) -> tuple[Device, ...]:
        """The pod's devices in the kubelet's list."""
        own = tuple(Device(resource, CPUSet([self.number])) for resource in (GPU, NIC))
        return own[: max(0, self.steps - 1)]

    def shown(self) -> SeenPod:
        """Return the pod of the API."""
        amounts = {"cpu": 2, GPU: 1, NIC: 1}
        container = {"name": "c", "resources": {"limits": amounts, "requests": amounts}}
        annotations = {"cpu-manager.corepin.io/pod": "exclusive"}
        metadata = {"uid": self.uid, "name": NAME[1], "namespace": NAME[0], "annotations": annotations}
        return SeenPod.of({"metadata": metadata, "spec": {"containers": [container]}})  # type: ignore[typeddict-item]


class Node:
    """A node with one name for its pods. A deleted pod with a sandbox is listed until its containers have ended."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.current: Pod | None = None
        self.ending: list[Pod] = []
        self.is_empty = False  # the kubelet has just restarted
        self._ticks, self._numbers = count(), count(1)
        self.new_agent({})

    def final(self) -> dict[Owner, tuple[Device, ...]]:
        """Return what the checkpoint has."""
        known, unknown = self.agent.known(), self.agent.unknown()
        return {owner: devices for owner, devices in known.items() if owner not in unknown}

    def new_agent(self, known: dict[Owner, tuple[Device, ...]]) -> None:
        """Start an agent with the devices of a checkpoint."""
        self.agent = KubeletDevices(self, Metrics(), clock=self.clock)  # type: ignore[arg-type]
        self.agent.resume(known)

    def clock(self) -> float:
        """Return the time; each look at the clock takes 10 ms."""
        return next(self._ticks) / 100

    async def ask(self, pods: Collection[Name]) -> dict[Name, list[Named]]:
        """Return the kubelet's present list; the node may change before the answer arrives."""
        listed = [*self.ending, *([self.current] if self.current and self.current.steps else [])]
        answer = [] if self.is_empty else [Named(c=pod.devices) for pod in listed]
        for _ in range(self.random.choice([0, 0, 1, 3])):
            self.change()
        return {name: answer for name in pods if answer}

    def change(self) -> None:
        """Do one random step of pod, kubelet or agent."""
        steps = ["pass", "kubelet", "agent", *(["end"] if self.ending else [])]
        steps += ["progress", "progress", "delete"] if self.current else ["create"]
        match self.random.choice(steps):
            case "pass":
                self.observe()
            case "kubelet":  # the kubelet starts again, or has read its checkpoint
                self.is_empty = not self.is_empty
            case "agent":
                self.new_agent(self.final())
            case "end":
                self.ending.pop(0)
            case "create":
                self.current = Pod(next(self._numbers))
            case "delete":
                self.delete()
            case "progress" if self.current:
                self.current.steps += 1

    def delete(self) -> None:
        """Delete the pod at once, as with --force."""
        assert self.current
        self.ending += [self.current] if self.current.has_sandbox else []
        self.current = None

    def observe(self) -> None:
        """Run a pass of the agent."""
        current = [self.current] if self.current else []
        running = [pod.uid for pod in (*self.ending, *current) if pod.has_sandbox]
        containers = tuple(SeenContainer(uid, Owner(uid, "c"), State.RUNNING, EMPTY) for uid in running)
        pods = tuple(pod.shown() for pod in current)
        self.agent.follow(Observed(FLAT, FLAT.online, pods, containers), dict.fromkeys(running, NAME))

    async def look(self) -> None:
        """Ask the kubelet once, and compare what the agent knows with what each pod has."""
        await self.agent._ask()  # without waiting for the rate limit
        there = {pod.uid for pod in (*self.ending, *filter(None, [self.current]))}
        for owner, devices in self.agent.known().items():
            if owner.pod_uid in there:  # the next pass drops pods that do not exist any more
                assert {device.nodes for device in devices} == {CPUSet([int(owner.pod_uid)])}
        for owner, devices in self.final().items():
            assert len(devices) == 2 or owner.pod_uid not in there


@pytest.mark.parametrize("seed", range(20))
def test_a_recreated_pod_has_its_own_devices(seed: int) -> None:
    """In ten histories of each seed no pod gets the devices of another, or one as if it were all; the last one gets its own."""

    async def history(random: Random) -> None:
        node = Node(random)
        for _ in range(60):
            node.change()
            if random.random() < 0.5:
                await node.look()
        last = node.current = node.current or Pod(999)
        node.is_empty, node.ending = False, []
        last.steps = 4
        node.observe()
        node.random = Quiet()
        await node.look()
        assert Owner(last.uid, "c") in node.final()

    for number in range(10):
        asyncio.run(history(Random(f"{seed}/{number}")))  # noqa: S311 - the same histories in every run


class Quiet(Random):
    """A random source that never lets the node change while an answer is on its way."""

    def choice(self, _given: object) -> int:  # type: ignore[override]
        """Return none."""
        return 0
