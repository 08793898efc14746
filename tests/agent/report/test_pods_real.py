"""Pod reports against a real kube-apiserver, read with kubectl."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
import yaml

from agent.clock import Clock
from agent.report.cmk_config_map import PoolReport
from agent.report.event_recorder import EventReport
from agent.report.node import NodeReport
from agent.report.pod_status import PodReport
from agent.report.publisher import Later, Reporter
from pinning.pods.types import Pod
from tests.agent.fake_api import publish
from tests.agent.report.real_cluster import Cluster, agent_of
from tests.agent.states import EXCLUSIVE, ISOLATE
from tests.environments.server.catalog import NEWEST

pytestmark = pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)


async def test_pods_are_patched_once_for_each_change(cluster: Cluster) -> None:
    """Each change is one PATCH that keeps other annotations; a pod without a claim loses the annotation."""
    cluster.add_pod("a", {"note": "mine", **EXCLUSIVE})
    cluster.add_pod("b")
    async with agent_of(cluster) as agent:
        await agent.count(2)
        report = PodReport(agent.api, cluster.node, agent.pods)
        before = agent.api.requests
        for _ in range(3):
            await report.publish(agent.state())
        assert agent.api.requests - before == 1
        annotations = (await metadata_of(cluster, "a"))["annotations"]
        assert annotations["note"] == "mine"
        main = json.loads(annotations["status.corepin.io/cpus"])["containers"]["main"]
        assert (main["cpus"], main["pinned"], main["applied"]["cpus"]) == ("1,5", True, "1,5")
        assert "annotations" not in await metadata_of(cluster, "b")
        await kubectl(cluster, "annotate", "pod/a", "cpu-manager.corepin.io/pod=none", "--overwrite")
        await agent.until(
            lambda: any("none" in str(pod.get("metadata")) for pod in agent.pods.pods().values())
        )
        before = agent.api.requests
        await report.publish(agent.state())
        assert agent.api.requests - before == 1
        assert (await metadata_of(cluster, "a"))["annotations"] == {
            "note": "mine",
            "cpu-manager.corepin.io/pod": "none",
        }


async def kubectl(cluster: Cluster, *args: str) -> None:
    """Run kubectl in a thread, so that the agent's connections continue."""
    await asyncio.to_thread(cluster.server.kubectl, *args, "-n", cluster.namespace)


async def metadata_of(cluster: Cluster, name: str) -> Any:
    """Return the metadata of a pod, read in a thread."""
    pod = await asyncio.to_thread(cluster.get, "pod", name, "-n", cluster.namespace)
    return pod["metadata"]


def fill(cluster: Cluster, name: str) -> None:
    """Create a pod whose annotations have the maximum size."""
    cluster.add_pod(name, {**EXCLUSIVE, "note": "x" * (256 * 1024 - 100)}, cpus=64)


def fill_to_the_brim(cluster: Cluster, name: str) -> None:
    """Create a pod that is a hundred bytes below etcd's size limit."""
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


async def annotation(cluster: Cluster, name: str) -> Any:
    """Return the status annotation of a pod, or None."""
    text = (await metadata_of(cluster, name)).get("annotations", {}).get("status.corepin.io/cpus")
    return text and json.loads(text)


