"""The component `numa-scheduling`: an agent's rights on the NodeResourceTopology of its own node."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.node_state import NodeState
from agent.report.node_topology import TOPOLOGIES, TopologyReport
from agent.report.publisher import Later
from tests.agent.states import bound, state_of
from tests.manifests.installed import HERE_NODE, PATIENCE_SECONDS, THERE_NODE, Caller, Installed
from tests.manifests.rendered import objects
from tests.pods import container

pytestmark = pytest.mark.server
CRD = Path("tests/environments/server/scheduler-plugins/crd.yaml")
OURS = {"app.kubernetes.io/managed-by": "corepin"}
SINGLE = {"cpu-manager.corepin.io/pod": "exclusive", "numa-policy.corepin.io/pod": "single"}


@pytest.fixture(scope="module")
def topologies(installed: Installed) -> Iterator[Installed]:
    """Return an API server with the component, once its policy is in effect."""
    installed.api.kubectl("apply", "--server-side", "-f", str(CRD))
    installed.api.kubectl("wait", "--for=condition=Established", "--timeout=180s", "-f", str(CRD))
    ours = [it for it in objects("numa-scheduling") if it["metadata"]["name"] == "corepin-agent-topologies"]
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": ours})
    installed.api.kubectl("apply", "-f", "-", input=listed)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "token's node" not in write(installed.agent, "policy-probe").text:
        assert time.monotonic() < deadline, "the policy does not act"
    yield installed
    installed.api.kubectl("delete", "-f", "-", input=listed)
    installed.api.kubectl("delete", "-f", str(CRD))


def topology(name: str, **metadata: Any) -> dict[str, Any]:
    """Return a topology as an agent writes it."""
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": name, "labels": OURS, **metadata},
        "zones": [],
    }


def write(caller: Caller, name: str, **metadata: Any) -> Any:
    """Create a topology as a dry run."""
    return caller.send("POST", f"{TOPOLOGIES}?dryRun=All", topology(name, **metadata))


def publish(installed: Installed, state: NodeState) -> None:
    """Let the agent of HERE_NODE publish a state."""

    async def act() -> None:
        api = installed.agent_api()
        with pytest.raises(Later):
            await TopologyReport(api, HERE_NODE, interval_seconds=0).publish(state)
        await api.close()

    asyncio.run(act())


def test_the_agent_writes_and_removes_its_own(topologies: Installed) -> None:
    """The agent creates, updates and, at uninstall, deletes its topology with the component's rights."""
    path = f"{TOPOLOGIES}/{HERE_NODE}"
    pod = bound("a", container("main", 3), annotations=SINGLE)
    for state, free in ((state_of(), ["2", "4"]), (state_of(pod), ["2", "1"])):
        publish(topologies, state)
        shown = topologies.admin.send("GET", path).json()
        assert [zone["resources"][0]["available"] for zone in shown["zones"]] == free
        assert shown["metadata"]["ownerReferences"][0]["kind"] == "Node"

    async def leave() -> None:
        api = topologies.agent_api()
        await TopologyReport(api, HERE_NODE).reset()
        await api.close()

    asyncio.run(leave())
    assert topologies.admin.send("GET", path).status_code == 404


OWNER = {"apiVersion": "v1", "kind": "Node", "name": HERE_NODE, "uid": "u"}


@pytest.mark.parametrize(
    ("name", "metadata", "why"),
    [
        pytest.param(HERE_NODE, {"ownerReferences": [OWNER]}, "", id="as it is meant"),
        pytest.param(THERE_NODE, {}, "token's node", id="of another node"),
        pytest.param(HERE_NODE, {"labels": {}}, "labels", id="without a sign of ours"),
        pytest.param(HERE_NODE, {"labels": {**OURS, "team": "x"}}, "labels", id="another label"),
        pytest.param(HERE_NODE, {"finalizers": ["x.example/y"]}, "attributes and zones", id="held back"),
        pytest.param(HERE_NODE, {"annotations": {"x": "y"}}, "attributes and zones", id="annotated"),
        pytest.param(
            HERE_NODE,
            {"ownerReferences": [{**OWNER, "name": THERE_NODE}]},
            "no owner except its node",
            id="owned",
        ),
        pytest.param(
            HERE_NODE,
            {"ownerReferences": [{**OWNER, "blockOwnerDeletion": True}]},
            "no owner except its node",
            id="holds its node back",
        ),
    ],
)
def test_what_an_agent_may_create(
    topologies: Installed, name: str, metadata: dict[str, Any], why: str
) -> None:
    """An agent may create its own node's topology, but no metadata that triggers other controllers."""
    answer = write(topologies.agent, name, **metadata)
    assert answer.is_success is not bool(why), answer.text
    assert why in answer.text


def test_tokens_without_a_node_write_nothing(topologies: Installed) -> None:
    """Only the node's own agent may write its topology: a token without the node in it may not."""
    for caller in (topologies.unbound_agent, topologies.other_agent, topologies.webhook, topologies.anybody):
        assert write(caller, HERE_NODE).status_code == 403


def test_another_programs_topology_stays(topologies: Installed) -> None:
    """A topology of another exporter is neither changed nor deleted."""
    path = f"{TOPOLOGIES}/{HERE_NODE}"
    created = topologies.admin.send("POST", TOPOLOGIES, topology(HERE_NODE, labels={}))
    assert created.is_success, created.text
    try:
        for answer in (
            topologies.agent.patch(path, {"metadata": {"labels": OURS}}),
            topologies.agent.send("DELETE", path),
        ):
            assert answer.status_code == 403
            assert "another program" in answer.text
    finally:
        topologies.admin.send("DELETE", path)
