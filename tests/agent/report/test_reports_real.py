"""Every report against a real kube-apiserver, read back with kubectl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import count
from typing import Any

import pytest
import yaml

from agent.clock import Clock
from agent.config import NodeOptions
from agent.node_state import NodeState
from agent.pod_watch import PodWatch
from agent.report.cmk_config_map import PoolReport
from agent.report.event_recorder import EventReport
from agent.report.node import NodeReport
from agent.report.pod_status import PodReport
from agent.report.publisher import Later, Reporter
from apiserver.client import Access, Api
from pinning.machine.topology import Topology
from pinning.pods.types import Pod
from tests.agent.states import EXCLUSIVE, ISOLATE, MACHINE, state_of
from tests.servers.apiserver import ApiServer
from tests.servers.catalog import NEWEST

pytestmark = pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
CORES = "cmk.intel.com/exclusive-cores"
OTHERS = ("cmk.intel.com/exclusive-non-isolcpus-cores", "corepin.io/isolated-cores")
KUBEVIRT = ("cpumanager", "kubevirt.io/cpumanager")
SECONDS = 60.0
_numbers = count(1)


class Cluster:
    """One node of the test's own, with kubectl."""

    def __init__(self, server: ApiServer, namespace: str, node: str) -> None:
        self.server = server
        self.namespace = namespace
        self.node = node

    def api(self) -> Api:
        """Return a client as the agent has one."""
        token = self.server.directory / "admin.token"
        token.write_text(self.server.admin_token)
        return Api(Access(self.server.url, self.server.ca_file, token))

    def get(self, *args: str) -> Any:
        """Return what `kubectl get -o json` shows."""
        return json.loads(self.server.kubectl("get", *args, "-o", "json").stdout)

    def shown(self) -> Any:
        """Return the node."""
        return self.get("node", self.node)

    def patch_status(self, **status: Any) -> None:
        """Patch the node's status as the kubelet does."""
        body = json.dumps({"status": status})
        self.server.kubectl(
            "patch", "node", self.node, "--subresource=status", "--type=strategic", "-p", body
        )

    def add_pod(
        self,
        name: str,
        annotations: Mapping[str, str] | None = None,
        *,
        cpus: int | None = 2,
        cores: int | None = None,
    ) -> None:
        """Create a pod on the node."""
        limits: dict[str, Any] = {"cpu": cpus} if cpus else {}
        if cores:
            limits[CORES] = cores
        container = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}
        metadata = {"name": name, "namespace": self.namespace, "annotations": dict(annotations or {})}
        spec = {"nodeName": self.node, "containers": [container], "terminationGracePeriodSeconds": 0}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        self.server.kubectl("create", "-f", "-", input=json.dumps(document))


@pytest.fixture
def cluster(apiserver: ApiServer, namespace: str) -> Iterator[Cluster]:
    """Return a cluster with a node that has a label and a taint of somebody else."""
    name = f"report-{next(_numbers)}"
    taints = [
        {"key": "others", "value": "1", "effect": "NoSchedule"},
        {"key": "corepin.io/agent-not-ready", "effect": "NoSchedule"},
    ]
    metadata = {"name": name, "labels": {"other": "label"}, "annotations": {"other": "annotation"}}
    document = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}}
    apiserver.kubectl("create", "-f", "-", input=json.dumps(document))
    made = Cluster(apiserver, namespace, name)
    made.patch_status(
        capacity={"cpu": "8"},
        allocatable={"cpu": "7"},
        conditions=[{"type": "Ready", "status": "True", "reason": "x", "message": "y"}],
    )
    yield made
    apiserver.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force", check=False)
    apiserver.kubectl("delete", "node", name)


class Agent:
    """The source of pods and a way to wait for it, as the agent has them."""

    def __init__(self, cluster: Cluster, api: Api) -> None:
        self.cluster = cluster
        self.api = api
        self.pods = PodWatch(api, cluster.node)
        self.changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for pods that make a condition true."""
        async with asyncio.timeout(SECONDS):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def count(self, number: int) -> None:
        """Wait for a number of pods."""
        await self.until(lambda: self.pods.complete and len(self.pods.pods()) == number)

    def state(self, **more: Any) -> NodeState:
        """Return the state of the node with the pods that are seen now, all applied."""
        return state_of(*self.pods.pods().values(), node=self.cluster.node, **more)


def run(cluster: Cluster, act: Callable[[Agent], Awaitable[None]]) -> None:
    """Run a coroutine with an agent that watches the node's pods."""

    async def main() -> None:
        agent = Agent(cluster, cluster.api())
        watching = asyncio.create_task(agent.pods.watch(agent.changed.set))
        try:
            await act(agent)
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            await agent.api.close()

    asyncio.run(main())


