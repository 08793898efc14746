"""What a pass knows without listing the runtime: containers known from events, and the free devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent.reconcile.reconciler import Settings
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.serving import quiet, serving
from tests.pinning.world import Wish

PLAIN, TWO = Wish("500m"), Wish("2", policy="exclusive")


@pytest.fixture
def lists(node: FakeNode) -> list[None]:
    """Count the list calls of a runtime with complete events, on a node with an owner and a plain pod."""
    node.add("owner", TWO)
    node.add("plain", PLAIN)
    node.start("owner")
    node.start("plain")
    node.run(passes=2)
    listed: list[None] = []
    containers = node.runtime.containers

    async def counted() -> Any:
        listed.append(None)
        return await containers()

    node.runtime.containers = counted  # type: ignore[method-assign]
    know(node)
    return listed


def know(node: FakeNode) -> None:
    """Let the agent know from events all containers that the runtime has now."""
    node.runtime.known = tuple(node.containers.values())


def of(node: FakeNode, uid: str) -> str:
    """Return the id of a pod's container."""
    return next(key for key, container in node.containers.items() if container.pod_uid == uid)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="nothing"),
        pytest.param(lambda node: node.add("new", PLAIN), id="plain-pod-comes"),
        pytest.param(lambda node: node.documents.pop("plain"), id="plain-pod-goes"),
        pytest.param(lambda node: node.stop(of(node, "plain")), id="plain-container-ends"),
    ],
)
def test_plain_pod_needs_no_list(
    node: FakeNode, lists: list[None], change: Callable[[FakeNode], object]
) -> None:
    """A pass that moves no container does not list the runtime."""
    change(node)
    know(node)
    node.run()
    assert lists == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda node: node.add("new", TWO), id="owner-comes"),
        pytest.param(lambda node: node.add("owner", PLAIN), id="owner-edited"),
        pytest.param(lambda node: node.start("plain"), id="container-elsewhere"),
    ],
)
def test_runtime_is_listed_before_a_move(
    node: FakeNode, lists: list[None], change: Callable[[FakeNode], object]
) -> None:
    """A pass lists the runtime if a pod gets or frees CPUs, or a container runs on wrong CPUs."""
    change(node)
    know(node)
    node.run()
    assert lists == [None]


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        pytest.param(lambda node: node.add("new", TWO), ["list", "plan"], id="owner-comes"),
        pytest.param(lambda node: node.add("new", PLAIN), ["plan"], id="plain-pod-comes"),
    ],
)
async def test_change_of_an_owner_is_planned_once(
    node: FakeNode, lists: list[None], change: Callable[[FakeNode], object], calls: list[str]
) -> None:
    """The pass after a change that assigns or frees CPUs lists the runtime first, so that it observes and plans only once."""
    lists.clear()
    made: list[str] = []
    node.container_watch = FakeWatch(node)
    async with serving(node) as (agent, reports):
        await reports.until(lambda state: state.is_synchronised)
        node.pods.changed()
        await quiet(agent)
        plan = agent.reconciler._plan
        agent.reconciler._plan = lambda *seen: (made.append("plan"), plan(*seen))[1]  # type: ignore[func-returns-value, method-assign]
        lists.clear()
        change(node)
        know(node)
        reports.states.clear()
        node.pods.changed()
        await reports.until(lambda state: len(state.pods) == len(node.documents))
    assert sorted(made + ["list" for _ in lists]) == calls


def test_lost_event_frees_no_cpus(node: FakeNode, lists: list[None]) -> None:
    """The CPUs of a deleted pod stay assigned if an event was lost and the runtime still lists the pod's container."""
    running = of(node, "owner")
    node.runtime.known = tuple(container for key, container in node.containers.items() if key != running)
    del node.documents["owner"]
    state = node.run()
    assert (node.cpus(running), lists) == ("1,5", [None])
    assert state.ledger.exclusive
    node.stop(running)
    know(node)
    assert not node.run().ledger.exclusive


def test_foreign_write_is_counted_once_beside_a_list(node: FakeNode, lists: list[None]) -> None:
    """If a pass reads the cgroups twice, it counts a foreign write once."""
    node.cpusets[node.cgroup(of(node, "plain"))] = node.topology.online
    node.run()
    assert lists == [None]
    assert node.agent.reconciler.metrics.rewrites._value.get() == 1


def test_runtime_that_fails_to_list_frees_nothing(node: FakeNode, lists: list[None]) -> None:
    """If the runtime cannot be listed, CPUs are not freed on events alone."""
    node.stop(of(node, "owner"))
    know(node)
    del node.documents["owner"]
    node.runtime.down = True
    assert node.run().ledger.exclusive
    assert lists == [None]
    node.runtime.down = False
    assert not node.run().ledger.exclusive
    assert node.containers[of(node, "owner")].state is State.EXITED


KINDS = {"nvidia.com/gpu": {CPUSet([0]): 1}}
NONE, STATIC = KubeletPolicy.NONE, KubeletPolicy.STATIC


@pytest.mark.parametrize(
    ("policy", "memory", "binds", "is_lowest_first"),
    [
        pytest.param("none", NONE, False, False, id="none"),
        pytest.param("", NONE, False, False, id="not known"),
        pytest.param("later", NONE, False, False, id="a later kubelet's"),
        pytest.param("best-effort", NONE, False, True, id="best-effort"),
        pytest.param("restricted", NONE, False, True, id="restricted"),
        pytest.param("single-numa-node", NONE, False, True, id="single-numa-node"),
        pytest.param("best-effort", STATIC, False, False, id="a Memory Manager by configz"),
        pytest.param(
            "best-effort", KubeletPolicy.UNKNOWN, False, False, id="a Memory Manager that is not known"
        ),
        pytest.param("best-effort", NONE, True, False, id="a Memory Manager by its state"),
    ],
)
def test_how_the_kubelet_chooses(
    policy: str, memory: KubeletPolicy, *, binds: bool, is_lowest_first: bool
) -> None:
    """The kubelet chooses devices of the lowest NUMA node first only if its topology manager aligns devices."""
    settings = Settings("node-1", NodeConfig(), memory_policy=memory, topology_manager=policy)
    config = NodeConfig(near_ignore=("*/kvm",), kubelet_binds_memory=binds)
    assert settings.free_devices(KINDS, config) == FreeDevices(KINDS, ("*/kvm",), is_lowest_first)
    assert settings.free_devices(None, config) is None


def test_a_state_has_the_free_devices(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has the free devices that are known at the end of the pass, or None without a kubelet."""
    assert node.run().free_devices is None
    monkeypatch.setattr(node.devices, "free", lambda: KINDS)
    assert node.run().free_devices == FreeDevices(KINDS)
