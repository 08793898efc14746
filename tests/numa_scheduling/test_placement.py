"""A pod under `single` goes to the node where one NUMA node has its CPUs; other pods go as they would without us."""

from __future__ import annotations

import pytest

from tests.numa_scheduling.cluster import REQUIRE, SINGLE, Cluster, Node

pytestmark = pytest.mark.server


@pytest.fixture
def split(cluster: Cluster) -> Node:
    """Return a node with 7 CPUs free, of which no NUMA node has more than 6."""
    node = cluster.node("split")
    for cpus in (2, 5):
        cluster.create(cpus, SINGLE, node=node.name)
    free = node.publish()
    assert (sum(free), max(free) < 7) == (7, True)
    return node


@pytest.fixture
def whole(cluster: Cluster) -> Node:
    """Return a node with 8 CPUs free, all on one NUMA node; the scheduler would rather fill the other one."""
    node = cluster.node("whole")
    cluster.create(6, SINGLE, node=node.name)
    cluster.create(1, node=node.name)  # it requests a CPU of the shared set
    assert node.publish() == [0, 8]
    return node


@pytest.mark.parametrize("memory", ["", "1Gi"], ids=["Burstable", "Guaranteed"])
def test_it_goes_where_one_numa_node_has_its_cpus(
    cluster: Cluster, split: Node, whole: Node, memory: str
) -> None:
    """Both nodes have 7 CPUs free; the filter judges by each NUMA node, whatever the QoS class."""
    pod = cluster.create(7, SINGLE, memory=memory)
    assert cluster.placed(pod) == whole.name
    assert whole.publish() == [0, 1]


def test_it_waits_until_one_numa_node_has_its_cpus(cluster: Cluster, split: Node) -> None:
    """The scheduler says why, and places it as soon as the agent publishes that CPUs came free."""
    pod = cluster.create(7, SINGLE)
    assert "cannot align container" in cluster.refusal(pod)
    for held in cluster.pods_on(split.name):
        cluster.delete((held["metadata"] or {})["name"] or "")
    assert split.publish() == [6, 8]
    assert cluster.placed(pod) == split.name


def test_others_go_as_they_would_without_us(cluster: Cluster, split: Node) -> None:
    """Neither a Guaranteed pod larger than a NUMA node nor one without requests is judged by NUMA nodes."""
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
    cluster: Cluster, split: Node, zone: dict[str, str], cpus: int, memory: str
) -> None:
    """With anything else the filter refuses pods that ask for no NUMA node; with these it places them."""
    resources = [
        {"name": name, "capacity": amount, "allocatable": amount, "available": amount}
        for name, amount in zone.items()
    ]
    zones = [{"name": f"node-{at}", "type": "Node", "resources": resources} for at in (0, 1)]
    cluster.patch(split.topology, {"zones": zones})
    pod = cluster.create(cpus, memory=memory)
    assert "cannot align container" in cluster.refusal(pod)
    split.publish()
    assert cluster.placed(pod) == split.name


def test_an_odd_count_of_whole_cores_is_counted(cluster: Cluster) -> None:
    """Three pods of 3 CPUs take 6 of 7 cores: 7 of 16 CPUs look free to who counts requests, and a core is."""
    node = cluster.node("only")
    node.publish()
    pods = [cluster.create(3, REQUIRE) for _ in range(4)]
    for pod in pods[:3]:
        assert cluster.placed(pod) == node.name
    assert "Insufficient corepin.io/whole-cores" in cluster.refusal(pods[3])
    assert sorted(node.publish()) == [0, 2]
    cluster.delete(pods[0])
    node.publish()
    assert cluster.placed(pods[3]) == node.name