def test_pods_are_told_once_and_again_when_they_change(cluster: Cluster) -> None:
    """One PATCH a change; annotations of others stay; what holds nothing any more loses the annotation."""
    cluster.add_pod("a", {"note": "mine", **EXCLUSIVE})
    cluster.add_pod("b")

    async def act(agent: Agent) -> None:
        await agent.count(2)
        report = PodReport(agent.api, cluster.node, agent.pods)
        before = agent.api.requests
        for _ in range(3):
            await report.publish(agent.state())
        assert agent.api.requests - before == 1
        annotations = cluster.get("pod", "a", "-n", cluster.namespace)["metadata"]["annotations"]
        assert annotations["note"] == "mine"
        main = json.loads(annotations["status.corepin.io/cpus"])["containers"]["main"]
        assert (main["cpus"], main["pinned"], main["applied"]["cpus"]) == ("1,5", True, "1,5")
        assert "annotations" not in cluster.get("pod", "b", "-n", cluster.namespace)["metadata"]
        cluster.server.kubectl(
            "annotate", "pod/a", "-n", cluster.namespace, "cpu-manager.corepin.io/pod=none", "--overwrite"
        )
        await agent.until(
            lambda: any("none" in str(pod.get("metadata")) for pod in agent.pods.pods().values())
        )
        before = agent.api.requests
        await report.publish(agent.state())
        assert agent.api.requests - before == 1
        assert cluster.get("pod", "a", "-n", cluster.namespace)["metadata"]["annotations"] == {
            "note": "mine",
            "cpu-manager.corepin.io/pod": "none",
        }

    run(cluster, act)


def fill(cluster: Cluster, name: str) -> None:
    """Create a pod whose annotations have all the bytes that they may have."""
    cluster.add_pod(name, {**EXCLUSIVE, "note": "x" * (256 * 1024 - 100)}, cpus=64)


def fill_to_the_brim(cluster: Cluster, name: str) -> None:
    """Create a pod to which etcd would add no hundred bytes."""
    resources = {"limits": {"cpu": "64"}, "requests": {"cpu": "64"}}
    main = {"name": "main", "image": "x", "resources": resources}
    pod: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": EXCLUSIVE},
    }
    with cluster.server.client() as client:
        for size in range(1_572_100, 1_570_000, -50):
            pod["spec"] = {"nodeName": cluster.node, "containers": [{**main, "args": ["x" * size]}]}
            if client.post(f"/api/v1/namespaces/{cluster.namespace}/pods", json=pod, timeout=60).is_success:
                return
    raise AssertionError("no size fits")


def told(cluster: Cluster, name: str) -> Any:
    """Return the status annotation of a pod, None when it has none."""
    metadata = cluster.get("pod", name, "-n", cluster.namespace)["metadata"]
    text = metadata.get("annotations", {}).get("status.corepin.io/cpus")
    return text and json.loads(text)


