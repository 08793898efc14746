"""Reports of pods with a CPU budget: pool, containers in it, events, metrics and intruders."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.config import NodeOptions
from agent.kept_pod import PodDecoder
from agent.metrics import Metrics
from agent.node_state import Proof
from agent.report.desired_node import pools_text
from agent.report.events import Reason, events_between
from agent.report.extended_resources import node_resources
from agent.report.pod_status import pod_status
from agent.serve.state_json import to_json
from pinning.contract import FILLED_IN, LIMIT_RANGER
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, SeenPod
from tests.agent.states import WHEN, state_of
from tests.pinning.budgets import EXCLUSIVE, budgeted


def put(*given: Any, **more: Any) -> Any:
    """Return a running pod with a budget."""
    return {**budgeted("a", *given, **more), "status": {"phase": "Running"}}


def status(*documents: Any, **more: Any) -> Any:
    """Return the parsed status annotation of a pod."""
    (pod,) = state_of(*documents, **more).pods
    text = pod_status(pod, None)
    assert text
    return json.loads(text)


def test_the_annotation_has_budget_and_pool() -> None:
    """A container in the pool has the policy `pod` and is proven like an exclusive one."""
    said = status(put(4, {"m": 2, "log": None}))
    assert said["pool"] == {"budget": 4, "cpus": "3,7"}
    assert {name: (it["policy"], it["cpus"], it["pinned"]) for name, it in said["containers"].items()} == {
        "m": ("exclusive", "2,6", True),
        "log": ("pod", "3,7", True),
    }


def test_an_empty_pool_is_in_the_annotation() -> None:
    """A container whose pod has an empty pool runs in the shared set, with a refusal as reason."""
    said = status(put(2, {"m": 2, "log": None}))
    assert said["pool"] == {"budget": 2, "cpus": ""}
    assert said["refusal"]["reason"] == "PodPoolEmpty"
    assert "log" not in said["containers"]


def test_a_pod_missing_in_the_api_keeps_its_pool() -> None:
    """The pool and its containers come from the ledger if the API does not show the pod."""
    before = state_of(put(4, {"m": 2, "log": None}))
    (pod,) = state_of(ledger=before.ledger, complete=False).pods
    assert not pod.is_known
    assert pod.pool == before.pods[0].pool
    assert {it.name: it.is_pooled for it in pod.containers} == {"m": False, "log": True}


def test_the_node_annotation_has_each_pool_as_an_owner() -> None:
    """Each pool is an owner with the policy `pod`, which earlier readers accept."""
    other: Any = put(1, {"m": 1})
    other["metadata"] |= {"uid": "b"}
    state = state_of(put(4, {"m": 2, "log": None}), other)
    owners = json.loads(pools_text(state, (), NodeOptions()))["owners"]
    assert owners["test/pod-a/(pool)"] == {"policy": "pod", "cpus": "3,7", "smtPolicy": "prefer"}
    assert [name for name in owners if name.endswith("(pool)")] == ["test/pod-a/(pool)"]


def test_events_say_where_containers_of_a_pool_run() -> None:
    """Events report containers that enter or leave the pool, and an empty pool."""
    before, after = (
        state_of(put(4, {"m": 2, "log": None}, annotations={})),
        state_of(put(4, {"m": 2, "log": None})),
    )
    found = {event.message: event.reason for event in events_between(before, after)}
    assert found["container log runs on CPUs 3,7 (CPUs of its pod's pool)"] is Reason.PINNED
    changed = [event for event in events_between(after, before) if event.reason is Reason.POLICY_CHANGED]
    assert "container log changed from CPUs of its pod's pool to no CPUs of its own" in [
        it.message for it in changed
    ]
    empty = events_between(None, state_of(put(2, {"m": 2, "log": None})))
    assert [event.message for event in empty if event.reason is Reason.UNPINNABLE] == [
        "PodPoolEmpty: all 2 CPUs of the pod are slices of other containers;"
        " containers without a slice run in the shared set instead of the pool: log"
    ]


def test_metrics_have_the_cpus_of_pools() -> None:
    """CPUs of containers count as exclusive, of pools as `pod`, and siblings of both as idle."""
    metrics = Metrics()
    state = state_of(put(3, {"m": 1, "log": None}, annotations={"smt-policy.corepin.io/pod": "isolate"}))
    metrics.show(state)
    value = metrics.registry.get_sample_value
    assert value("corepin_agent_cpus", {"set": "exclusive"}) == 1
    assert value("corepin_agent_cpus", {"set": "pod"}) == 2
    assert value("corepin_agent_cpus", {"set": "idle"}) == 3


def test_the_socket_has_the_pool() -> None:
    """The state on the socket has the pool as the annotation has it."""
    (pod,) = json.loads(to_json(state_of(put(4, {"m": 2, "log": None}))))["pods"]
    assert pod["pool"] == {"budget": 4, "cpus": "3,7"}


@pytest.mark.parametrize(("other", "is_intruder"), [("init", False), ("log", True)])
def test_an_init_container_is_no_intruder_of_later_slices(other: str, is_intruder: bool) -> None:
    """An init container on later CPUs of the pod is no intruder; a container of the pool is."""
    document = put(4, {"m": 2, "log": None}, {"init": (None, "")})
    proofs = {Owner("a", other): Proof(CPUSet.parse("2-3,6-7"), WHEN)}
    state = state_of(document, proofs=proofs)
    (main,) = [it for it in state.pods[0].containers if it.name == "m"]
    assert (f"a/{other}" in main.intruders) is is_intruder


def test_published_cores_include_those_of_pools() -> None:
    """Cores of the pool count as held by the container that requests them."""
    document = put(4, {"m": 2, "log": None}, annotations={"smt-policy.corepin.io/pod": "require"})
    for at, cores in ((0, "1"), (1, "1")):
        listed = document["spec"]["containers"][at].setdefault("resources", {}).setdefault("limits", {})
        listed["corepin.io/whole-cores"] = cores
    with_pod = node_resources(state_of(document), [document])
    alone = node_resources(state_of(), [])
    assert with_pod
    assert alone
    assert with_pod["corepin.io/whole-cores"] == alone["corepin.io/whole-cores"]


def test_decoder_keeps_the_fields_that_a_budget_needs() -> None:
    """The decoder keeps the pod's allocated CPUs and the CPU limits set by LimitRanger."""
    text = "LimitRanger plugin set: memory limit for container m; cpu limit for container p; cpu limit for container x"
    document = put(4, {"m": 2, "p": 1}, annotations={**EXCLUSIVE, LIMIT_RANGER: text})
    document["status"] = {"phase": "Running", "allocatedResources": {"cpu": "3", "memory": "1Gi"}}
    kept: Any = PodDecoder().decode(msgspec.json.encode(document))
    assert (
        kept["metadata"]["annotations"][LIMIT_RANGER] == "LimitRanger plugin set: cpu limit for container p"
    )
    assert kept["status"]["allocatedResources"] == {"cpu": "3"}
    assert SeenPod.of(kept) == SeenPod.of(document)
    document["metadata"]["annotations"] |= {LIMIT_RANGER: "", FILLED_IN: "m,x"}
    assert SeenPod.of(PodDecoder().decode(msgspec.json.encode(document))) == SeenPod.of(document)
    document["spec"]["resources"] = None
    plain: Any = PodDecoder().decode(msgspec.json.encode(document))
    assert LIMIT_RANGER not in plain["metadata"]["annotations"]
