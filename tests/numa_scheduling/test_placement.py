"""A pod under `single` goes to the node where one NUMA node has its CPUs; other pods go as they would without us."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.environments.server.apiserver import ApiServer
from tests.numa_scheduling.numa_nodes import REQUIRE, SINGLE, NUMACluster, NUMANode

pytestmark = pytest.mark.server


@pytest.fixture
def cluster(scheduled: ApiServer) -> Iterator[NUMACluster]:
    """Return a cluster without nodes."""
    with NUMACluster.on(scheduled) as cluster:
        yield cluster


@pytest.fixture
def split(cluster: NUMACluster) -> NUMANode:
    """Return a node with 7 CPUs free, of which no NUMA node has more than 6."""
    node = cluster.node("split")
    for cpus in (2, 5):
        cluster.create(cpus, SINGLE, node=node.name)
    free = node.publish()
    assert (sum(free), max(free) < 7) == (7, True)
    return node


@pytest.fixture
def whole(cluster: NUMACluster) -> NUMANode:
    """Return a node with 8 CPUs free, all on one NUMA node; the scheduler would rather fill the other one."""
    node = cluster.node("whole")
    cluster.create(6, SINGLE, node=node.name)
    cluster.create(1, node=node.name)  # it requests a CPU of the shared set
    assert node.publish() == [0, 8]
    return node


@pytest.mark.parametrize("memory", ["", "1Gi"], ids=["Burstable", "Guaranteed"])
def test_it_goes_where_one_numa_node_has_its_cpus(
    cluster: NUMACluster, split: NUMANode, whole: NUMANode, memory: str
) -> None:
    """Of two nodes with 7 free CPUs the scheduler picks the one with 7 on one NUMA node, whatever the QoS class."""
    pod = cluster.create(7, SINGLE, memory=memory)
    assert cluster.placed(pod) == whole.name
    assert whole.publish() == [0, 1]


def test_it_waits_until_one_numa_node_has_its_cpus(cluster: NUMACluster, split: NUMANode) -> None:
    """A pod waits with the scheduler's message until the agent publishes enough free CPUs on one NUMA node."""
    pod = cluster.create(7, SINGLE)
    cluster.refused(pod, "cannot align container")
    for held in cluster.pods_on(split.name).values():
        cluster.delete((held["metadata"] or {})["name"] or "")
    assert split.publish() == [6, 8]
    assert cluster.placed(pod) == split.name


def test_others_go_as_they_would_without_us(cluster: NUMACluster, split: NUMANode) -> None:
    """Pods without `single` are scheduled without regard to NUMA nodes, whatever their size."""
    for pod in (cluster.create(9, memory="48Gi"), cluster.create(0)):
        assert cluster.placed(pod) == split.name


@pytest.mark.parametrize(
    ("zone", "cpus", "memory"),
    [
        pytest.param({"memory": "64Gi"}, 1, "", id="no cpu, Burstable"),
        pytest.param({"cpu": "16"}, 1, "1Gi", id="no memory, Guaranteed"),
        pytest.param({"cpu": "8", "memory": "32Gi"}, 9, "1Gi", id="those of the NUMA node, Guaranteed"),
    ],
)
def test_why_zones_name_cpu_and_memory_of_the_whole_node(
    cluster: NUMACluster, split: NUMANode, zone: dict[str, str], cpus: int, memory: str
) -> None:
    """Zones that lack the whole node's CPU or memory make the filter refuse other pods; the published ones do not."""
    resources = [
        {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
        for name, amount in zone.items()
    ]
    zones = [{"name": f"node-{at}", "type": "Node", "resources": resources} for at in (0, 1)]
    cluster.send("PATCH", split.topology, {"zones": zones})
    pod = cluster.create(cpus, memory=memory)
    cluster.refused(pod, "cannot align container")
    split.publish()
    assert cluster.placed(pod) == split.name


def test_an_odd_count_of_whole_cores_is_counted(cluster: NUMACluster) -> None:
    """A pod of 3 CPUs in whole cores is counted as two cores, so that the fourth one waits while 7 CPUs look free."""
    node = cluster.node("only")
    node.publish()
    first, *_ = pods = [cluster.create(3, REQUIRE)]
    assert cluster.placed(first) == node.name  # the scheduler has seen the count, and each next pod finds it
    pods += [cluster.create(3, REQUIRE) for _ in range(2)]
    assert {cluster.placed(pod) for pod in pods} == {node.name}
    fourth = cluster.create(3, REQUIRE)
    cluster.refused(fourth, "Insufficient corepin.io/whole-cores")
    assert sorted(node.publish()) == [0, 2]
    cluster.delete(first)
    node.publish()
    assert cluster.placed(fourth) == node.name
