"""OOM kills of corepin's own containers, from the kubelet's status to condition and event."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from agent.config import NodeOptions
from agent.kept_pod import PodDecoder
from agent.memory_kills import memory_kills
from agent.node_state import MemoryKill
from agent.report.desired_node import desired_node
from agent.report.events import Reason, events_between
from tests.agent.states import state_of

WHEN = "2026-11-23T10:00:00Z"
KILL = MemoryKill("u", "corepin-agent-x", "agent", WHEN)


def kills(namespace: str, status: dict[str, Any]) -> tuple[MemoryKill, ...]:
    """Return what is read of a pod with one container status, decoded as the agent does."""
    metadata = {"namespace": namespace, "name": "corepin-agent-x", "uid": "u"}
    document = {"metadata": metadata, "status": {"containerStatuses": [{"name": "agent", **status}]}}
    return memory_kills([PodDecoder("corepin-agent").decode(msgspec.json.encode(document))])


def ended(reason: str) -> dict[str, Any]:
    """Return a state that has ended."""
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
    """Only an OOM kill counts, and only in the agents' namespace."""
    assert kills(namespace, status) == found


def test_kill_is_one_event_and_a_condition() -> None:
    """A kill is reported once as an event, and as a condition until the status no longer has it."""
    before = replace(state_of(), containers_complete=True)
    after = replace(before, kills=(KILL,))
    [event] = events_between(before, after)
    assert (event.reason, event.owner) == (Reason.OUT_OF_MEMORY, ("u", "agent"))
    assert events_between(after, after) == ()
    for state, status in ((before, "False"), (after, "True")):
        desired = desired_node(state, [], NodeOptions())
        assert desired is not None
        assert desired.conditions[-1].status == status


def test_reason_of_the_runtime_is_written_alone() -> None:
    """While the runtime does not list its containers the node gets the reason and nothing else."""
    state = replace(state_of(), containers_complete=False, runtime_reason="ListPodSandbox exceeds 16 MiB")
    desired = desired_node(state, [], NodeOptions())
    assert desired is not None
    [condition] = desired.conditions
    assert (condition.reason, desired.annotations, desired.resources) == ("RuntimeNotListed", {}, {})
    assert "16 MiB" in condition.message
