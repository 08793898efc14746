"""CMK's report objects: created once, then patched when they change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.clock import Clock
from agent.node_state import NodeState
from agent.report.cmk_config_map import AGAIN_SECONDS
from agent.report.cmk_reports import CMKReports
from agent.report.turns import next_turn
from apiserver.client import Api
from pinning.cmk.pools import Reclaimed
from tests.agent.fake_api import FakeApiServer, publish, run
from tests.agent.states import bound, state_of
from tests.pods import CORES, container

NODES, RECONCILED = (
    f"/apis/intel.com/v1/namespaces/here/{plural}" for plural in ("cmk-nodereports", "cmk-reconcilereports")
)
CLAIM = bound("a", container("main", {CORES: 1}))
ENDED = (Reclaimed(3, "default/a/main", "exclusive", "1,5"),)


def published(server: FakeApiServer, *states: NodeState, reset: bool = False) -> None:
    """Publish states one after the other."""

    async def act(api: Api) -> None:
        reports = CMKReports(api, "node-1.test", "here", interval_seconds=0)
        await publish(reports, *states)
        if reset:
            await reports.reset()

    run(server, act)


@pytest.mark.parametrize(("is_raced", "more"), [(False, 0), (True, 1)])
def test_both_reports_are_created_with_our_content(is_raced: bool, more: int) -> None:
    """Both reports get the agent's content once the state is complete, even if another client created them."""
    server = FakeApiServer(is_raced=is_raced)
    published(server, state_of(complete=False), state_of())
    assert [call.method for call in server.calls] == [*(["PATCH", "POST"] + ["PATCH"] * more)] * 2
    report = server.objects[f"{NODES}/node-1.test"]["spec"]["report"]
    assert report["description"]["pools"]["exclusive"]["cpuLists"]["1,5"]["tasks"] == []
    assert server.objects[f"{RECONCILED}/node-1.test"]["spec"] == {"report": {"reclaimedCpuLists": []}}


def test_only_changed_reports_are_written() -> None:
    """Unchanged pools cost no request; a claim writes one report, an ended process the other."""
    server = FakeApiServer()
    published(server, state_of())
    server.calls.clear()
    ended = replace(state_of(CLAIM), reclaimed=ENDED)
    published(server, state_of(), state_of(bound("x")), state_of(CLAIM), state_of(CLAIM), ended, ended)
    paths = [call.path for call in server.calls]
    assert paths == [f"{folder}/node-1.test" for folder in (NODES, RECONCILED) * 2]
    assert server.objects[f"{RECONCILED}/node-1.test"]["spec"]["report"]["reclaimedCpuLists"][0]["pid"] == 3


def test_reset_empties_both_reports() -> None:
    """Reset empties both reports, and is no error without any."""
    server = FakeApiServer()
    published(server, state_of(CLAIM), reset=True)
    assert [it["spec"] for it in server.objects.values()] == [{}, {}]
    published(FakeApiServer(), reset=True)


def test_reports_that_others_delete_come_back() -> None:
    """Reports that another program deletes are written again after five minutes, and not before."""
    begun = next_turn("node-1.test", 0, AGAIN_SECONDS)
    server, now = FakeApiServer(), [begun]

    async def act(api: Api) -> None:
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

    run(server, act)
