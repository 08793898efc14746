"""The node reporter: retries on conflict, restores overwritten fields, and recovers from failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agent.config import NodeOptions
from agent.report.near_fit import MOST_RESOURCES
from agent.report.node import TRIES, NodeReport
from apiserver.client import Api
from apiserver.errors import Gone, Unavailable
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig
from tests.agent.fake_api import NodeApi, api_of
from tests.agent.states import bound, source, state_of
from tests.pods import CORES, container


def report_of(api: Api, **more: Any) -> NodeReport:
    """Return a reporter that sets CMK's taint."""
    return NodeReport(api, "node-1", source(), NodeOptions(cmk_taint=True), interval_seconds=0, **more)


async def test_node_is_read_again_after_a_conflict() -> None:
    """After a conflict the node is read again, and a taint added in between is kept."""
    server = NodeApi()
    async with api_of(server) as api:
        server.conflicts = 2
        report = report_of(api)
        await report.publish(state_of())
        assert [taint["key"] for taint in server.node["spec"]["taints"]] == ["late-0", "cmk"]
        await report.reset()
        assert [taint["key"] for taint in server.node["spec"]["taints"]] == ["late-0"]


async def test_report_fails_after_repeated_conflicts() -> None:
    """After repeated conflicts the report fails with Unavailable; the next one succeeds."""
    server = NodeApi()
    async with api_of(server) as api:
        server.conflicts = TRIES
        report = report_of(api)
        with pytest.raises(Unavailable, match="others changed node node-1"):
            await report.publish(state_of())
        await report.publish(state_of())
        assert server.node["spec"]["taints"][-1]["key"] == "cmk"
        await report.reset()


async def test_zeroed_resources_are_restored_with_retries() -> None:
    """Resources that the kubelet zeroes are restored on the watch event, with retries."""
    server = NodeApi()
    async with api_of(server) as api:
        report = report_of(api)
        await report.publish(state_of())
        server.written.clear()
        server.failures = [503, 500]
        server.others(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
        server.send_node()
        await server.written.wait()
        assert server.node["status"]["capacity"][CORES] == "3"
        assert server.patches[-1][0] == "/api/v1/nodes/node-1/status"
        await report.reset()


async def test_zeroed_resources_are_restored_while_observing() -> None:
    """An agent that observes restores the resources that bound pods claim."""
    pods = [bound("a", container("main", {CORES: 2}))]

    server = NodeApi()
    async with api_of(server) as api:
        report = NodeReport(api, "node-1", source(*pods), interval_seconds=0)
        await report.publish(state_of(*pods))
        assert server.node["status"]["allocatable"][CORES] == "3"
        await report.publish(state_of(*pods, config=NodeConfig(observe=True)))
        assert server.node["status"]["allocatable"][CORES] == "2"
        server.written.clear()
        server.others(status={"capacity": {}, "allocatable": {CORES: "0"}})
        server.send_node()
        await server.written.wait()
        assert server.node["status"]["allocatable"][CORES] == "2"
        await report.reset()


async def test_numbers_are_kept_while_the_runtime_is_away() -> None:
    """With an incomplete state nothing is published, but zeroed resources are restored from the last one."""
    server = NodeApi()
    async with api_of(server) as api:
        report = report_of(api)
        await report.publish(state_of(complete=False))
        assert api.requests == 0
        await report.publish(state_of())
        await report.publish(state_of(complete=False))
        server.written.clear()
        server.others(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
        server.send_node()
        await server.written.wait()
        assert server.node["status"]["allocatable"][CORES] == "3"
        await report.reset()


async def test_a_missing_node_is_an_error_that_is_retried() -> None:
    """A missing node raises Gone, and the next report succeeds."""
    server = NodeApi()
    async with api_of(server) as api:
        server.failures = [404]
        report = report_of(api)
        with pytest.raises(Gone):
            await report.publish(state_of())
        await report.publish(state_of())
        assert report.writes == 2
        await report.reset()


async def test_reset_needs_no_state() -> None:
    """Reset without a published state reads the node and removes corepin's labels."""
    server = NodeApi()
    async with api_of(server) as api:
        server.others(metadata={"labels": {"cmk.intel.com/cmk-node": "true"}})
        await report_of(api).reset()
        assert server.node["metadata"]["labels"] == {}
        assert api.requests == 2


async def test_changed_group_label_is_a_condition_until_restored() -> None:
    """If the group label changes, a condition names it and the remedy until the label is restored."""
    group = "corepin.io/cpu-group"

    def condition(server: NodeApi) -> Any:
        return next(it for it in server.node["status"]["conditions"] if it["type"] == "CorepinDegraded")

    server = NodeApi()
    async with api_of(server) as api:
        server.others(metadata={"labels": {group: "big"}})
        report = report_of(api)
        await report.publish(replace(state_of(), group="big"))
        assert condition(server)["status"] == "False"
        for label, words in (
            (
                "small",
                "is now small, but the agent runs with config.big.yaml since its start: delete its pod",
            ),
            (None, "was removed, but the agent runs with config.big.yaml"),
        ):
            server.written.clear()
            server.others(metadata={"labels": {group: label}})
            server.send_node()
            await server.written.wait()
            assert condition(server)["reason"] == "GroupChanged"
            assert words in condition(server)["message"]
        server.written.clear()
        server.others(metadata={"labels": {group: "big"}})
        server.send_node()
        await server.written.wait()
        assert condition(server)["reason"] == "NotDegraded"
        await report.reset()


async def test_counts_without_room_are_left_out_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Counts without room in the node are left out and logged once, and the rest of the node is written."""
    server = NodeApi()
    free = FreeDevices({"nvidia.com/gpu": {CPUSet([1]): 1}})
    async with api_of(server) as api:
        crowd = dict.fromkeys((f"x.example/{at}" for at in range(MOST_RESOURCES)), "1")
        server.others(status={"capacity": crowd, "allocatable": crowd})
        report = NodeReport(api, "node-1", source(), NodeOptions(near_cpus=True), interval_seconds=0)
        for _ in range(2):
            await report.publish(replace(state_of(), free_devices=free))
        assert server.node["status"]["capacity"][CORES] == "3"
        assert not [name for name in server.node["status"]["capacity"] if name.startswith("near.")]
        await report.reset()
    assert caplog.messages.count("free CPUs near devices not published") == 1
