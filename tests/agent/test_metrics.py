"""The gauges of the agent: they show the newest state when they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.metrics import Metrics, _states
from agent.node_state import ContainerState, NodeState, Proof
from pinning.contract import CPUPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.run_sets import SandboxSet
from tests.agent.states import state_of

OWN, POOL = CPUSet.parse("1,5"), CPUSet.parse("0,2-4")
HOLDER = ContainerState("main", CPUPolicy.EXCLUSIVE, cpus=OWN)


def test_gauges_show_the_newest_state_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gauges show the newest state when they are read, and compute it once for any number of passes."""
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
    """Before the first pass the gauges have no values."""
    assert Metrics().registry.get_sample_value("corepin_agent_cpus", {"set": "online"}) is None


def test_window_of_nri_is_0_from_the_start() -> None:
    """The alert CorepinStartedElsewhere would not see an increase in a series that begins with the first late start."""
    assert (
        Metrics().registry.get_sample_value("corepin_agent_unpinned_window_seconds_sum", {"path": "nri"})
        == 0.0
    )


@pytest.mark.parametrize(
    ("container", "found", "states"),
    [
        (HOLDER, OWN, ["proven"]),
        (HOLDER, OWN | POOL, ["drift"]),
        (replace(HOLDER, others=POOL), OWN | POOL, ["proven"]),
        (replace(HOLDER, others=POOL), OWN, ["drift"]),
        (replace(HOLDER, sandbox=SandboxSet(OWN, POOL)), OWN | POOL, ["proven"]),
        (replace(HOLDER, sandbox=SandboxSet(OWN, POOL)), OWN, ["drift"]),
    ],
)
def test_a_container_on_all_cpus_that_it_may_use_has_not_drifted(
    container: ContainerState, found: CPUSet, states: list[str]
) -> None:
    """A container on all CPUs of its pools, or of its sandbox, does not count as drifted."""
    assert list(_states(replace(container, proof=Proof(found, "now")))) == states