async def test_refused_pods_do_not_delay_others(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    """Pods whose annotation or size is at the limit are refused and retried; others are written."""
    fill(cluster, "a-full")
    fill_to_the_brim(cluster, "b-heavy")
    cluster.add_pod("c", EXCLUSIVE, cpus=64)
    now = [0.0]
    async with agent_of(cluster) as agent:
        await agent.count(3)
        report = PodReport(agent.api, cluster.node, agent.pods, Clock(monotonic=lambda: now[0]))
        for _ in range(3):
            with pytest.raises(Later, match="refused: 2 pods"):
                await report.publish(agent.state())
        assert report.writes == 1
        assert await annotation(cluster, "c") is not None
        await kubectl(cluster, "annotate", "pod/a-full", "note-")
        newest = (await metadata_of(cluster, "a-full"))["resourceVersion"]
        await agent.until(lambda: newest in {version(pod) for pod in agent.pods.pods().values()})
        now[0] = 6.0
        with pytest.raises(Later, match="refused: 1 pods"):
            await report.publish(agent.state())
        assert await annotation(cluster, "a-full") is not None
    assert caplog.messages.count("pod status not written") == 2


def version(pod: Pod) -> str:
    """Return the resourceVersion of a pod."""
    return (pod["metadata"] or {})["resourceVersion"] or ""


async def test_finished_pod_loses_its_annotation(cluster: Cluster) -> None:
    """A finished pod that the watch no longer shows loses the annotation."""
    cluster.add_pod("a", EXCLUSIVE)
    finished = json.dumps({"status": {"phase": "Succeeded"}})
    async with agent_of(cluster) as agent:
        await agent.count(1)
        report = PodReport(agent.api, cluster.node, agent.pods)
        await report.publish(agent.state())
        assert await annotation(cluster, "a") is not None
        await kubectl(cluster, "patch", "pod/a", "--subresource=status", "--type=merge", "-p", finished)
        await agent.count(0)
        await report.publish(agent.state())
        await report.publish(agent.state())
        assert (await annotation(cluster, "a"), report.writes) == (None, 2)


async def test_events_are_seen_by_kubectl(cluster: Cluster) -> None:
    """Pinned and Unpinnable events are at their pods, and a restarted agent raises their count."""
    cluster.add_pod("a", EXCLUSIVE)
    cluster.add_pod("b", EXCLUSIVE, cpus=64)
    async with agent_of(cluster) as agent:
        await agent.count(2)
        for _ in range(2):
            report = EventReport(agent.api, cluster.node, agent.pods)
            await report.publish(agent.state())
            await report.publish(agent.state())
    events = {
        event["involvedObject"]["name"]: event
        for event in cluster.get("events", "-n", cluster.namespace)["items"]
    }
    assert {name: (event["reason"], event["type"], event["count"]) for name, event in events.items()} == {
        "a": ("Pinned", "Normal", 2),
        "b": ("Unpinnable", "Warning", 2),
    }
    assert (
        events["a"]["message"] == "container main runs on CPUs 1,5 (cpu exclusive, smt prefer, numa packed)"
    )
    assert "NotEnoughCPUs: wanted 64" in events["b"]["message"]
    described = cluster.server.kubectl("describe", "pod", "b", "-n", cluster.namespace).stdout
    assert "Unpinnable" in described


async def test_the_pools_are_mirrored_for_cmk(cluster: Cluster) -> None:
    """The ConfigMap is created, patched only on changes, valid YAML, and emptied by reset."""
    cluster.add_pod("a", ISOLATE)
    name = f"cmk-config-{cluster.node}"

    def config() -> Any:
        return cluster.get("configmap", name, "-n", cluster.namespace).get("data", {})

    async with agent_of(cluster) as agent:
        await agent.count(1)
        report = PoolReport(agent.api, cluster.node, cluster.namespace, interval_seconds=0)
        await publish(report, agent.state(), agent.state())
        assert report.writes == 1
        assert yaml.safe_load(config()["config"]) == {
            "exclusive": {0: {"1,5": []}, 1: {"2,6": ["1"], "3,7": ["1"]}},
            "exclusive-non-isolcpus": {0: {}, 1: {}},
            "infra": {0: {"0,4,1,5": []}, 1: {}},
            "shared": {0: {"0,4,1,5": []}, 1: {}},
        }
        again = PoolReport(agent.api, cluster.node, cluster.namespace, interval_seconds=0)
        await again.reset()
        assert config() == {}
        await publish(again, agent.state())
        assert "config" in config()


async def test_a_static_pod_is_reported_at_its_mirror(cluster: Cluster) -> None:
    """Annotation and event of a static pod refer to the mirror pod in the API."""
    mirror = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "abc123"}
    cluster.add_pod("static", {**mirror, **EXCLUSIVE})
    async with agent_of(cluster) as agent:
        await agent.count(1)
        state = agent.state()
        assert [pod.uid for pod in state.pods] == ["abc123"]
        await PodReport(agent.api, cluster.node, agent.pods).publish(state)
        await EventReport(agent.api, cluster.node, agent.pods).publish(state)
    metadata = cluster.get("pod", "static", "-n", cluster.namespace)["metadata"]
    assert "status.corepin.io/cpus" in metadata["annotations"]
    [event] = cluster.get("events", "-n", cluster.namespace)["items"]
    assert event["involvedObject"]["uid"] == metadata["uid"]


async def test_an_edit_costs_three_requests(cluster: Cluster) -> None:
    """One edit costs a PATCH of the pod, an Event and a PATCH of the node; repeating costs nothing."""
    cluster.add_pod("a", EXCLUSIVE)
    cluster.add_pod("b", EXCLUSIVE)
    async with agent_of(cluster) as agent:
        await agent.count(2)
        reports: tuple[Reporter, ...] = (
            PodReport(agent.api, cluster.node, agent.pods),
            EventReport(agent.api, cluster.node, agent.pods),
            NodeReport(agent.api, cluster.node, agent.pods),
        )
        for report in reports:
            await report.publish(agent.state())
        await kubectl(cluster, "annotate", "pod/a", "smt-policy.corepin.io/pod=require")
        await agent.until(lambda: any("require" in str(pod) for pod in agent.pods.pods().values()))
        before, state = agent.api.requests, agent.state()
        for _ in range(2):
            for report in reports:
                await report.publish(state)
        assert agent.api.requests - before == 3
        for report in reports:
            await report.reset()
    for name in ("a", "b"):
        pod = cluster.get("pod", name, "-n", cluster.namespace)
        assert "status.corepin.io/cpus" not in pod["metadata"]["annotations"]
