"""Reports of pods with a CPU budget: pool, containers in it, events, metrics and intruders."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from agent.config import NodeOptions
from agent.kept_pod import PodDecoder
from agent.metrics import Metrics
from agent.node_state import NodeState, Proof
from agent.report.desired_node import pools_text
from agent.report.events import Reason, event_document, events_between
from agent.report.extended_resources import node_resources
from agent.report.pod_status import pod_status
from agent.serve.state_json import to_json
from pinning.contract import FILLED_IN, LIMIT_RANGER, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig, UncountedClaims
from pinning.planning.observed import Owner, SeenPod
from pinning.pods.types import Pod
from tests.agent.states import ISOLATE, WHEN, bound, state_of
from tests.pinning.budgets import EXCLUSIVE, budgeted
from tests.pods import container


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
