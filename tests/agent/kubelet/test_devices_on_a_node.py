"""Random edits, restarts, failures of the socket, and pods of one name, with the agent's real parts on a node in memory.

SNC has four NUMA nodes of four CPUs; pods have a device on one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

import pytest

from agent.errors import Refused, TooLarge, Unavailable
from agent.kubelet.device_list import Name, Named
from agent.kubelet.devices import KubeletDevices
from agent.metrics import Metrics
from agent.node_state import NodeState
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.near import Device
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Observed, Owner, SeenContainer, SeenPod, State
from tests.agent.fakes import FakeNode
from tests.pinning.machines import FLAT
from tests.pinning.nodes import SNC
from tests.pinning.world import Wish

GPU = "nvidia.com/gpu"
WORDS = ("none", "prefer", "require")


class Kubelet:
    """A kubelet that names each pod's device once it has admitted the pod; `calls` counts."""

    def __init__(self) -> None:
        self.nodes: dict[str, int] = {}  # NUMA node of a pod's device, by uid
        self.admitted: set[str] = set()
        self.failure: Exception | None = None
        self.is_empty = False  # the kubelet has just started, and lists no pods yet
        self.calls = 0

    async def ask(self, pods: Collection[Name]) -> dict[Name, list[Named]]:
        """Answer a call."""
        self.calls += 1
        if self.failure:
            raise self.failure
        listed = {} if self.is_empty else self.nodes
        return {
            ("test", f"pod-{uid}"): [{"c0": (Device(GPU, CPUSet([node])),) if uid in self.admitted else ()}]
            for uid, node in listed.items()
            if ("test", f"pod-{uid}") in pods
        }


class Scene:
    """A node, its kubelet, and the agent, which may be killed."""

    def __init__(self, folder: Path) -> None:
        self.node = FakeNode(folder, SNC, NodeConfig(reserved=CPUSet([0])))
        self.kubelet = Kubelet()
        self.containers: dict[str, str] = {}
        self.restart()

    def restart(self) -> None:
        """Start an agent from the checkpoint."""
        clock = self.node.time
        keeper = KubeletDevices(self.kubelet, Metrics(), self.node.config, lambda: clock.now)  # type: ignore[arg-type]
        self.node.devices = self.keeper = keeper
        self.node.new_agent()

    def add(self, uid: str, numa_node: int, word: str = "prefer", cpu: str = "2") -> None:
        """Create a pod with a device; an existing one is edited."""
        self.node.add(uid, Wish(cpu, policy="exclusive", devices=word))
        (container,) = self.node.documents[uid]["spec"]["containers"]
        container["resources"]["limits"][GPU] = 1
        self.kubelet.nodes[uid] = numa_node

    def ask(self) -> None:
        """Let the agent ask the kubelet, if a pod waits."""
        self.node.time.now += 0.2
        if self.keeper._waiting:
            asyncio.run(self.keeper._ask())

    def start(self, uid: str) -> None:
        """Start the container of a pod."""
        self.containers[uid] = self.node.start(uid)

    def birth(self, uid: str, numa_node: int, word: str = "prefer", cpu: str = "2") -> None:
        """Create a pod, let the kubelet name its devices, and start its container."""
        self.add(uid, numa_node, word, cpu)
        self.node.run()
        self.kubelet.admitted.add(uid)
        self.ask()
        self.node.run()
        self.start(uid)
        self.node.run(2)

    def end(self, uid: str) -> None:
        """Delete a pod and its container."""
        self.node.remove(self.containers.pop(uid))
        del self.node.documents[uid], self.kubelet.nodes[uid]
        self.kubelet.admitted.discard(uid)
        self.node.run(2)

    def cpus(self, uid: str) -> CPUSet:
        """Return the CPUs of a container in the kernel."""
        return CPUSet.parse(self.node.cpus(self.containers[uid]))

    def homes(self) -> dict[str, CPUSet]:
        """Return the CPUs of all containers."""
        return {uid: self.cpus(uid) for uid in self.containers}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """Return a node."""
    scene = Scene(tmp_path)
    yield scene
    scene.node.close()


def refusal(state: NodeState, uid: str) -> str:
    """Return the reason of a container's refusal, empty if there is none."""
    (pod,) = (pod for pod in state.pods if pod.uid == uid)
    return next((str(it.refusal.reason) for it in pod.containers if it.refusal), "")


def near(numa_node: int) -> CPUSet:
    """Return the CPUs of a NUMA node."""
    return SNC.numa_nodes[numa_node]


def test_two_hundred_edits_reach_the_kernel_and_ask_nobody(scene: Scene) -> None:
    """An edited device policy is applied, or refused without free CPUs, and causes one call to the kubelet at most."""
    random = Random(26)  # noqa: S311 - the same edits in every run
    scene.birth("a", 2, "none")
    calls, blocked = scene.kubelet.calls, False
    assert calls == 0
    seen: set[tuple[str, bool, bool]] = set()
    for _ in range(200):
        if random.random() < 0.4:
            if blocked:
                scene.end("b")
                blocked = False
            elif not scene.cpus("a") & near(2):
                scene.birth("b", 2, "require", cpu="4")
                blocked = True
            calls = scene.kubelet.calls
        before, word = scene.cpus("a"), random.choice(WORDS)
        scene.add("a", 2, word)
        scene.node.run()
        scene.ask()
        state = scene.node.run(2)
        now = scene.cpus("a")
        is_near = now <= near(2)
        seen.add((word, blocked, is_near))
        if word == "none" or (blocked and not before <= near(2)):
            assert now == before
        elif word == "require":
            assert is_near
        assert (refusal(state, "a") == "KeepsOldPolicy") is (word == "require" and not is_near)
        if random.random() < 0.3:  # a `none` container may be anywhere
            scene.end("a")
            scene.birth("a", 2, "none")
            scene.kubelet.calls, calls = 0, 0
        assert scene.kubelet.calls - calls <= 1
        calls = scene.kubelet.calls
    assert {(word, blocked) for word, blocked, _ in seen} == {
        (word, it) for word in WORDS for it in (True, False)
    }
    assert ("require", True, False) in seen


