"""Pods with a budget to which another webhook adds a container: corepin is called again, and judges its own counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pinning.pods.claims import read_pod
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted
from tests.pods import fields
from tests.tables import table
from tests.webhook.rules.mutated import mutated
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import load_settings
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation
from webhook.rules.pods import review_new_pod

WHOLE, NUMA, ISOLATED = "corepin.io/whole-cores", "corepin.io/numa-cpus", "corepin.io/isolated-cores"
WORDS: dict[str, dict[str, str]] = {
    "require": {"smt-policy.corepin.io/pod": "require"},
    "isolate": {"smt-policy.corepin.io/pod": "isolate"},
    "single": {**EXCLUSIVE, "numa-policy.corepin.io/pod": "single"},
}
NODES = b"{numaCPUs: true, isolatedCores: true, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}]}"
ADDED: dict[str, Any] = {
    "without amounts": {},
    "with a request": {"requests": {"cpu": "100m"}},
    "with a fraction": {"limits": {"cpu": "500m"}, "requests": {"cpu": "100m"}},
    "with a whole CPU": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
}
STATED: dict[str, Any] = {
    "a request": {"requests": {"cpu": "4"}},
    "a request beside memory": {"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "a limit": {"limits": {"cpu": "4"}},
    "both": {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}},
}


def meshed(document: Any, resources: Any) -> Any:
    """Return the pod as it is stored where a webhook that is called after corepin's adds a sidecar."""
    first = mutated(document, NODES)
    proxy = {"name": "proxy", "restartPolicy": SIDECAR, "resources": copy.deepcopy(resources)}
    first["spec"]["initContainers"].insert(0, proxy)
    return mutated(first, NODES)


def counted(document: Any) -> dict[str, dict[str, int]]:
    """Return the counted resources of each container that has some; limits and requests are equal."""
    found = {}
    for it in (*document["spec"]["initContainers"], *document["spec"]["containers"]):
        resources = it.get("resources") or {}
        amounts = [
            {key: int(value) for key, value in (resources.get(kind) or {}).items() if key != "cpu"}
            for kind in ("limits", "requests")
        ]
        assert amounts[0] == amounts[1]
        if amounts[0]:
            found[it["name"]] = amounts[0]
    return found


@pytest.mark.parametrize("resources", ADDED.values(), ids=ADDED)
@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("stated", STATED.values(), ids=STATED)
def test_a_later_webhook_ends_no_budget(stated: Any, words: dict[str, str], resources: Any) -> None:
    """The pod keeps the budget with which it was sent, and is counted as if it had been sent with the sidecar."""
    listed: Any = {"log": None} if stated == STATED["a limit"] else {"main": 2, "log": "500m"}
    document: Any = budgeted("a", None, listed, annotations=words, resources=copy.deepcopy(stated))
    stored = meshed(document, resources)
    budget = read_pod(stored).budget
    assert budget
    assert (budget.cpus, budget.rest.count) == (4, 4 - sum(claim.count for claim in budget.slices))
    assert {it.container for it in budget.slices} == {
        *(("main",) if "main" in listed else ()),
        *(("proxy",) if resources == ADDED["with a whole CPU"] else ()),
    }
    assert not review_new_pod(stored, load_settings(NODES), Injection(BUILT_IN)).causes
    document["spec"]["resources"] = {kind: {"cpu": "4"} for kind in ("limits", "requests")}
    document["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": SIDECAR, "resources": copy.deepcopy(resources)}
    ]
    sums = [
        {key: sum(it.get(key, 0) for it in counted(pod).values()) for key in (WHOLE, NUMA, ISOLATED)}
        for pod in (stored, mutated(document, NODES))
    ]
    assert sums[0] == sums[1]


def test_only_a_budget_is_written_out() -> None:
    """Amounts of the user's own stay, and a pod without a budget gets none."""
    for stated in ({"limits": {"cpu": "3500m"}}, {"requests": {"memory": "1Gi"}}):
        document: Any = budgeted("a", None, {"main": 2, "log": "500m"}, resources=stated)
        assert mutated(document, NODES)["spec"]["resources"] == stated
    document = budgeted("a", None, {"main": 2, "log": "500m"}, resources={"requests": {"cpu": "4.0"}})
    assert mutated(document, NODES)["spec"]["resources"] == {
        "requests": {"cpu": "4.0"},
        "limits": {"cpu": "4"},
    }


