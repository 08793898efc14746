"""virt-handler beside the agent, on a real API server: its heartbeats set both labels to "false"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from agent.config import NodeOptions
from agent.metrics import Metrics
from agent.report.node import NodeReport
from agent.report.overwritten_labels import WINDOW_SECONDS, WRITES, OverwrittenLabels
from tests.agent.fakes import Time
from tests.agent.states import source, state_of
from tests.manifests.installed import HERE_NODE, STRATEGIC, Caller, Installed
from tests.manifests.requests import HERE

pytestmark = pytest.mark.server

CORES = "cmk.intel.com/exclusive-cores"
LABELS = ("cpumanager", "kubevirt.io/cpumanager")
SECONDS = 60.0
ACCOUNT, NAMESPACE = "kubevirt-handler", "demo"
RIGHTS = [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}]


@dataclass
class Handler:
    """A fake virt-handler that sends the heartbeat patch of a node without the kubelet's static policy."""

    caller: Caller
    beats: int = 0

    async def beat(self) -> None:
        """Send one heartbeat."""
        self.beats += 1
        metadata = {
            "labels": {"kubevirt.io/schedulable": "true", **dict.fromkeys(LABELS, "false")},
            "annotations": {"kubevirt.io/heartbeat": str(self.beats)},
        }
        answer = await asyncio.to_thread(self.caller.patch, HERE, {"metadata": metadata}, STRATEGIC)
        assert answer.is_success, answer.text


@dataclass
class Scene:
    """The agent's NodeReport with its own token, and the virt-handler of the same node."""

    installed: Installed
    handler: Handler
    report: NodeReport
    time: Time
    metrics: Metrics

    async def shown(self) -> Any:
        """Return the stored node."""
        return (await asyncio.to_thread(self.installed.admin.send, "GET", HERE)).json()

    async def until(self, holds: Callable[[Any], bool]) -> Any:
        """Wait until the node fulfils a condition."""
        async with asyncio.timeout(SECONDS):
            while not holds(node := await self.shown()):
                pass
        return node

    async def zero(self) -> None:
        """Set the node's exclusive cores to zero, as a kubelet does, and wait until the agent restores them."""
        body = {"status": {"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}}}
        answer = await asyncio.to_thread(self.installed.admin.patch, f"{HERE}/status", body, STRATEGIC)
        assert answer.is_success, answer.text
        await self.until(lambda node: node["status"]["allocatable"][CORES] == "3")

    @property
    def overwrites(self) -> float | None:
        """Return the agent's count of overwritten labels."""
        return self.metrics.registry.get_sample_value("corepin_agent_label_overwrites_total")


def handler_of(installed: Installed) -> Handler:
    """Return a virt-handler with an account that may patch nodes, like KubeVirt's."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT}
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    documents: list[dict[str, Any]] = [
        {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": ACCOUNT, "namespace": NAMESPACE}},
        {"kind": "ClusterRole", "rules": RIGHTS},
        {"kind": "ClusterRoleBinding", "roleRef": role, "subjects": [subject]},
    ]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": ACCOUNT}}
    text = "\n---\n".join(json.dumps({**rbac, **document}) for document in documents)
    installed.api.kubectl("apply", "-f", "-", input=text)
    installed.api.until_may_list(f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}", "nodes")
    token = installed.api.kubectl("-n", NAMESPACE, "create", "token", ACCOUNT).stdout.strip()
    return Handler(Caller(installed.client, token, {"User-Agent": "virt-handler"}))


@asynccontextmanager
async def beside(handler: Handler, installed: Installed) -> AsyncIterator[Scene]:
    """Send a heartbeat, let the agent publish its node, and yield both until the agent's reset."""
    api, time, metrics = installed.agent_api(), Time(), Metrics()
    labels = OverwrittenLabels(time.clock(), metrics)
    options = NodeOptions(frozenset({"CPUManager"}))
    report = NodeReport(api, HERE_NODE, source(), options, interval_seconds=0, labels=labels)
    scene = Scene(installed, handler, report, time, metrics)
    try:
        await handler.beat()
        await report.publish(state_of(node=HERE_NODE))
        await scene.until(is_true)
        yield scene
        await report.reset()
    finally:
        await api.close()
        gone = {"labels": {"kubevirt.io/schedulable": None}, "annotations": {"kubevirt.io/heartbeat": None}}
        assert installed.admin.patch(HERE, {"metadata": gone}).is_success


def values(node: Any) -> set[str]:
    """Return the values of the labels."""
    return {node["metadata"]["labels"][label] for label in LABELS}


def is_true(node: Any) -> bool:
    """Return whether both labels have the agent's values."""
    return values(node) == {"true"}


def test_every_heartbeat_is_answered_once(installed: Installed) -> None:
    """Each heartbeat of the handler is answered by one request that restores both labels and nothing else."""

    async def act() -> None:
        async with beside(handler_of(installed), installed) as scene:
            before = scene.report.writes
            for number in range(1, WRITES + 1):
                await scene.handler.beat()
                node = await scene.until(is_true)
                assert node["metadata"]["annotations"]["kubevirt.io/heartbeat"] == str(scene.handler.beats)
                assert node["metadata"]["labels"]["kubevirt.io/schedulable"] == "true"
                async with asyncio.timeout(SECONDS):
                    # The node is stored before the writer has the response.
                    while scene.report.writes < before + number:
                        await asyncio.sleep(0)
                assert (scene.report.writes - before, scene.overwrites) == (number, number)

    asyncio.run(act())


def test_label_writes_are_rate_limited(installed: Installed) -> None:
    """The agent writes the labels at most six times a minute, and then again in the next minute."""

    async def act() -> None:
        async with beside(handler_of(installed), installed) as scene:
            for _ in range(WRITES):
                await scene.handler.beat()
                await scene.until(is_true)
            await scene.handler.beat()
            await scene.zero()
            assert values(await scene.shown()) == {"false"}
            scene.time.now += WINDOW_SECONDS
            await scene.zero()
            await scene.until(is_true)

    asyncio.run(act())


def test_frequent_heartbeats_cost_six_requests_a_minute(installed: Installed) -> None:
    """Heartbeats in a loop cost six requests, and a minute later the agent restores the labels."""

    async def act() -> None:
        async with beside(handler_of(installed), installed) as scene:
            before = scene.report.writes
            for _ in range(30):
                await scene.handler.beat()
            await scene.zero()
            assert scene.report.writes - before <= WRITES + 1  # one write restores the cores
            scene.time.now += WINDOW_SECONDS
            await scene.zero()
            await scene.until(is_true)

    asyncio.run(act())
