"""The ConfigMap in CMK's format: its content, and how often it is written."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import yaml

from agent.clock import Clock
from agent.node_state import NodeState
from agent.report.cmk_config_map import AGAIN_SECONDS, PoolReport
from agent.report.cmk_node import cmk_node
from agent.report.cmk_reports import CMKReports
from agent.report.publisher import Later
from agent.report.turns import next_turn
from pinning.cmk.pools import Reclaimed, cmk_pools, cmk_yaml
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.pods.types import Pod
from tests.agent.fake_api import FakeApiServer, api_of, publish
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pods import CORES, OTHER_CORES, container

STATIC = NodeConfig(pools=StaticPools(exclusive_cores=1, shared_cores=1, exclusive_non_isolcpus=CPUSet([3])))
CLAIM = bound("a", container("main", {CORES: 1}))
OTHER = bound("a", container("main", {OTHER_CORES: 1}))
HALVES = [bound(name, container("main", 1), annotations=EXCLUSIVE) for name in "ab"]


@pytest.mark.parametrize(
    ("pods", "config", "pools"),
    [
        pytest.param(
            [],
            NodeConfig(),
            {
                "exclusive": {0: {"1,5": []}, 1: {"2,6": [], "3,7": []}},
                "exclusive-non-isolcpus": {0: {}, 1: {}},
                "infra": {0: {"0,4,1,5": []}, 1: {"2,6,3,7": []}},
                "shared": {0: {"0,4,1,5": []}, 1: {"2,6,3,7": []}},
            },
            id="free",
        ),
        pytest.param(
            [CLAIM],
            STATIC,
            {
                "exclusive": {0: {"1,5": [1]}, 1: {}},
                "exclusive-non-isolcpus": {0: {}, 1: {"3,7": []}},
                "infra": {0: {"0,4": []}, 1: {}},
                "shared": {0: {}, 1: {"2,6": []}},
            },
            id="CMK's own pools",
        ),
        pytest.param(
            [OTHER],
            NodeConfig(),
            {
                "exclusive": {0: {}, 1: {"2,6": [], "3,7": []}},
                "exclusive-non-isolcpus": {0: {"1,5": [1]}, 1: {}},
                "infra": {0: {"0,4": []}, 1: {"2,6,3,7": []}},
                "shared": {0: {"0,4": []}, 1: {"2,6,3,7": []}},
            },
            id="held outside of isolcpus",
        ),
        pytest.param(
            HALVES,
            NodeConfig(),
            {
                "exclusive": {0: {"1,5": [1]}, 1: {"2,6": [], "3,7": []}},
                "exclusive-non-isolcpus": {0: {}, 1: {}},
                "infra": {0: {"0,4": []}, 1: {"2,6,3,7": []}},
                "shared": {0: {"0,4": []}, 1: {"2,6,3,7": []}},
            },
            id="two on one core",
        ),
    ],
)
def test_pools(pods: list[Pod], config: NodeConfig, pools: dict[str, Any]) -> None:
    """A YAML parser reads the pools back: sockets as numbers, CPU lists and tasks as text."""
    shown = cmk_pools(cmk_node(state_of(*pods, config=config)))
    assert shown == pools
    read = yaml.safe_load(cmk_yaml(shown))
    assert read == {
        pool: {
            socket: {cpus: [str(task) for task in tasks] for cpus, tasks in lists.items()}
            for socket, lists in sockets.items()
        }
        for pool, sockets in pools.items()
    }


def test_every_cpu_list_is_quoted() -> None:
    """A CPU list of one CPU is quoted, otherwise YAML would read a number."""
    assert cmk_yaml({"shared": {0: {"7": []}, 1: {}}}) == "shared:\n  0:\n    '7': []\n  1: {}\n"


PATH = "/api/v1/namespaces/here/configmaps/cmk-config-node-1"


@pytest.mark.parametrize(
    ("is_raced", "methods"),
    [(False, ["PATCH", "POST", "PATCH"]), (True, ["PATCH", "POST", "PATCH", "PATCH"])],
)
async def test_only_changed_pools_are_written_to_the_config_map(is_raced: bool, methods: list[str]) -> None:
    """Only changed pools are written, and nothing before the state is complete."""
    server = FakeApiServer(is_raced=is_raced)
    async with api_of(server) as api:
        report = PoolReport(api, "node-1", "here", interval_seconds=0)
        states = state_of(), state_of(bound("x")), state_of(CLAIM), state_of(CLAIM)
        await publish(report, state_of(complete=False), *states)
    assert [call.method for call in server.calls] == methods
    assert "'1,5': ['1']" in server.objects[PATH]["data"]["config"]


async def test_writes_are_coalesced_for_the_interval() -> None:
    """After a write the writer waits for the interval to coalesce changes; without one it does not."""
    waits: list[float] = []
    async with api_of(FakeApiServer()) as api:
        report = PoolReport(api, "node-1", "here", interval_seconds=0.2)
        clock = asyncio.get_running_loop().time
        start = clock()
        await publish(report, state_of())
        written = clock()
        await publish(report, state_of())
        waits.extend((written - start, clock() - written))
    busy, idle = waits
    assert busy >= 0.2
    assert idle < 0.2


async def test_reset_of_a_deleted_config_map_is_no_error() -> None:
    """Resetting a deleted ConfigMap is no error."""
    async with api_of(FakeApiServer()) as api:
        await PoolReport(api, "node-1", "here").reset()


async def test_config_map_that_others_delete_or_change_comes_back() -> None:
    """A ConfigMap that another program deletes or changes is written again after five minutes, and not before."""
    server, now = FakeApiServer(), [next_turn("node-1", 0, AGAIN_SECONDS)]
    async with api_of(server) as api:
        report = PoolReport(api, "node-1", "here", Clock(lambda: now[0]), interval_seconds=0)
        await publish(report, state_of())
        for change in (server.objects.clear, lambda: server.objects[PATH]["data"].update(config="x")):
            change()
            for wait in (300, 240, 180, 120, 60):
                with pytest.raises(Later) as later:
                    await report.publish(state_of())
                assert later.value.seconds == pytest.approx(wait)
                assert "exclusive" not in str(server.objects)
                now[0] += 60
            await publish(report, state_of())
            assert "exclusive" in server.objects[PATH]["data"]["config"]
        assert report.writes == 3


NODES, RECONCILED = (
    f"/apis/intel.com/v1/namespaces/here/{plural}" for plural in ("cmk-nodereports", "cmk-reconcilereports")
)
ENDED = (Reclaimed(3, "default/a/main", "exclusive", "1,5"),)


async def published(server: FakeApiServer, *states: NodeState, reset: bool = False) -> None:
    """Publish states one after the other."""
    async with api_of(server) as api:
        reports = CMKReports(api, "node-1.test", "here", interval_seconds=0)
        await publish(reports, *states)
        if reset:
            await reports.reset()


@pytest.mark.parametrize(("is_raced", "more"), [(False, 0), (True, 1)])
async def test_both_reports_are_created_with_our_content(is_raced: bool, more: int) -> None:
    """Both reports get the agent's content once the state is complete, even if another client created them."""
    server = FakeApiServer(is_raced=is_raced)
    await published(server, state_of(complete=False), state_of())
    assert [call.method for call in server.calls] == [*(["PATCH", "POST"] + ["PATCH"] * more)] * 2
    report = server.objects[f"{NODES}/node-1.test"]["spec"]["report"]
    assert report["description"]["pools"]["exclusive"]["cpuLists"]["1,5"]["tasks"] == []
    assert server.objects[f"{RECONCILED}/node-1.test"]["spec"] == {"report": {"reclaimedCpuLists": []}}


