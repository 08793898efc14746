"""The NodeResourceTopology of a node: its content, when it is written, and objects of other programs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from agent.report.node_topology import TopologyReport, node_topology
from agent.report.node_types import Node, NodeMeta, NodeStatus
from agent.report.publisher import Later
from apiserver.errors import Conflict
from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, assemble
from pinning.planning.node_config import NodeConfig
from tests.agent.fake_api import NodeApi, api_of
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pods import container

KIND = "noderesourcetopologies"
OBJECT = f"/apis/topology.node.k8s.io/v1alpha2/{KIND}/node-1"
AMOUNTS = {"cpu": "8", "memory": "16Gi", "hugepages-2Mi": "0", "pods": "110", "ephemeral-storage": "1Gi"}
OURS = {"app.kubernetes.io/managed-by": "corepin"}
PINNED = bound("a", container("main", 2), annotations=EXCLUSIVE)
OBSERVING = NodeConfig(observe=True)


@dataclass
class Clock:
    """A clock that the test sets."""

    now: float = 0.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


class TopologyApi(NodeApi):
    """A node, and its topology object if there is one."""

    def __init__(self, there: dict[str, Any] | None = None, *, has_kind: bool = True) -> None:
        super().__init__()
        self.others(status={"allocatable": AMOUNTS})
        if there:
            self.put(OBJECT, there)
        if not has_kind:
            self.refused = {KIND: httpx.Response(404, json={"message": "could not find the resource"})}

    @property
    def there(self) -> Any:
        """The topology object."""
        return self.objects.get(OBJECT)

    @property
    def methods(self) -> list[str]:
        """The method of each request for the object."""
        return [call.method for call in self.calls if KIND in call.path]

    @property
    def free(self) -> list[str]:
        """The free CPUs of each zone."""
        return [zone["resources"][0]["available"] for zone in self.there["zones"]]


@asynccontextmanager
async def reporter(server: TopologyApi, clock: Clock | None = None) -> AsyncIterator[TopologyReport]:
    """Yield a reporter with a client of the server."""
    async with api_of(server) as api:
        yield TopologyReport(api, "node-1", clock or Clock(), interval_seconds=0)  # type: ignore[arg-type]


async def published(report: TopologyReport, *args: Any, **more: Any) -> Later:
    """Publish a state and return when the reporter wants to be called again."""
    with pytest.raises(Later) as later:
        await report.publish(state_of(*args, **more))
    return later.value


def test_zones_have_their_free_cpus_and_the_nodes_other_resources() -> None:
    """Each zone has its own free `numa-cpus`, and the other resources with the node's whole amounts."""
    metadata = NodeMeta(name="node-1", uid="u")
    status = NodeStatus(allocatable=AMOUNTS, capacity={**AMOUNTS, "cpu": "10"})
    said = node_topology(state_of(PINNED), Node(metadata, status=status))
    whole = [
        {"name": "cpu", "capacity": "10", "allocatable": "8", "available": "8"},
        {"name": "hugepages-2Mi", "capacity": "0", "allocatable": "0", "available": "0"},
        {"name": "memory", "capacity": "16Gi", "allocatable": "16Gi", "available": "16Gi"},
    ]
    numbers = [("2", "0"), ("4", "4")]  # core 0 of NUMA node 0 is reserved
    assert said["zones"] == [
        {
            "name": f"node-{at}",
            "type": "Node",
            "resources": [
                {"name": "corepin.io/numa-cpus", "capacity": has, "allocatable": has, "available": free},
                *whole,
            ],
        }
        for at, (has, free) in enumerate(numbers)
    ]
    assert said["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u"}
    ]
    assert {it["name"]: it["value"] for it in said["attributes"]} == {
        "topologyManagerPolicy": "single-numa-node",
        "topologyManagerScope": "container",
    }