def test_devices_are_asked_for_once_in_two_hundred_edits(scene: Scene) -> None:
    """A pod whose devices are known causes no further call, whatever its device policy becomes."""
    random = Random(7)  # noqa: S311 - the same edits in every run
    scene.birth("a", 2)
    assert scene.kubelet.calls == 1
    for _ in range(200):
        scene.add("a", 2, random.choice(WORDS))
        scene.node.run()
        scene.ask()
        assert scene.cpus("a") <= near(2)
    assert scene.kubelet.calls == 1


def test_homes_survive_fifty_restarts_of_the_kubelet_during_births(scene: Scene) -> None:
    """While a restarted kubelet lists no pods, no container moves and a new pod waits for its devices."""
    random = Random(50)  # noqa: S311 - the same order in every run
    for number in range(50):
        uid, numa_node = f"p{number}", random.randrange(4)
        word = random.choice(["prefer", "require"])
        if len(scene.containers) == 2:
            scene.end(random.choice(sorted(scene.containers)))
        before = scene.homes()
        scene.add(uid, numa_node, word, cpu="1")
        scene.node.run()
        scene.kubelet.is_empty = True
        for _ in range(random.randrange(1, 5)):
            scene.ask()
            scene.node.run()
            assert Owner(uid, "c0") not in scene.keeper.known()
            assert scene.homes() == before
        scene.kubelet.is_empty = False
        scene.kubelet.admitted.add(uid)
        scene.ask()
        scene.node.run()
        scene.start(uid)
        scene.node.run(2)
        assert scene.cpus(uid) <= near(numa_node)
        assert {other: scene.cpus(other) for other in before} == before


def test_an_agent_killed_at_a_hundred_moments_has_the_same_answers(scene: Scene) -> None:
    """After a kill the devices of running containers come from the checkpoint, and no container moves."""
    random = Random(100)  # noqa: S311 - the same moments in every run
    for number in range(100):
        uid, numa_node = f"p{number}", random.randrange(4)
        if len(scene.containers) == 2:
            scene.end(random.choice(sorted(scene.containers)))
        steps: list[Callable[[], object]] = [
            lambda uid=uid, at=numa_node: scene.add(uid, at, "require", cpu="1"),  # type: ignore[misc]
            scene.node.run,
            lambda uid=uid: scene.kubelet.admitted.add(uid),  # type: ignore[misc]
            scene.ask,
            scene.node.run,
            lambda uid=uid: scene.start(uid),  # type: ignore[misc]
            scene.node.run,
            scene.node.run,
        ]
        killed_after = random.randrange(len(steps))
        for at, step in enumerate(steps):
            step()
            if at != killed_after:
                continue
            before = scene.homes()
            answers = {owner: its for owner, its in scene.keeper.known().items() if owner.pod_uid in before}
            scene.restart()
            scene.kubelet.failure = Unavailable("no socket")
            scene.node.run(2)
            scene.ask()
            assert all(scene.keeper.known()[owner] == its for owner, its in answers.items())
            assert all(scene.homes()[other] == cpus for other, cpus in before.items() if other != uid)
            scene.kubelet.failure = None
            scene.ask()
            scene.node.run(2)
        scene.ask()
        scene.node.run(3)
        assert scene.cpus(uid) <= near(numa_node)


FAILURES = {
    "slow": Unavailable("no answer in 2.0 s"),
    "junk": Refused("the answer cannot be read"),
    "12 MB": TooLarge("received message larger than max"),
    "rate limited": Unavailable("rejected by rate limit"),
    "absent": Unavailable("no such file"),
}


@pytest.mark.parametrize("kind", [*FAILURES, "empty", "alternating"])
def test_sixty_seconds_of_a_failing_socket(scene: Scene, kind: str) -> None:
    """Without the kubelet a pod with `prefer` gets CPUs at once, and one with `require` is refused until it answers."""
    errors = list(FAILURES.values())
    for second in range(60):
        scene.kubelet.failure = errors[second % len(errors)] if kind == "alternating" else FAILURES.get(kind)
        scene.kubelet.is_empty = kind == "empty"
        scene.node.time.now += 1
        if second % 10:
            scene.ask()
            continue
        for uid in list(scene.containers):
            scene.end(uid)
        without, prefers, requires = (f"{word}{second}" for word in WORDS)
        for uid, word in ((without, "none"), (prefers, "prefer"), (requires, "require")):
            scene.add(uid, 2, word)
        scene.ask()
        state = scene.node.run()
        ledger = {(pod.uid, it.name): it.cpus for pod in state.pods for it in pod.containers if it.policy}
        assert {uid for uid, _ in ledger} == {without, prefers}
        assert refusal(state, requires) == "DevicesUnknown"
        for uid in (without, prefers):
            scene.start(uid)
        scene.node.run(2)
        assert scene.cpus(prefers) == ledger[prefers, "c0"]
        del scene.node.documents[requires], scene.kubelet.nodes[requires]
    scene.kubelet.failure, scene.kubelet.is_empty = None, False
    scene.birth("last", 3, "require")
    assert scene.cpus("last") <= near(3)


NIC = "example.com/nic"
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
