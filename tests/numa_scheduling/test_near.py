"""A pod under `device-policy: require` goes to a node that has its CPUs beside any device that it may be given."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from pinning.planning.refusal import Reason
from tests.environments.server.apiserver import ApiServer
from tests.numa_scheduling.near_nodes import DEVICES, GPU, NEAR_GPU, NearCluster, NearNode

pytestmark = pytest.mark.server


@pytest.fixture
def cluster(stock: ApiServer) -> Iterator[NearCluster]:
    """Return a cluster without nodes."""
    with NearCluster.on(stock) as cluster:
        yield cluster


@pytest.fixture
def remote(cluster: NearCluster) -> NearNode:
    """Return a node with 29 free CPUs, of which 5 are beside its free GPUs, all on NUMA node 1."""
    node = cluster.node("remote")
    holder = cluster.create(19, gpus=1, node=node.name)
    node.give(cluster.uid(holder), {(GPU, "gpu7")})
    others = cluster.create(0, gpus=4, claims=False, node=node.name)
    node.give(cluster.uid(others), {it for it in DEVICES if it[0] == GPU and DEVICES[it] == 0})
    state = node.work()
    assert not state.refusals
    return node


def test_it_goes_where_cpus_are_beside_any_free_device(cluster: NearCluster, remote: NearNode) -> None:
    """A pod waits, naming the missing resource, until a node has enough CPUs beside any of its free devices."""
    pod = cluster.create(8, gpus=1)
    cluster.refused(pod, f"Insufficient {NEAR_GPU}")
    assert cluster.placed(cluster.create(8, gpus=2, claims=False)) == remote.name
    assert cluster.placed(cluster.create(5, gpus=1)) == remote.name
    whole = cluster.node("whole")
    assert not whole.work().refusals
    assert cluster.placed(pod) == whole.name
    assert not [*remote.work().refusals, *whole.work().refusals]


def test_without_the_count_it_is_refused_at_the_node(cluster: NearCluster, remote: NearNode) -> None:
    """A pod without the count is scheduled by free CPUs and GPUs alone, and the node's agent refuses it."""
    pod = cluster.create(8, gpus=1, counted=False)
    assert cluster.placed(pod) == remote.name
    assert [refusal.reason for refusal in remote.work().refusals] == [Reason.NOT_NEAR]


@pytest.mark.parametrize(
    ("is_best_effort", "pods", "at_once"), [(False, 200, 6), (True, 100, 1)], ids=["none", "best-effort"]
)
def test_no_pod_is_refused_at_its_node(
    cluster: NearCluster, *, is_best_effort: bool, pods: int, at_once: int
) -> None:
    """Of some hundred pods on two nodes no scheduled one is refused by its agent, under either topology policy.

    Under `best-effort` they come one at a time: a pod that takes the last device of a lower NUMA node changes which
    device the next one gets, and so the number. Pods that claim nothing, and pods of two devices without a claim, never wait for a number of ours.
    """
    random = Random(26)  # noqa: S311 - the same pods in every run
    nodes = [cluster.node(name, is_best_effort=is_best_effort, random=random) for name in ("one", "other")]
    running: list[str] = []
    made = claimed = 0
    while made < pods:
        while len(running) > 6 and random.random() < 0.7:
            cluster.delete(running.pop(random.randrange(len(running))))
        cluster.publish(nodes)
        batch = [_created(cluster, random) for _ in range(random.randint(1, at_once))]
        made += len(batch)
        for pod, claims in batch:
            name, reason = cluster.judged(pod)
            if name:
                running.append(pod)
                claimed += claims
                continue
            assert claims or "corepin.io" not in reason, reason
            cluster.delete(pod)
    for node in nodes:
        node.work()
    assert [node.refused for node in nodes] == [0, 0]
    assert claimed > made / 10  # how many find room depends on which pods ended before


def _created(cluster: NearCluster, random: Random) -> tuple[str, bool]:
    """Create a pod of a random kind; return its name, and whether it claims CPUs near devices."""
    kind = random.random()
    if kind < 0.6:
        return cluster.create(random.randint(2, 8), gpus=random.choice([1, 1, 2])), True
    if kind < 0.8:
        return cluster.create(random.randint(0, 2), gpus=2, claims=False), False
    return cluster.create(random.randint(0, 2), claims=False), False