def test_numa_nodes_that_the_filter_cannot_number_are_left_out() -> None:
    """NUMA nodes from 64 on are left out, because the scheduler's filter crashes on them."""
    machine = assemble([CPUFacts(cpu, cpu, 0, (0, 8, 64, 252)[cpu]) for cpu in range(4)], CPUSet(range(4)))
    said = node_topology(state_of(machine=machine), Node(NodeMeta()))
    assert [zone["name"] for zone in said["zones"]] == ["node-0", "node-8"]


async def test_topology_is_created_once_and_patched_on_changes() -> None:
    """An unchanged state costs no request, and nothing is written before the state is complete."""
    server = TopologyApi()
    async with reporter(server) as report:
        await report.publish(state_of(complete=False))
        assert server.methods == []
        await published(report)
        assert (server.methods, server.free) == (["GET", "POST"], ["2", "4"])
        assert server.there["kind"] == "NodeResourceTopology"
        assert server.there["metadata"]["labels"] == OURS
        await published(report)
        await published(report, bound("x"))
        assert len(server.methods) == 2
        await published(report, PINNED)
        assert (server.methods[2:], server.free, report.writes) == (["PATCH"], ["0", "4"], 2)


async def test_changes_of_others_are_reverted_periodically() -> None:
    """A deleted object, changed zones and a recreated node are corrected at the next periodic read."""
    server, clock = TopologyApi(), Clock()
    async with reporter(server, clock) as report:
        await published(report)
        for is_lost in (True, False):
            if is_lost:
                del server.objects[OBJECT]
            else:
                server.put(OBJECT, {**server.there, "zones": []})
            later = await published(report)
            assert not (server.there or {}).get("zones")
            assert later.seconds
            clock.now += later.seconds
            later = await published(report)
            assert server.free == ["2", "4"]
        server.others(metadata={"uid": "another"})
        assert later.seconds
        clock.now += later.seconds
        await published(report)
        assert server.there["metadata"]["ownerReferences"][0]["uid"] == "another"


async def test_object_is_read_again_after_a_conflict() -> None:
    """After a conflict the object is read again, and left alone if another program owns it."""
    server = TopologyApi()
    async with reporter(server) as report:
        await published(report)
        foreign = {"metadata": {"labels": {}}, "zones": ["theirs"]}
        server.put(OBJECT, foreign)
        with pytest.raises(Conflict):
            await report.publish(state_of(PINNED))
        assert (await published(report, PINNED)).refused == 1
        assert server.there["zones"] == ["theirs"]


@pytest.mark.parametrize(
    ("server", "why"),
    [
        pytest.param(
            TopologyApi({"metadata": {}, "zones": []}), "another program publishes", id="a foreign one"
        ),
        pytest.param(TopologyApi(has_kind=False), "install its CRD", id="no such kind"),
    ],
)
async def test_foreign_object_or_missing_kind_is_logged_once(
    server: TopologyApi, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A foreign object or a missing CRD is logged once, counted as refused, and rechecked."""
    clock = Clock()
    caplog.set_level(logging.WARNING, "agent.report.node_topology")
    async with reporter(server, clock) as report:
        for _ in range(3):
            later = await published(report, PINNED)
            await published(report)
            assert later.refused == 1
            assert later.seconds
            clock.now += later.seconds
        await report.reset()
    [record] = caplog.records
    assert why in vars(record)["facts"]["why"]
    assert set(server.methods) <= {"GET", "POST"}
    assert len(server.methods) <= 7


async def test_reset_and_observing_delete_the_topology() -> None:
    """Reset and the observing mode delete the object, so that no scheduler uses stale data."""
    server = TopologyApi()
    async with reporter(server) as report:
        await report.reset()
        await published(report)
        await published(report, config=OBSERVING)
        assert server.there is None
        await published(report, config=OBSERVING)
        assert server.methods[-1] == "DELETE"
        await published(report)
        assert server.free == ["2", "4"]
        await report.reset()
        assert server.there is None
