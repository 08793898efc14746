"""CMK's report objects: created once, then patched when they change."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agent.node_state import NodeState
from agent.report.cmk_reports import CMKReports
from apiserver.access import Access
from apiserver.client import Api
from pinning.cmk.pools import Reclaimed
from tests.agent.states import bound, state_of
from tests.pods import CORES, container

NODES, RECONCILED = (
    f"/apis/intel.com/v1/namespaces/here/{plural}" for plural in ("cmk-nodereports", "cmk-reconcilereports")
)
CLAIM = bound("a", container("main", {CORES: 1}))
ENDED = (Reclaimed(3, "default/a/main", "exclusive", "1,5"),)


class Server:
    """Has no report until one is created; with `is_raced` another client creates it first."""

    def __init__(self, *, is_raced: bool = False) -> None:
        self.is_raced = is_raced
        self.specs: dict[str, Any] = {}
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Create or patch a report."""
        self.asked.append((request.method, request.url.path))
        body = json.loads(request.content)
        if request.method == "POST":
            self.specs[f"{request.url.path}/{body['metadata']['name']}"] = (
                {} if self.is_raced else body["spec"]
            )
            return httpx.Response(409 if self.is_raced else 201, json={"message": "exists"})
        if request.url.path not in self.specs:
            return httpx.Response(404, json={"message": "not found"})
        [change] = body
        assert (change["op"], change["path"]) == ("add", "/spec")
        self.specs[request.url.path] = change["value"]
        return httpx.Response(200, json={})


def publish(server: Server, *states: NodeState, reset: bool = False) -> None:
    """Publish states one after the other."""

    async def main() -> None:
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
        reports = CMKReports(api, "node-1.test", "here", interval_seconds=0)
        for state in states:
            await reports.publish(state)
        if reset:
            await reports.reset()
        await api.close()

    asyncio.run(main())


@pytest.mark.parametrize(("is_raced", "more"), [(False, 0), (True, 1)])
def test_both_reports_are_created_with_our_content(is_raced: bool, more: int) -> None:
    """Both reports get our content, also if another client created them, once the state is complete."""
    server = Server(is_raced=is_raced)
    publish(server, state_of(complete=False), state_of())
    assert [method for method, _ in server.asked] == [*(["PATCH", "POST"] + ["PATCH"] * more)] * 2
    report = server.specs[f"{NODES}/node-1.test"]["report"]
    assert report["description"]["pools"]["exclusive"]["cpuLists"]["1,5"]["tasks"] == []
    assert server.specs[f"{RECONCILED}/node-1.test"] == {"report": {"reclaimedCpuLists": []}}


def test_only_changed_reports_are_written() -> None:
    """Unchanged pools cost no request; a claim writes one report, an ended process the other."""
    server = Server()
    publish(server, state_of())
    server.asked.clear()
    ended = replace(state_of(CLAIM), reclaimed=ENDED)
    publish(server, state_of(), state_of(bound("x")), state_of(CLAIM), state_of(CLAIM), ended, ended)
    paths = [path for _, path in server.asked]
    assert paths == [f"{folder}/node-1.test" for folder in (NODES, RECONCILED) * 2]
    assert server.specs[f"{RECONCILED}/node-1.test"]["report"]["reclaimedCpuLists"][0]["pid"] == 3


def test_reset_empties_both_reports() -> None:
    """Reset empties both reports, and is no error without any."""
    server = Server()
    publish(server, state_of(CLAIM), reset=True)
    assert list(server.specs.values()) == [{}, {}]
    publish(Server(), reset=True)
