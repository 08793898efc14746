"""Node reports against a real kube-apiserver, read with kubectl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from agent.config import NodeOptions
from agent.report.node import NodeReport
from agent.report.resource_slices import SLICES
from apiserver.client import Api
from pinning.contract import DRA_CAPACITY, DRA_DRIVER
from pinning.dra.groups import MOST_DEVICES, request_policy
from pinning.machine.topology import Topology
from tests.agent.report.real_cluster import CORES, SECONDS, Cluster, agent_of
from tests.agent.states import MACHINE
from tests.environments.server.catalog import NEWEST

pytestmark = pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
OTHERS = (
    "cmk.intel.com/exclusive-non-isolcpus-cores",
    "corepin.io/isolated-cores",
    "corepin.io/whole-cores",
    "corepin.io/numa-cpus",
)
KUBEVIRT = ("cpumanager", "kubevirt.io/cpumanager")


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until the condition holds; each check runs kubectl, which limits the rate."""
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(holds):
            pass


async def test_node_is_written_and_restored(cluster: Cluster) -> None:
    """The node is written once, fields of other programs are kept, and overwritten ones are restored."""
    cluster.add_pod("cores", cpus=None, cores=2)
    options = NodeOptions(frozenset({"CPUManager"}), cmk_taint=True)
    async with agent_of(cluster) as agent:
        await agent.count(1)
        report = NodeReport(agent.api, cluster.node, agent.pods, options, interval_seconds=0.05)
        await report.publish(agent.state(complete=False))
        assert report.writes == 0
        await report.publish(agent.state())
        assert report.writes == 2
        await report.publish(agent.state())
        assert report.writes == 2
        check_node(cluster.shown())
        zeroes = dict.fromkeys((CORES, *OTHERS), "0")
        await asyncio.to_thread(cluster.patch_status, capacity=zeroes, allocatable=zeroes)
        await eventually(lambda: cluster.shown()["status"]["allocatable"].get(CORES) == "3")
        check_node(cluster.shown())
        assert report.writes == 3
        label = "kubevirt.io/cpumanager"
        await asyncio.to_thread(
            cluster.server.kubectl, "label", "node", cluster.node, f"{label}=false", "--overwrite"
        )
        await eventually(lambda: cluster.shown()["metadata"]["labels"][label] == "true")
        assert report.writes == 4
        await report.reset()
    node = cluster.shown()
    assert node["metadata"]["labels"] == {"other": "label"}
    assert node["metadata"]["annotations"] == {"other": "annotation"}
    assert taints(node) == [("others", "NoSchedule")]
    assert node["status"]["capacity"] == {"cpu": "8"}
    assert node["status"]["allocatable"] == {"cpu": "7"}
    assert [condition["type"] for condition in node["status"]["conditions"]] == ["Ready"]


def taints(node: Any) -> list[tuple[str, str]]:
    """Return the taints of a node, without those that Kubernetes sets on nodes that are not ready."""
    return sorted(
        (taint["key"], taint["effect"])
        for taint in node["spec"]["taints"]
        if not taint["key"].startswith("node.kubernetes.io/")
    )


def check_node(node: Any) -> None:
    """Check the fields of a node with one pod that has two cores."""
    labels, annotations = node["metadata"]["labels"], node["metadata"]["annotations"]
    assert labels == {"other": "label", "cmk.intel.com/cmk-node": "true", **dict.fromkeys(KUBEVIRT, "true")}
    assert annotations["other"] == "annotation"
    assert Topology.from_dict(json.loads(annotations["status.corepin.io/topology"])) == MACHINE
    pools = json.loads(annotations["status.corepin.io/pools"])
    [(name, held)] = pools["owners"].items()
    assert name.endswith("/cores/main")
    assert (held["cpus"], pools["free"], pools["shared"]) == ("1-2,5-6", "3,7", "0,3-4,7")
    assert taints(node) == [("cmk", "NoSchedule"), ("others", "NoSchedule")]
    for amounts, cpu in ((node["status"]["capacity"], "8"), (node["status"]["allocatable"], "7")):
        assert amounts == {"cpu": cpu, CORES: "3", **dict(zip(OTHERS, ("1", "1", "1", "2"), strict=True))}
    conditions = {condition["type"]: condition for condition in node["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    assert conditions["CorepinKubeletPolicy"]["status"] == "False"
    assert conditions["CorepinSharedOvercommitted"]["status"] == "False"


async def test_labels_of_kubevirt_set_by_hand_stay_without_the_gate(cluster: Cluster) -> None:
    """Without the CPUManager feature gate KubeVirt's labels are not changed, by reset neither."""
    cluster.server.kubectl("label", "node", cluster.node, "cpumanager=mine")
    async with agent_of(cluster) as agent:
        await agent.count(0)
        report = NodeReport(agent.api, cluster.node, agent.pods, interval_seconds=0)
        await report.publish(agent.state())
        assert cluster.shown()["metadata"]["labels"]["cmk.intel.com/cmk-node"] == "true"
        await report.reset()
    assert cluster.shown()["metadata"]["labels"] == {"other": "label", "cpumanager": "mine"}


async def test_a_taint_added_between_read_and_write_is_kept(cluster: Cluster) -> None:
    """If the taints change between read and write, the node is read again and the new taint is kept."""
    async with agent_of(cluster) as agent:
        await agent.count(0)
        report = NodeReport(
            agent.api, cluster.node, agent.pods, NodeOptions(cmk_taint=True), interval_seconds=0
        )
        report._answered = await report._newest()
        cluster.server.kubectl("taint", "node", cluster.node, "late=1:NoExecute")
        cluster.server.kubectl("taint", "node", cluster.node, "others-")
        await report.publish(agent.state())
        await report.publish(agent.state())
    assert taints(cluster.shown()) == [("cmk", "NoSchedule"), ("late", "NoExecute")]


LARGEST, STEPS = 512, (1, 2, 4, 8)


def device(value: int, step: int) -> dict[str, Any]:
    """Return a device of whole cores."""
    capacity = {DRA_CAPACITY: {"value": str(value), "requestPolicy": request_policy(value, step)}}
    return {"name": f"d{value}", "allowMultipleAllocations": True, "capacity": capacity}


@pytest.mark.parametrize("step", STEPS)
async def test_each_value_is_stored_as_it_is_written(cluster: Cluster, step: int) -> None:
    """Each amount is stored as written; 0 is left out, because a refused write would keep the old, larger amount."""
    values = range(step, LARGEST + 1, step)

    async def write(api: Api, some: list[int]) -> list[dict[str, Any]]:
        name = f"{cluster.node}-{step}-{some[0]}"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [device(value, step) for value in some]
        spec = {"driver": DRA_DRIVER, "nodeName": cluster.node, "pool": pool, "devices": devices}
        document = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }
        await api.create(SLICES, document)
        stored = await asyncio.to_thread(cluster.get, "resourceslice", name)
        assert stored["spec"]["devices"] == devices
        return devices

    api = cluster.server.api()
    try:
        written = [
            it
            for first in range(0, len(values), MOST_DEVICES)
            for it in await write(api, list(values[first : first + MOST_DEVICES]))
        ]
    finally:
        await api.close()
    assert len(written) == LARGEST // step
