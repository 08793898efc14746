"""The writer of the node: it reads again on conflict, mends what others change, and goes on after failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.config import NodeOptions
from agent.report.node import TRIES, NodeReport
from apiserver.client import Api
from apiserver.errors import Gone, Unavailable
from pinning.planning.node_config import NodeConfig
from tests.agent.report.node.server import Server, run
from tests.agent.states import bound, source, state_of
from tests.pods import CORES, container


def report_of(api: Api, **more: Any) -> NodeReport:
    """Return a writer that puts CMK's taint on the node."""
    return NodeReport(api, "node-1", source(), NodeOptions(cmk_taint=True), interval_seconds=0, **more)


def test_a_node_that_changed_meanwhile_is_read_again() -> None:
    """Each conflict costs one GET, and the taint that came between stays."""

    async def act(server: Server, api: Api) -> None:
        server.conflicts = 2
        report = report_of(api)
        await report.publish(state_of())
        assert [taint["key"] for taint in server.node["spec"]["taints"]] == ["late-0", "cmk"]
        await report.reset()
        assert [taint["key"] for taint in server.node["spec"]["taints"]] == ["late-0"]

    run(act)


def test_a_node_that_never_holds_still_is_left_for_later() -> None:
    """After some tries the report fails, to be tried again with backoff."""

    async def act(server: Server, api: Api) -> None:
        server.conflicts = TRIES
        report = report_of(api)
        with pytest.raises(Unavailable, match="others changed node node-1"):
            await report.publish(state_of())
        await report.publish(state_of())
        assert server.node["spec"]["taints"][-1]["key"] == "cmk"
        await report.reset()

    run(act)


def test_what_the_kubelet_zeroes_comes_back_although_the_server_fails_first() -> None:
    """The watch shows the zeroes; mending them is tried again until it works; nothing else asks for it."""

    async def act(server: Server, api: Api) -> None:
        report = report_of(api)
        await report.publish(state_of())
        server.written.clear()
        server.failures = [503, 500]
        server.change(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["capacity"][CORES] == "3"
        assert server.patched[-1] == "/api/v1/nodes/node-1/status"
        await report.reset()

    run(act)


def test_a_number_that_the_kubelet_zeroes_comes_back_while_observing() -> None:
    """What bound pods claim is kept from a kubelet that restarts, though nothing rises."""
    pods = [bound("a", container("main", {CORES: 2}))]

    async def act(server: Server, api: Api) -> None:
        report = NodeReport(api, "node-1", source(*pods), interval_seconds=0)
        await report.publish(state_of(*pods))
        assert server.node["status"]["allocatable"][CORES] == "3"
        await report.publish(state_of(*pods, config=NodeConfig(observe=True)))
        assert server.node["status"]["allocatable"][CORES] == "2"
        server.written.clear()
        server.change(status={"capacity": {}, "allocatable": {CORES: "0"}})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["allocatable"][CORES] == "2"
        await report.reset()

    run(act)


def test_numbers_are_kept_while_the_runtime_is_away() -> None:
    """Nothing is told of a node that is half known, but zeroes of the kubelet are mended with the last numbers."""

    async def act(server: Server, api: Api) -> None:
        report = report_of(api)
        await report.publish(state_of(complete=False))
        assert api.requests == 0
        await report.publish(state_of())
        await report.publish(state_of(complete=False))
        server.written.clear()
        server.change(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["allocatable"][CORES] == "3"
        await report.reset()

    run(act)


def test_a_node_that_is_gone_is_an_error_that_is_tried_again() -> None:
    """The reporter says so; the agent's publisher waits."""

    async def act(server: Server, api: Api) -> None:
        server.failures = [404]
        report = report_of(api)
        with pytest.raises(Gone):
            await report.publish(state_of())
        await report.publish(state_of())
        assert report.writes == 2
        await report.reset()

    run(act)


def test_reset_before_anything_was_told_reads_the_node_and_leaves() -> None:
    """`corepin agent --reset` needs no state."""

    async def act(server: Server, api: Api) -> None:
        server.change(metadata={"labels": {"cmk.intel.com/cmk-node": "true"}})
        await report_of(api).reset()
        assert server.node["metadata"]["labels"] == {}
        assert api.requests == 2

    run(act)


def test_a_label_that_changes_is_shown_until_it_is_back() -> None:
    """The agent goes on with the configuration of its start; the condition names the label, both keys and the remedy."""
    group = "corepin.io/cpu-group"

    def condition(server: Server) -> Any:
        return next(it for it in server.node["status"]["conditions"] if it["type"] == "CorepinDegraded")

    async def act(server: Server, api: Api) -> None:
        server.change(metadata={"labels": {group: "big"}})
        report = report_of(api)
        await report.publish(replace(state_of(), group="big"))
        assert condition(server)["status"] == "False"
        for label, words in (
            (
                "small",
                "is now small, but the agent runs with config.big.yaml since its start: delete its pod",
            ),
            (None, "is gone, but the agent runs with config.big.yaml"),
        ):
            server.written.clear()
            server.change(metadata={"labels": {group: label}})
            server.tell()
            await server.written.wait()
            assert condition(server)["reason"] == "GroupChanged"
            assert words in condition(server)["message"]
        server.written.clear()
        server.change(metadata={"labels": {group: "big"}})
        server.tell()
        await server.written.wait()
        assert condition(server)["reason"] == "NotDegraded"
        await report.reset()

    run(act)
