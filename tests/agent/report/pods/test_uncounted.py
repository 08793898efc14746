"""Claims whose cores the scheduler does not count, in status, events and metrics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agent.kept_pod import PodDecoder
from agent.metrics import Metrics
from agent.node_state import NodeState
from agent.report.events import Reason, event_document, events_between
from agent.report.pod_status import pod_status
from pinning.contract import SMTPolicy
from pinning.planning.node_config import NodeConfig, UncountedClaims
from pinning.pods.types import Pod
from tests.agent.states import ISOLATE, bound, state_of
from tests.pods import container

ISOLATED = "corepin.io/isolated-cores"
COUNTED = NodeConfig(counted_claims=frozenset({SMTPolicy.ISOLATE}))
REFUSING = NodeConfig(counted_claims=frozenset({SMTPolicy.ISOLATE}), uncounted_claims=UncountedClaims.REFUSE)
MESSAGE = (
    f"it requests 0 {ISOLATED}, and smt-policy isolate takes 1:"
    " create the pod again while the webhook answers, which adds the resource"
)


def isolated(cores: int = 0) -> Pod:
    """Return a decoded pod that isolates one CPU and requests these cores."""
    amounts = {"cpu": "1", ISOLATED: str(cores)} if cores else {"cpu": "1"}
    document = bound("a", container("main", amounts, amounts), annotations=ISOLATE)
    return PodDecoder().decode(json.dumps(document).encode())


def main_of(state: NodeState) -> Any:
    """Return the status of the container."""
    return json.loads(pod_status(state.pods[0], None) or "{}")["containers"]["main"]


def gauge(state: NodeState) -> float | None:
    """Return the metric for a state."""
    metrics = Metrics()
    metrics.show(state)
    return metrics.registry.get_sample_value("corepin_agent_uncounted_claims")


def test_uncounted_container_is_pinned_and_reported() -> None:
    """The container is pinned; status, event and metric report that the scheduler does not count it."""
    state = state_of(isolated(), config=COUNTED)
    main = main_of(state)
    assert (main["pinned"], main["uncounted"]) == (True, MESSAGE)
    events = [event for event in events_between(None, state) if event.reason is Reason.UNCOUNTED]
    assert [event.message for event in events] == [f"container main: {MESSAGE}"]
    assert event_document(events[0], isolated(), "node-1", "now")["type"] == "Warning"
    assert gauge(state) == 1


def test_counted_container_has_no_report() -> None:
    """A container with the resource that the webhook adds is not reported."""
    state = state_of(isolated(1), config=COUNTED)
    assert "uncounted" not in main_of(state)
    assert Reason.UNCOUNTED not in {event.reason for event in events_between(None, state)}
    assert gauge(state) == 0


def test_refused_container_has_one_event() -> None:
    """A refused container has one event with the refusal; status and metric also count it as uncounted."""
    state = state_of(isolated(), config=REFUSING)
    main = main_of(state)
    assert (main["pinned"], main["uncounted"]) == (False, MESSAGE)
    assert main["refusal"]["reason"] == "Uncounted"
    assert [event.reason for event in events_between(None, state)] == [Reason.UNPINNABLE]
    assert gauge(state) == 1


@pytest.mark.parametrize("config", [COUNTED, REFUSING], ids=["report", "refuse"])
def test_unchanged_state_has_no_second_event(config: NodeConfig) -> None:
    """An unchanged state causes no second event."""
    state = state_of(isolated(), config=config)
    assert events_between(state, state) == ()