async def test_only_changed_reports_are_written() -> None:
    """Unchanged pools cost no request; a claim writes one report, an ended process the other."""
    server = FakeApiServer()
    await published(server, state_of())
    server.calls.clear()
    ended = replace(state_of(CLAIM), reclaimed=ENDED)
    await published(server, state_of(), state_of(bound("x")), state_of(CLAIM), state_of(CLAIM), ended, ended)
    paths = [call.path for call in server.calls]
    assert paths == [f"{folder}/node-1.test" for folder in (NODES, RECONCILED) * 2]
    assert server.objects[f"{RECONCILED}/node-1.test"]["spec"]["report"]["reclaimedCpuLists"][0]["pid"] == 3


async def test_reset_empties_both_reports() -> None:
    """Reset empties both reports, and is no error without any."""
    server = FakeApiServer()
    await published(server, state_of(CLAIM), reset=True)
    assert [it["spec"] for it in server.objects.values()] == [{}, {}]
    await published(FakeApiServer(), reset=True)


async def test_reports_that_others_delete_come_back() -> None:
    """Reports that another program deletes are written again after five minutes, and not before."""
    begun = next_turn("node-1.test", 0, AGAIN_SECONDS)
    server, now = FakeApiServer(), [begun]
    async with api_of(server) as api:
        reports = CMKReports(api, "node-1.test", "here", Clock(lambda: now[0]), interval_seconds=0)
        await publish(reports, state_of())
        server.objects.clear()
        for now[0] in (begun + 10, begun + 299):
            await publish(reports, state_of())
            assert not server.objects
        now[0] = begun + 300.001
        await publish(reports, state_of(), state_of())
        assert sorted(server.objects) == [f"{NODES}/node-1.test", f"{RECONCILED}/node-1.test"]
        assert reports.writes == 4
