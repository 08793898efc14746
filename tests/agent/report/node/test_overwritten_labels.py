"""Labels of the node that another program overwrites: put back at once, and not without end."""

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
from apiserver.client import Api
from tests.agent.fakes import Time
from tests.agent.report.node.server import Server, run
from tests.agent.states import source, state_of

OURS = {"cpumanager": "true", "kubevirt.io/cpumanager": "true"}
FALSE = dict.fromkeys(OURS, "false")
KUBEVIRT = NodeOptions(frozenset({"CPUManager"}))


class Keeper:
    """The memory of labels on a node, with a clock that stands still."""

    def __init__(self) -> None:
        self.time = Time()
        self.metrics = Metrics()
        self.labels = OverwrittenLabels(self.time.clock(), self.metrics)

    def writes(self, present: Mapping[str, str], desired: Mapping[str, str | None]) -> dict[str, str | None]:
        """Return which labels are written to a node that has some, as the reporter does it."""
        node = Node(NodeMeta(labels=dict(present)))
        allowed = self.labels.allowed(node, DesiredNode(labels=desired, annotations={"a": "b"}))
        assert allowed.annotations == {"a": "b"}  # nothing else waits
        changed = {name: value for name, value in allowed.labels.items() if present.get(name) != value}
        if changed:
            self.labels.wrote(allowed.labels)
        return changed

    @property
    def overwrites(self) -> float:
        """How often labels were overwritten, as the metric says."""
        return self.metrics.registry.get_sample_value("corepin_agent_label_overwrites_total") or 0


def test_six_times_a_minute_at_the_most(caplog: pytest.LogCaptureFixture) -> None:
    """The first writing is no answer to anybody; the seventh overwrite waits until the first answer is a minute old."""
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
    assert keeper.writes(FALSE, OURS) == {}  # the second answer is not a minute old yet
    assert [record.levelname for record in caplog.records] == ["INFO"] * WRITES + ["WARNING"] * 2


def test_handler_of_kubevirt_never_waits() -> None:
    """It overwrites every minute or two, and is answered each time for ever."""
    keeper = Keeper()
    keeper.writes({}, OURS)
    for _ in range(100):
        keeper.time.now += 60
        assert keeper.writes(FALSE, OURS) == OURS
    assert keeper.overwrites == 100


def test_labels_that_are_right_or_never_were_cost_nothing() -> None:
    """A node that has them already is not written; what was there before the agent is not overwritten by anybody."""
    keeper = Keeper()
    assert keeper.writes(OURS, OURS) == {}
    assert Keeper().writes(FALSE, OURS) == OURS
    assert keeper.overwrites == 0


def test_other_program_that_mends_them_itself_ends_the_wait() -> None:
    """A handler that writes "true" again leaves nothing to put back."""
    keeper = Keeper()
    keeper.writes({}, OURS)
    for _ in range(WRITES + 1):
        keeper.writes(FALSE, OURS)
    assert keeper.labels.is_waiting
    assert keeper.writes(OURS, OURS) == {}
    assert not keeper.labels.is_waiting


def test_agent_that_leaves_takes_them_away_whoever_overwrites_them() -> None:
    """At uninstall nothing waits."""
    keeper = Keeper()
    keeper.writes({}, OURS)
    for _ in range(WRITES + 1):
        keeper.writes(FALSE, OURS)
    assert keeper.writes(FALSE, dict.fromkeys(OURS)) == dict.fromkeys(OURS)


def test_labels_that_waited_are_put_back_when_nothing_else_happens() -> None:
    """The reporter comes back by itself when the window is over."""

    async def act(server: Server, api: Api) -> None:
        labels = OverwrittenLabels(Clock(), Metrics(), window_seconds=0.2)
        report = NodeReport(api, "node-1", source(), KUBEVIRT, interval_seconds=0, labels=labels)
        await report.publish(state_of())
        for number in range(WRITES + 1):
            server.written.clear()
            server.change(metadata={"labels": FALSE})
            server.tell()
            await server.written.wait()
            assert OURS.items() <= server.node["metadata"]["labels"].items(), number
        assert report.writes == WRITES + 2  # each overwrite once, and the first time
        await report.reset()

    run(act)


def test_nothing_else_of_the_node_waits_for_labels() -> None:
    """While labels are left to others, numbers that the kubelet zeroes come back at once."""

    async def act(server: Server, api: Api) -> None:
        time = Time()
        labels = OverwrittenLabels(time.clock(), Metrics())
        report = NodeReport(api, "node-1", source(), KUBEVIRT, interval_seconds=0, labels=labels)
        await report.publish(state_of())
        for _ in range(WRITES):
            await overwritten(server)
        server.written.clear()
        zero = {"cmk.intel.com/exclusive-cores": "0"}
        server.change(metadata={"labels": FALSE}, status={"capacity": zero, "allocatable": zero})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["capacity"]["cmk.intel.com/exclusive-cores"] == "3"
        assert FALSE.items() <= server.node["metadata"]["labels"].items()
        time.now += WINDOW_SECONDS
        server.tell()
        while not OURS.items() <= server.node["metadata"]["labels"].items():
            await asyncio.sleep(0)
        await report.reset()

    async def overwritten(server: Server) -> None:
        server.written.clear()
        server.change(metadata={"labels": FALSE})
        server.tell()
        await server.written.wait()

    run(act)
