"""A runtime that rejects NRI plugins: condition, event and doctor name the largest environments."""

from __future__ import annotations

from dataclasses import replace

from agent.config import NodeOptions
from agent.doctor.nri import AgentNRI, Socket, nri_checks
from agent.node_state import LargeEnvironment, ListingFault
from agent.report.desired_node import desired_node
from agent.report.events import Reason, event_document, events_between
from tests.agent.states import state_of

LARGE = LargeEnvironment("u", "team", "web-0", "main", 1_800_000)
FAULT = ListingFault("the runtime closed the connection", (LARGE,))


def test_fault_names_the_largest_environments() -> None:
    """The message lists the largest environments with their sizes, or a hint if none was found."""
    assert str(ListingFault("closed")) == "closed"
    assert str(ListingFault("closed", (LARGE, LARGE._replace(container="b")))) == (
        "closed; the largest are those of team/web-0/main (1.7 MiB), team/web-0/b (1.7 MiB)"
    )
    assert "look for pods with thousands of labels" in str(ListingFault("closed", ()))


def test_fault_is_a_condition_while_it_lasts() -> None:
    """The condition has the reason and the pods while the fault lasts."""
    before = replace(state_of(), containers_complete=True)
    for state, status, reason in (
        (before, "False", "NotDegraded"),
        (replace(before, listing_fault=FAULT), "True", "NRINotListed"),
    ):
        desired = desired_node(state, [], NodeOptions())
        assert desired is not None
        condition = desired.conditions[-1]
        assert (condition.status, condition.reason) == (status, reason)
        assert ("team/web-0/main (1.7 MiB)" in condition.message) is (status == "True")


def test_each_large_environment_is_one_event() -> None:
    """Each large environment is one warning event about its pod, with the remedy."""
    before = replace(state_of(), listing_fault=ListingFault("closed"))
    after = replace(before, listing_fault=FAULT)
    assert events_between(None, before) == ()
    [event] = events_between(before, after)
    assert (event.reason, event.owner) == (Reason.LARGE_ENVIRONMENT, ("u", "main"))
    assert "1.7 MiB" in event.message
    assert "mount the ConfigMaps and Secrets as files" in event.message
    assert events_between(after, after) == ()
    document = event_document(event, {"metadata": {"namespace": "team", "name": "web-0"}}, "n", "now")
    assert document["type"] == "Warning"


def test_doctor_names_the_cause_also_while_the_runtime_is_away() -> None:
    """Doctor names the cause and the remedy also when the runtime's socket does not answer."""
    for socket in (Socket.ANSWERS, Socket.SILENT):
        [check] = nri_checks("containerd 2.4.2", socket, AgentNRI(False, str(FAULT), is_not_listed=True))
        assert "team/web-0/main (1.7 MiB)" in check.message
        assert "delete the pods with the largest environments" in check.remedy
