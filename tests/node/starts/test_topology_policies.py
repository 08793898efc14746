"""A real kubelet with two NUMA nodes under each topology manager policy: its devices, and the agent's CPUs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest

from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import CPUSet, union
from tests.environments.node.node import EXCLUSIVE, pod
from tests.environments.waiting import until, until_equal
from tests.node.device_plugin import device_plugin
from tests.node.starts.numa_nodes import (
    DEVICES,
    agent_of_nodes,
    allocatable,
    kubelet_of_nodes,
    plugins_folder,
    use_policy,
)
from tests.node.starts.over_nri import lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.environments.node.node import Node

GPU, NIC = "example.com/gpu", "example.com/nic"
PLUGGED: Final = {GPU: (0, 0, 0, 1, 1, 1), NIC: (1, 1)}
ONE_NODE: Final = frozenset({"best-effort", "restricted", "single-numa-node"})


@dataclass
class Scene:
    """The node, and its device plugins, which register again after each start of the kubelet."""

    node: Node
    plugins: ExitStack = field(default_factory=ExitStack)

    def use(self, policy: str) -> None:
        """Restart the kubelet with a policy, without the pods of a test before that failed."""
        self.node.clear()
        self.plugins.close()
        use_policy(self.node, policy)
        for resource, nodes in PLUGGED.items():
            self.plugins.enter_context(device_plugin(plugins_folder(self.node), resource, *nodes))
        for resource, nodes in PLUGGED.items():
            until_equal(
                "devices",
                lambda resource=resource: allocatable(self.node, resource),  # type: ignore[misc]
                str(len(nodes)),
            )

    def given(self, name: str) -> dict[str, CPUSet]:
        """Return the NUMA nodes of a container's devices by resource, as the agent publishes them."""
        told = until("devices", lambda: (self.node.status(name) or {}).get("devices"))
        return {it["resource"]: CPUSet(it["nodes"]) for it in told}

    def first(self, name: str) -> CPUSet:
        """Return the CPUs of a container's first instruction."""
        return CPUSet.parse(until("first line", lambda: lines(self.node, name))[0])


@pytest.fixture(scope="module")
def nodes_session(node_session: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Return the node whose agent and kubelet see several NUMA nodes."""
    if not Path("/sys/devices/system/node").exists():
        pytest.skip("the kernel of this machine does not report NUMA nodes, so there are none to replace")
    folder = tmp_path_factory.mktemp("n")
    with ExitStack() as stack:
        stack.enter_context(agent_of_nodes(node_session, folder))
        stack.enter_context(kubelet_of_nodes(node_session, folder / "kubelet"))
        found = Scene(node_session)
        stack.enter_context(found.plugins)
        yield found


@pytest.fixture
def scene(nodes_session: Scene) -> Iterator[Scene]:
    """Return the node without pods; those of the test are removed after it, also when it fails."""
    yield nodes_session
    nodes_session.node.clear()


def with_devices(name: str, word: str, devices: Mapping[str, int]) -> dict[str, Any]:
    """Return a pod with devices, and one CPU under a device policy; without a word it is BestEffort."""
    document = pod(name, {**EXCLUSIVE, DEVICES: word} if word else {}, cpu="1" if word else None)
    resources = document["spec"]["containers"][0]["resources"]
    more = {resource: str(count) for resource, count in devices.items()}
    resources["limits"] = resources["requests"] = {**resources["limits"], **more}
    return document


@pytest.mark.parametrize("policy", ["none", "best-effort", "restricted", "single-numa-node"])
def test_cpus_are_beside_what_the_kubelet_chose(scene: Scene, policy: str) -> None:
    """A container runs beside its devices, under `require` from the start on; all policies but `none` take the lowest node.

    They put a GPU and a NIC on one node. If no NUMA node has enough devices for a container, only
    `single-numa-node` rejects its pod, even a BestEffort pod without a claim.
    """
    node, cores = scene.node, [core.cpus for core in read_topology(Path("/")).cores]
    scene.use(policy)
    node.apply(with_devices("requires", "require", {GPU: 1}))
    own = scene.first("requires")
    place = scene.given("requires")[GPU]
    node.apply(
        with_devices("wide", "", {GPU: 5})
    )  # of two pods that come at once, the kubelet may admit either first
    assert own <= union(cores[number] for number in place)
    assert policy not in ONE_NODE or place == CPUSet([0])
    phase = until("the wide pod", lambda: ended_or_runs(node, "wide"))
    rejected = {"phase": "Failed", "reason": "TopologyAffinityError"}
    assert phase == (rejected if policy == "single-numa-node" else {"phase": "Running", "reason": ""})
    node.clear()

    [container] = node.run(with_devices("prefers", "prefer", {GPU: 1, NIC: 1}))
    places = scene.given("prefers")
    assert places[NIC] == CPUSet([1])
    assert policy not in ONE_NODE or places[GPU] == CPUSet([1])
    near = union(cores[number] for number in union(places.values()))
    until("beside its devices", lambda: container.cpus <= near)  # it may start before these are known
    refusals = [it["status"] for it in node.agent.state()["pods"] if it.get("refusal")]
    assert refusals == []


def ended_or_runs(node: Node, name: str) -> Mapping[str, str] | None:
    """Return the phase of a pod with its reason; None while it is pending."""
    status = (node.pod(name) or {}).get("status", {})
    found = {key: str(status.get(key, "")) for key in ("phase", "reason")}
    return None if found["phase"] in ("", "Pending") else MappingProxyType(found)
