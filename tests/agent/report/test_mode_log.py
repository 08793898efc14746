"""Log messages about the node: its mode, its NRI path and refusals."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from agent.node_state import NodeState, Path
from agent.report.mode_log import LogReport, RefusalLog
from pinning.contract import KubeletPolicy
from pinning.planning.node_config import NodeConfig
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pods import container

GIVING = state_of()
STATIC = state_of(config=NodeConfig(observe=True))
CONFIGURED = replace(STATIC, kubelet=KubeletPolicy.NONE)


@pytest.mark.parametrize(
    ("observing", "remedy"),
    [
        pytest.param(STATIC, "cpuManagerPolicy", id="kubelet"),
        pytest.param(CONFIGURED, "observe to false", id="configured"),
    ],
)
def test_mode_is_logged_when_it_changes(
    caplog: pytest.LogCaptureFixture, observing: NodeState, remedy: str
) -> None:
    """The observing mode is logged once as a warning with the remedy; its end is logged as information."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        report = LogReport()
        for state in (GIVING, observing, observing, GIVING, GIVING):
            await report.publish(state)
        await report.reset()

    asyncio.run(main())
    _, warning, end = caplog.records  # the first record is about last-level caches
    assert (warning.levelno, end.levelno) == (logging.WARNING, logging.INFO)
    assert remedy in warning.__dict__["facts"]["remedy"]


def test_start_path_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Losing NRI is a warning with the reason; a missing NRI at start is information."""
    caplog.set_level(logging.INFO)
    missing = replace(GIVING, start_reason="no socket")
    held = replace(GIVING, start_path=Path.NRI)
    crowded = replace(held, other_plugins=("50-other",))

    async def main() -> None:
        report = LogReport()
        for state in (GIVING, missing, held, held, missing, held, crowded, crowded, held):
            await report.publish(state)

    asyncio.run(main())
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "last-level caches"),
        ("INFO", "containers are moved when they start"),
        ("INFO", "containers start on their CPUs"),
        ("WARNING", "containers no longer start on their CPUs"),
        ("INFO", "containers start on their CPUs"),
        ("WARNING", "other programs set the cpusets of new containers"),
    ]
    assert caplog.records[0].__dict__["facts"] == {"alignUncore": False}
    assert caplog.records[3].__dict__["facts"] == {"path": "cgroup", "reason": "no socket"}


def test_refusals_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each refusal is logged once as a warning, and again if it returns."""
    wrong = bound("a", annotations={"qos.gocrane.io/cpu-manager": "exlusive"})
    large = bound("b", container("main", 99), annotations=EXCLUSIVE)
    states = (state_of(wrong), state_of(wrong), state_of(wrong, large), state_of(), state_of(wrong))

    async def main() -> None:
        report = RefusalLog()
        for state in states:
            await report.publish(state)
        await report.reset()

    asyncio.run(main())
    entries = [(record.levelno, record.__dict__["facts"]) for record in caplog.records]
    assert [facts["reason"] for _, facts in entries] == ["Invalid", "NotEnoughCPUs", "Invalid"]
    assert {level for level, _ in entries} == {logging.WARNING}
    assert "'exlusive' is not a policy: write one of none, exclusive, share" in entries[0][1]["message"]
    assert entries[1][1]["claim"].endswith("/b/main")
