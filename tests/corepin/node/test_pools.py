"""`corepin map` and `corepin why` of a pod with a budget."""

from __future__ import annotations

import json
from typing import Any

from agent.config import NodeOptions
from agent.doctor.facts import exclusive_cpus
from agent.report.desired_node import pools_text, topology_text
from agent.serve.state_json import to_json
from corepin.node.node_view import view_of_annotations, view_of_state
from corepin.node.pod_timeline import timeline_of
from pinning.machine.cpuset import CPUSet
from published.agent_state import AgentState
from published.codec import decode
from tests.agent.states import state_of
from tests.pinning.budgets import budgeted


def put(*given: Any, **more: Any) -> Any:
    """Return a running pod with a CPU budget."""
    document = {**budgeted("a", *given, **more), "status": {"phase": "Running"}}
    document["spec"]["nodeName"] = "node-1"
    return document


def test_the_map_draws_a_pool_as_one_holder() -> None:
    """The map draws a pod's pool as one owner, with a line for its budget."""
    view = view_of_state(to_json(state_of(put(4, {"m": 2, "log": None, "web": None}))))
    assert [(holder.name, str(holder.cpus)) for holder in view.picture.owners] == [
        ("test/pod-a/(pool)", "3,7"),
        ("test/pod-a/m", "2,6"),
    ]
    assert "test/pod-a: budget of 4 CPUs, pool 3,7" in view.containers
    assert "test/pod-a/log: on CPUs of its pod 3,7, as the kernel says" in view.containers
    empty = view_of_state(to_json(state_of(put(2, {"m": 2, "log": None}))))
    assert "test/pod-a: budget of 2 CPUs, pool empty" in empty.containers
    assert [holder.name for holder in empty.picture.owners] == ["test/pod-a/m"]


def test_why_says_how_a_budget_is_cut() -> None:
    """The timeline has the budget in one line: each slice, and the pool with its containers."""
    wishes = [
        entry.message
        for document in (put(5, {"m": 2, "log": None}), put(1, {"p": None}), put(2, {"m": 2}))
        for entry in timeline_of(document, []).entries
        if "budget" in entry.message
    ]
    assert wishes == [
        "the pod has a budget of 5 CPUs: 2 for m, 3 in its pool for log",
        "the pod has a budget of 1 CPU: 1 in its pool for p",
        "the pod has a budget of 2 CPUs: 2 for m, 0 in its pool",
    ]


def test_the_doctor_counts_pools_among_the_cpus_of_pods() -> None:
    """Doctor reports host threads on the CPUs of pools too."""
    state = decode(AgentState, to_json(state_of(put(4, {"m": 2, "log": None}))))
    assert exclusive_cpus(state) == {"a": CPUSet.parse("2-3,6-7")}
    assert json.loads(to_json(state_of()))["pods"] == []


def test_owners_without_room_in_the_annotation_are_counted() -> None:
    """The map of a Node says that it does not show every owner, and where all are shown."""
    state = state_of()
    topology, pools = topology_text(state), json.loads(pools_text(state, (), NodeOptions()))
    view = view_of_annotations("n", topology, json.dumps(pools | {"moreOwners": 3}))
    assert view.troubles == (
        "the Node has no room for 3 more owners: `corepin map` on the node itself shows all",
    )
    assert view_of_annotations("n", topology, json.dumps(pools)).troubles == ()