@table(
    "listed, words, expected",
    {
        "the pool is smaller": ({"main": 2, "log": None}, "isolate", {"main": 2, "log": 1, "proxy": 1}),
        "the pool is empty": ({"main": 3, "log": None}, "isolate", {"main": 3, "proxy": 1}),
        "a slice requests the pool": ({"main": 2, "side": 1}, "isolate", {"main": 2, "side": 1, "proxy": 1}),
    },
)
def test_a_later_slice_is_taken_out_of_the_count_of_the_pool(listed: Any, words: str, expected: Any) -> None:
    """The webhook refused its own count, with the remedy to remove it."""
    stored = meshed(budgeted("a", 4, listed, annotations=WORDS[words]), ADDED["with a whole CPU"])
    assert {name: amounts[ISOLATED] for name, amounts in counted(stored).items()} == expected


def test_counts_of_a_pod_that_was_copied_are_those_of_the_copy() -> None:
    """A user edits the CPUs of a pod that was read from the API server, or takes its budget away."""
    stored = mutated(budgeted("a", 4, {"main": 2, "log": None}, annotations=WORDS["isolate"]), NODES)
    larger, bare = copy.deepcopy(stored), copy.deepcopy(stored)
    larger["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "3"
    assert counted(mutated(larger, NODES)) == {"main": {ISOLATED: 3}, "log": {ISOLATED: 1}}
    del bare["spec"]["resources"]
    assert counted(mutated(bare, NODES)) == {"main": {ISOLATED: 2}}


@table(
    "given, expected",
    {"right for a node": (2, 2), "too few": (0, 1), "too many": (9, 2)},
)
def test_a_count_is_corrected_to_what_can_be_right(given: int, expected: int) -> None:
    """A replica that does not know the threads per core leaves a count that is right for a node."""
    document: Any = budgeted("a", 4, {"main": 2, "log": "500m"}, annotations=WORDS["require"])
    document["spec"]["containers"][1]["resources"]["limits"][WHOLE] = str(given)
    document["metadata"]["annotations"]["pod-budget.corepin.io/cpus"] = "4"
    plan = plan_mutation(document, load_settings(b""), Injection(BUILT_IN))
    path = "/spec/containers/1/resources/limits/corepin.io~1whole-cores"
    written = [step["value"] for step in plan.operations if step["path"] == path]
    assert written == ([] if given == expected else [str(expected)])


def test_the_users_count_of_the_pool_stays_beside_corepins() -> None:
    """A second call removed corepin's count from `log`, because the user's made `web` the container for the pool's counts."""
    settings = b"{numaCPUs: true, isolatedCores: false, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}]}"
    words = {"numa-policy.corepin.io/pod": "single", **WORDS["isolate"]}
    document: Any = budgeted("a", 4, {"main": 2, "log": None, "web": None}, annotations=words)
    document["spec"]["containers"][2]["resources"] = {
        kind: {ISOLATED: "2"} for kind in ("limits", "requests")
    }
    stored = mutated(document, settings)
    assert counted(stored) == {"web": {ISOLATED: 2, NUMA: 8}}
    assert not review_new_pod(stored, load_settings(settings), Injection(BUILT_IN)).causes


def test_validation_names_the_order_of_webhooks() -> None:
    """The API server calls a webhook twice at most, so that another one may have changed the pod after the second call."""
    stored = mutated(budgeted("a", 4, {"main": 2, "log": None}, annotations=WORDS["isolate"]), NODES)
    stored["spec"]["containers"].append(
        {"name": "proxy", "resources": {"limits": {"cpu": "1", ISOLATED: "1"}}}
    )
    causes = review_new_pod(stored, load_settings(NODES), Injection(BUILT_IN)).causes
    assert fields(causes)[0] == f"spec.containers[1].resources.requests[{ISOLATED}]"
    assert "another webhook changed the pod" in causes[0].message
    users_own: Any = budgeted("a", None, {"main": 2}, annotations=WORDS["isolate"])
    users_own["spec"]["containers"][0]["resources"]["limits"][ISOLATED] = "1"
    causes = review_new_pod(users_own, load_settings(NODES), Injection(BUILT_IN)).causes
    assert causes[0].message.endswith("remove it, corepin sets it where it is counted")
