"""Node labels that another program overwrites are restored, with a rate limit."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from agent.clock import Clock
from agent.config import NodeOptions
from agent.metrics import Metrics
from agent.report.desired_node import DesiredNode
from agent.report.node import NodeReport
from agent.report.node_types import Node, NodeMeta
from agent.report.overwritten_labels import WINDOW_SECONDS, WRITES, OverwrittenLabels
from tests.agent.fake_api import NodeApi, api_of
from tests.agent.fakes import Time
from tests.agent.states import source, state_of

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
            server.written.clear()
            server.others(metadata={"labels": FALSE})
            server.send_node()
            await server.written.wait()
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
            server.written.clear()
            server.others(metadata={"labels": FALSE})
            server.send_node()
            await server.written.wait()
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
