"""OOM kills and readiness of corepin's own containers, as condition and event."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from agent.config import NodeOptions
from agent.kept_pod import PodDecoder
from agent.node_state import ListingFault, MemoryKill
from agent.own_pods import memory_kills, unready_guards
from agent.report.desired_node import desired_node
from agent.report.events import Reason, event_document, events_between
from pinning.planning.observed import Owner
from tests.agent.states import state_of

if TYPE_CHECKING:
    from pinning.pods.types import Pod

WHEN = "2026-11-23T10:00:00Z"
KILL = MemoryKill("u", "corepin-agent-x", "agent", WHEN)


def kills(namespace: str, status: dict[str, Any]) -> tuple[MemoryKill, ...]:
    """Return the OOM kills in a pod with one container status, decoded as the agent does."""
    return memory_kills([pod(namespace, {"name": "agent", **status})])


def pod(namespace: str, status: dict[str, Any]) -> Pod:
    """Return a pod with one container status, decoded as the agent does."""
    metadata = {"namespace": namespace, "name": "corepin-agent-x", "uid": "u"}
    document = {"metadata": metadata, "status": {"containerStatuses": [status]}}
    return PodDecoder("corepin-agent").decode(msgspec.json.encode(document))


def ended(reason: str) -> dict[str, Any]:
    """Return a terminated container state."""
    return {"terminated": {"reason": reason, "finishedAt": WHEN, "exitCode": 137}}


@pytest.mark.parametrize(
    ("namespace", "status", "found"),
    [
        pytest.param("corepin-agent", {"lastState": ended("OOMKilled")}, (KILL,), id="last"),
        pytest.param("corepin-agent", {"state": ended("OOMKilled")}, (KILL,), id="now"),
        pytest.param("corepin-agent", {"lastState": ended("Error")}, (), id="another-end"),
        pytest.param("corepin-agent", {}, (), id="never-ended"),
        pytest.param("tenant", {"lastState": ended("OOMKilled")}, (), id="another-namespace"),
    ],
)
def test_kills_of_our_own_namespace_are_read(
    namespace: str, status: dict[str, Any], found: tuple[MemoryKill, ...]
) -> None:
    """Only OOM kills in the agents' namespace are read."""
    assert kills(namespace, status) == found


def test_kill_is_one_event_and_a_condition() -> None:
    """An OOM kill is one event, and a condition while the pod status shows it."""
    before = replace(state_of(), containers_complete=True)
    after = replace(before, kills=(KILL,))
    [event] = events_between(before, after)
    assert (event.reason, event.owner) == (Reason.OUT_OF_MEMORY, ("u", "agent"))
    assert events_between(after, after) == ()
    for state, status in ((before, "False"), (after, "True")):
        desired = desired_node(state, [], NodeOptions())
        assert desired is not None
        assert desired.conditions[-1].status == status


@pytest.mark.parametrize(
    ("namespace", "status", "found"),
    [
        pytest.param("corepin-agent", {"name": "guard", "ready": False}, True, id="guard"),
        pytest.param("corepin-agent", {"name": "guard", "ready": True}, False, id="ready"),
        pytest.param("corepin-agent", {"name": "guard"}, False, id="not-known"),
        pytest.param("corepin-agent", {"name": "agent", "ready": False}, False, id="agent"),
        pytest.param("tenant", {"name": "guard", "ready": False}, False, id="another-namespace"),
    ],
)
def test_readiness_of_our_own_guard_is_read(namespace: str, status: dict[str, Any], *, found: bool) -> None:
    """A guard is not ready if the kubelet reports it so, in the agents' namespace only."""
    assert unready_guards([pod(namespace, status)]) == ((Owner("u", "guard"),) if found else ())


def test_guard_rejected_by_the_runtime_is_one_event() -> None:
    """An unready guard is an event while the runtime rejects NRI plugins, and none while it starts."""
    starting = replace(state_of(), unready_guards=(Owner("u", "guard"),))
    kept_out = replace(starting, listing_fault=ListingFault("closed"))
    assert events_between(None, starting) == ()
    [event] = events_between(starting, kept_out)
    assert (event.reason, event.owner) == (Reason.NOT_GUARDING, ("u", "guard"))
    assert "CorepinDegraded" in event.message
    assert events_between(kept_out, kept_out) == ()
    assert event_document(event, pod("corepin-agent", {}), "n", "now")["type"] == "Warning"


def test_runtime_that_cannot_be_listed_is_a_condition() -> None:
    """If the runtime cannot be listed, the node gets only a condition with the reason."""
    state = replace(state_of(), containers_complete=False, runtime_reason="ListPodSandbox exceeds 16 MiB")
    desired = desired_node(state, [], NodeOptions())
    assert desired is not None
    [condition] = desired.conditions
    assert (condition.reason, desired.annotations, desired.resources) == ("RuntimeNotListed", {}, {})
    assert "16 MiB" in condition.message
