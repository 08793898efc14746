"""The node reporter: retries on conflict, and fields and labels that it restores, with a rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agent.clock import Clock
from agent.config import NodeOptions
from agent.metrics import Metrics
from agent.report.desired_node import DesiredNode
from agent.report.near_fit import MOST_RESOURCES
from agent.report.node import TRIES, NodeReport
from agent.report.node_types import Node, NodeMeta
from agent.report.overwritten_labels import WINDOW_SECONDS, WRITES, OverwrittenLabels
from apiserver.client import Api
from apiserver.errors import Gone, Unavailable
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig
from tests.agent.fake_api import NodeApi, api_of
from tests.agent.fakes import Time
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
        await server.overwritten(status={"capacity": {}, "allocatable": {CORES: "0"}})
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
        await server.overwritten(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
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
            await server.overwritten(metadata={"labels": {group: label}})
            assert condition(server)["reason"] == "GroupChanged"
            assert words in condition(server)["message"]
        await server.overwritten(metadata={"labels": {group: "big"}})
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


OURS = {"cpumanager": "true", "kubevirt.io/cpumanager": "true"}
FALSE = dict.fromkeys(OURS, "false")
KUBEVIRT = NodeOptions(frozenset({"CPUManager"}))


class Keeper:
    """The record of overwritten labels of a node, with a clock that the test sets."""

    def __init__(self) -> None:
        self.time = Time()
        self.metrics = Metrics()
        self.labels = OverwrittenLabels(self.time.clock(), self.metrics)

    def writes(self, present: Mapping[str, str], desired: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return the labels that the reporter writes to a node with the present ones."""
        node = Node(NodeMeta(labels=dict(present)))
        allowed = self.labels.allowed(node, DesiredNode(labels=desired, annotations={"a": "b"}))
        assert allowed.annotations == {"a": "b"}  # only labels are limited
        changed = {name: value for name, value in allowed.labels.items() if present.get(name) != value}
        if changed:
            self.labels.wrote(allowed.labels)
        return changed

    @property
    def overwrites(self) -> float:
        """The number of overwrites in the metric."""
        return self.metrics.registry.get_sample_value("corepin_agent_label_overwrites_total") or 0


def test_restoring_labels_is_rate_limited(caplog: pytest.LogCaptureFixture) -> None:
    """Labels are restored six times a minute at most; the first write does not count."""
    keeper = Keeper()
    caplog.set_level("INFO")
    assert keeper.writes({}, OURS) == OURS
    for _ in range(WRITES):
        assert keeper.writes(FALSE, OURS) == OURS
        keeper.time.now += 1
    assert keeper.writes(FALSE, OURS) == {}
    assert keeper.labels.wait_seconds() == WINDOW_SECONDS - WRITES
    assert keeper.writes(FALSE, OURS) == {}
    assert keeper.overwrites == WRITES + 1
    keeper.time.now += keeper.labels.wait_seconds()
    assert keeper.writes(FALSE, OURS) == OURS
    assert keeper.writes(FALSE, OURS) == {}  # the second restore is less than a minute old
    assert [record.levelname for record in caplog.records] == ["INFO"] * WRITES + ["WARNING"] * 2


def test_slow_overwrites_are_always_reverted() -> None:
    """KubeVirt's handler, which overwrites once a minute, never reaches the rate limit."""
    keeper = Keeper()
    keeper.writes({}, OURS)
    for _ in range(100):
        keeper.time.now += 60
        assert keeper.writes(FALSE, OURS) == OURS
    assert keeper.overwrites == 100


def test_first_write_is_no_overwrite() -> None:
    """Correct labels are not written, and labels from before the agent do not count as overwritten."""
    keeper = Keeper()
    assert keeper.writes(OURS, OURS) == {}
    assert Keeper().writes(FALSE, OURS) == OURS
    assert keeper.overwrites == 0


def test_restored_labels_end_the_wait() -> None:
    """If the other program restores the labels itself, the wait ends."""
    keeper = Keeper()
    keeper.writes({}, OURS)
    for _ in range(WRITES + 1):
        keeper.writes(FALSE, OURS)
    assert keeper.labels.is_waiting
    assert keeper.writes(OURS, OURS) == {}
    assert not keeper.labels.is_waiting


def test_removing_labels_is_not_rate_limited() -> None:
    """Labels are removed at uninstall without waiting for the rate limit."""
    keeper = Keeper()
    keeper.writes({}, OURS)
    for _ in range(WRITES + 1):
        keeper.writes(FALSE, OURS)
    assert keeper.writes(FALSE, dict.fromkeys(OURS)) == dict.fromkeys(OURS)


async def test_rate_limited_labels_are_restored_when_the_window_ends() -> None:
    """The reporter restores the labels when the window ends, without another event."""
    server = NodeApi()
    async with api_of(server) as api:
        labels = OverwrittenLabels(Clock(), Metrics(), window_seconds=0.2)
        report = NodeReport(api, "node-1", source(), KUBEVIRT, interval_seconds=0, labels=labels)
        await report.publish(state_of())
        for number in range(WRITES + 1):
            await server.overwritten(metadata={"labels": FALSE})
            assert OURS.items() <= server.node["metadata"]["labels"].items(), number
        assert report.writes == WRITES + 2  # once for each overwrite, plus the first write
        await report.reset()


async def test_other_fields_do_not_wait_for_rate_limited_labels() -> None:
    """While labels wait for the rate limit, zeroed resources are restored at once."""
    server = NodeApi()
    async with api_of(server) as api:
        time = Time()
        labels = OverwrittenLabels(time.clock(), Metrics())
        report = NodeReport(api, "node-1", source(), KUBEVIRT, interval_seconds=0, labels=labels)
        await report.publish(state_of())
        for _ in range(WRITES):
            await server.overwritten(metadata={"labels": FALSE})
        server.written.clear()
        zero = {"cmk.intel.com/exclusive-cores": "0"}
        server.others(metadata={"labels": FALSE}, status={"capacity": zero, "allocatable": zero})
        server.send_node()
        await server.written.wait()
        assert server.node["status"]["capacity"]["cmk.intel.com/exclusive-cores"] == "3"
        assert FALSE.items() <= server.node["metadata"]["labels"].items()
        time.now += WINDOW_SECONDS
        server.send_node()
        while not OURS.items() <= server.node["metadata"]["labels"].items():
            await asyncio.sleep(0)
        await report.reset()
