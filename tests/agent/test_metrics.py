"""The gauges of the agent: they show the newest state when they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.metrics import Metrics
from agent.node_state import NodeState
from tests.agent.states import state_of


def test_gauges_show_the_newest_state_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many passes end between two reads, one state is counted, and once."""
    counted: list[NodeState] = []
    count = Metrics._show_state

    def note(self: Metrics, state: NodeState) -> None:
        counted.append(state)
        count(self, state)

    monkeypatch.setattr(Metrics, "_show_state", note)
    metrics, state = Metrics(), state_of()
    older = [replace(state, observes=True) for _ in range(3)]
    for each in (*older, state):
        metrics.show(each)
    assert counted == []
    for _ in range(2):
        assert metrics.registry.get_sample_value("corepin_agent_observes") == 0.0
    assert counted == [state]


def test_gauges_are_empty_before_the_first_pass() -> None:
    """Nothing is known yet."""
    assert Metrics().registry.get_sample_value("corepin_agent_cpus", {"set": "online"}) is None
