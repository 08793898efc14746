"""A real kubelet with the static policy reports the CPUs it assigned to the agent, and alone writes its cpusets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from agent.cri.runtime import CRI
from agent.interfaces import HeldCPUs
from agent.kubelet.observed_cpus import KubeletAssignments
from agent.kubelet.pod_resources import PodResources, socket_beside
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.environments.node.node import Container, pod
from tests.environments.node.settings import kubelet_settings, until_observing
from tests.environments.waiting import SECONDS, until, until_equal
from tests.node.restarting import restart_kubelet

if TYPE_CHECKING:
    from tests.environments.node.node import Node


class Asked:
    """The kubelet and the runtime of a node, queried as the agent does."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._kubelet = PodResources(socket_beside(node.kubelet.cpu_manager_state), timeout_seconds=SECONDS)
        self._runtime = CRI(node.containerd.socket, timeout_seconds=SECONDS)
        self._assignments = KubeletAssignments(self._kubelet, self._runtime)

    async def exclusive(self) -> Mapping[str, CPUSet] | None:
        """Return the kubelet's answer."""
        return await self._kubelet.exclusive()

    async def held(self) -> dict[str, HeldCPUs]:
        """Return the CPUs held, by name of the pod; each container runs in its pod's cgroup of the node."""
        listed = [seen for seen in await self._runtime.containers() if seen.pid]
        confined = {seen.id: self._node.running(seen.pod).cpus for seen in listed}
        held = await self._assignments.read((seen, confined[seen.id]) for seen in listed)
        names = {seen.pod_uid: seen.pod for seen in listed}
        return {names[owner.pod_uid]: found for owner, found in held.items()}

    async def recorded(self) -> dict[str, CPUSet]:
        """Return the runtime's records, by the names of pods."""
        listed = [seen for seen in await self._runtime.containers() if seen.pid]
        cpus = await self._runtime.recorded_cpus(seen.id for seen in listed)
        return {seen.pod: cpus.get(seen.id, EMPTY) for seen in listed}


@pytest.fixture
def static(node: Node) -> Iterator[tuple[Container, Container]]:
    """Return a container with a CPU of the kubelet's, and one without, beside an agent that observes."""
    reserved = until("the agent knows its sets", lambda: node.agent.state()["sets"]["reserved"])
    with kubelet_settings(node, cpuManagerPolicy="static", reservedSystemCPUs=reserved):
        until_observing(node)
        with nothing_written(node):
            own, other = node.run(guaranteed("own"), pod("other"))
            until_equal("the kubelet's choice", lambda: (len(own.cpus), own.cpus & other.cpus), (1, EMPTY))
            yield own, other


@contextmanager
def nothing_written(node: Node) -> Iterator[None]:
    """Check that the agent writes no cpuset during the block, by cgroup or by runtime."""
    before = node.agent.metric("corepin_agent_cpuset_writes_total")
    yield
    assert node.agent.metric("corepin_agent_cpuset_writes_total") == before


def guaranteed(name: str) -> dict[str, object]:
    """Return a pod to which the kubelet gives a CPU."""
    document = pod(name, cpu="1")
    resources = document["spec"]["containers"][0]["resources"]
    resources["limits"]["memory"] = resources["requests"]["memory"] = "50Mi"
    return document


async def test_pod_resources_have_the_kubelets_assignment(
    node: Node, static: tuple[Container, Container]
) -> None:
    """PodResources has a container's exclusive CPUs, as kernel and runtime have them, also after a restart."""
    own, other = static

    asked = Asked(node)
    expected = {
        "own": HeldCPUs(own.cpus, is_exclusive=True),
        "other": HeldCPUs(other.cpus, is_exclusive=False),
    }
    assert await asked.exclusive() == {"default/own/main": own.cpus, "default/other/main": EMPTY}
    assert await asked.held() == expected
    assert await asked.recorded() == {"own": own.cpus, "other": other.cpus}
    restart_kubelet(node)  # not in another thread, with which the kubelet would end
    while (found := await asked.exclusive()) is None or len(found) < len(expected):
        await asyncio.sleep(0.05)
    assert await asked.held() == expected


async def test_assignments_are_kept_while_the_kubelet_is_down(
    node: Node, static: tuple[Container, Container]
) -> None:
    """While the kubelet is down known assignments are kept; a new reader finds only the cpusets."""
    own, other = static

    asked, late = Asked(node), Asked(node)
    try:
        before = await asked.held()
        node.kubelet.stop()
        assert await asked.exclusive() is None
        assert await asked.held() == before
        assert await late.held() == {
            "own": HeldCPUs(own.cpus, is_exclusive=None),
            "other": HeldCPUs(other.cpus, is_exclusive=None),
        }
    finally:
        node.kubelet.start()