def test_pods_that_cannot_be_told_delay_no_other(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Full annotations, and no room in etcd: both are refused once, the pods after them are told, then they are, too."""
    fill(cluster, "a-full")
    fill_to_the_brim(cluster, "b-heavy")
    cluster.add_pod("c", EXCLUSIVE, cpus=64)
    now = [0.0]

    async def act(agent: Agent) -> None:
        await agent.count(3)
        report = PodReport(agent.api, cluster.node, agent.pods, Clock(monotonic=lambda: now[0]))
        for _ in range(3):
            with pytest.raises(Later, match="refused: 2 pods"):
                await report.publish(agent.state())
        assert report.writes == 1
        assert told(cluster, "c") is not None
        cluster.server.kubectl("annotate", "pod/a-full", "-n", cluster.namespace, "note-")
        newest = cluster.get("pod", "a-full", "-n", cluster.namespace)["metadata"]["resourceVersion"]
        await agent.until(lambda: newest in {version(pod) for pod in agent.pods.pods().values()})
        now[0] = 6.0
        with pytest.raises(Later, match="refused: 1 pods"):
            await report.publish(agent.state())
        assert told(cluster, "a-full") is not None

    run(cluster, act)
    assert caplog.messages.count("pod status not written") == 2


def version(pod: Pod) -> str:
    """Return the version of a pod."""
    return (pod["metadata"] or {})["resourceVersion"] or ""


def test_pod_that_is_over_loses_its_annotation(cluster: Cluster) -> None:
    """The watch shows it no more; it is still there, and says no longer that it holds CPUs."""
    cluster.add_pod("a", EXCLUSIVE)
    finished = json.dumps({"status": {"phase": "Succeeded"}})

    async def act(agent: Agent) -> None:
        await agent.count(1)
        report = PodReport(agent.api, cluster.node, agent.pods)
        await report.publish(agent.state())
        assert told(cluster, "a") is not None
        cluster.server.kubectl(
            "patch", "pod/a", "-n", cluster.namespace, "--subresource=status", "--type=merge", "-p", finished
        )
        await agent.count(0)
        await report.publish(agent.state())
        await report.publish(agent.state())
        assert (told(cluster, "a"), report.writes) == (None, 2)

    run(cluster, act)


def test_events_are_seen_by_kubectl(cluster: Cluster) -> None:
    """Pinned and Unpinnable stand at their pods; told again by a new agent they are counted, not repeated."""
    cluster.add_pod("a", EXCLUSIVE)
    cluster.add_pod("b", EXCLUSIVE, cpus=64)

    async def act(agent: Agent) -> None:
        await agent.count(2)
        for _ in range(2):
            report = EventReport(agent.api, cluster.node, agent.pods)
            await report.publish(agent.state())
            await report.publish(agent.state())

    run(cluster, act)
    events = {
        one["involvedObject"]["name"]: one for one in cluster.get("events", "-n", cluster.namespace)["items"]
    }
    assert {name: (one["reason"], one["type"], one["count"]) for name, one in events.items()} == {
        "a": ("Pinned", "Normal", 2),
        "b": ("Unpinnable", "Warning", 2),
    }
    assert (
        events["a"]["message"] == "container main runs on CPUs 1,5 (cpu exclusive, smt prefer, numa packed)"
    )
    assert "NotEnoughCPUs: wanted 64" in events["b"]["message"]
    described = cluster.server.kubectl("describe", "pod", "b", "-n", cluster.namespace).stdout
    assert "Unpinnable" in described


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until what kubectl shows is right; each look is a process, so looks are rare by themselves."""
    async with asyncio.timeout(SECONDS):
        while not await asyncio.to_thread(holds):
            pass


def test_the_node_is_told_and_kept_told(cluster: Cluster) -> None:
    """Annotations, labels, taints, condition and resources; foreign words survive; the kubelet's zeroes are mended."""
    cluster.add_pod("cores", cpus=None, cores=2)
    options = NodeOptions(frozenset({"CPUManager"}), cmk_taint=True)

    async def act(agent: Agent) -> None:
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

    run(cluster, act)
    node = cluster.shown()
    assert node["metadata"]["labels"] == {"other": "label"}
    assert node["metadata"]["annotations"] == {"other": "annotation"}
    assert taints(node) == [("others", "NoSchedule")]
    assert node["status"]["capacity"] == {"cpu": "8"}
    assert node["status"]["allocatable"] == {"cpu": "7"}
    assert [one["type"] for one in node["status"]["conditions"]] == ["Ready"]


def taints(node: Any) -> list[tuple[str, str]]:
    """Return the taints of a node, without those that Kubernetes itself puts on nodes that are not ready."""
    listed = ((one["key"], one["effect"]) for one in node["spec"]["taints"])
    return sorted(one for one in listed if not one[0].startswith("node.kubernetes.io/"))


def check_node(node: Any) -> None:
    """Hold a node with one pod that has two cores to what is said of it."""
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
        assert amounts == {"cpu": cpu, CORES: "3", OTHERS[0]: "1", OTHERS[1]: "1"}
    conditions = {one["type"]: one for one in node["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    assert conditions["CorepinKubeletPolicy"]["status"] == "False"
    assert conditions["CorepinSharedOvercommitted"]["status"] == "False"


def test_labels_of_kubevirt_set_by_hand_stay_without_the_gate(cluster: Cluster) -> None:
    """Without CPUManager among the feature gates these labels are never touched, not even by reset."""
    cluster.server.kubectl("label", "node", cluster.node, "cpumanager=mine")

    async def act(agent: Agent) -> None:
        await agent.count(0)
        report = NodeReport(agent.api, cluster.node, agent.pods, interval_seconds=0)
        await report.publish(agent.state())
        assert cluster.shown()["metadata"]["labels"]["cmk.intel.com/cmk-node"] == "true"
        await report.reset()

    run(cluster, act)
    assert cluster.shown()["metadata"]["labels"] == {"other": "label", "cpumanager": "mine"}


def test_a_taint_that_comes_meanwhile_is_not_lost(cluster: Cluster) -> None:
    """Somebody taints the node between our reading and our writing: the list is read again, both taints stay."""

    async def act(agent: Agent) -> None:
        await agent.count(0)
        report = NodeReport(
            agent.api, cluster.node, agent.pods, NodeOptions(cmk_taint=True), interval_seconds=0
        )
        report._answered = await report._newest()
        cluster.server.kubectl("taint", "node", cluster.node, "late=1:NoExecute")
        cluster.server.kubectl("taint", "node", cluster.node, "others-")
        await report.publish(agent.state())
        await report.publish(agent.state())

    run(cluster, act)
    assert taints(cluster.shown()) == [("cmk", "NoSchedule"), ("late", "NoExecute")]


def test_the_pools_are_mirrored_for_cmk(cluster: Cluster) -> None:
    """The ConfigMap is made, changed with the pools, read by YAML, silent without change, and emptied by reset."""
    cluster.add_pod("a", ISOLATE)
    name = f"cmk-config-{cluster.node}"

    def config() -> Any:
        return cluster.get("configmap", name, "-n", cluster.namespace).get("data", {})

    async def act(agent: Agent) -> None:
        await agent.count(1)
        report = PoolReport(agent.api, cluster.node, cluster.namespace, interval_seconds=0)
        await report.publish(agent.state())
        await report.publish(agent.state())
        assert report.writes == 1
        holder = f"{cluster.namespace}/a/main"
        assert yaml.safe_load(config()["config"]) == {
            "exclusive": {0: {"1,5": []}, 1: {"2,6": [holder], "3,7": [holder]}},
            "exclusive-non-isolcpus": {0: {}, 1: {}},
            "infra": {0: {"0,4,1,5": []}, 1: {}},
            "shared": {0: {"0,4,1,5": []}, 1: {}},
        }
        again = PoolReport(agent.api, cluster.node, cluster.namespace, interval_seconds=0)
        await again.reset()
        assert config() == {}
        await again.publish(agent.state())
        assert "config" in config()

    run(cluster, act)


def test_a_static_pod_is_told_at_its_mirror(cluster: Cluster) -> None:
    """The runtime knows it by a hash; annotation and event stand at the object of the API."""
    mirror = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "abc123"}
    cluster.add_pod("static", {**mirror, **EXCLUSIVE})

    async def act(agent: Agent) -> None:
        await agent.count(1)
        state = agent.state()
        assert [one.uid for one in state.pods] == ["abc123"]
        await PodReport(agent.api, cluster.node, agent.pods).publish(state)
        await EventReport(agent.api, cluster.node, agent.pods).publish(state)

    run(cluster, act)
    metadata = cluster.get("pod", "static", "-n", cluster.namespace)["metadata"]
    assert "status.corepin.io/cpus" in metadata["annotations"]
    [event] = cluster.get("events", "-n", cluster.namespace)["items"]
    assert event["involvedObject"]["uid"] == metadata["uid"]


def test_an_edit_costs_three_requests(cluster: Cluster) -> None:
    """One PATCH of the pod, one Event, one PATCH of the node; telling the same again costs nothing."""
    cluster.add_pod("a", EXCLUSIVE)
    cluster.add_pod("b", EXCLUSIVE)

    async def act(agent: Agent) -> None:
        await agent.count(2)
        reports: tuple[Reporter, ...] = (
            PodReport(agent.api, cluster.node, agent.pods),
            EventReport(agent.api, cluster.node, agent.pods),
            NodeReport(agent.api, cluster.node, agent.pods),
        )
        for report in reports:
            await report.publish(agent.state())
        cluster.server.kubectl(
            "annotate", "pod/a", "-n", cluster.namespace, "smt-policy.corepin.io/pod=require"
        )
        await agent.until(lambda: any("require" in str(pod) for pod in agent.pods.pods().values()))
        before, state = agent.api.requests, agent.state()
        for _ in range(2):
            for report in reports:
                await report.publish(state)
        assert agent.api.requests - before == 3
        for report in reports:
            await report.reset()

    run(cluster, act)
    for name in ("a", "b"):
        pod = cluster.get("pod", name, "-n", cluster.namespace)
        assert "status.corepin.io/cpus" not in pod["metadata"]["annotations"]
