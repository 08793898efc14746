"""What the agent's log says of the node."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from agent.kubelet import KubeletPolicy
from agent.report_log import LogReport
from agent.state import NodeState
from pinning.node_config import NodeConfig
from tests.agent.states import state_of

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
def test_mode_is_told_when_it_changes(
    caplog: pytest.LogCaptureFixture, observing: NodeState, remedy: str
) -> None:
    """Observing is a warning with its remedy, once; giving CPUs out is told only after it."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        report = LogReport()
        for state in (GIVING, observing, observing, GIVING, GIVING):
            await report.publish(state)
        await report.reset()

    asyncio.run(main())
    warning, end = caplog.records
    assert (warning.levelno, end.levelno) == (logging.WARNING, logging.INFO)
    assert remedy in warning.__dict__["facts"]["remedy"]
