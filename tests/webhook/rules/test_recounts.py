"""Pods with a budget to which another webhook adds a container: corepin is called again, and judges its own counts."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from pinning.contract import POD_BUDGET
from pinning.pods.claims import read_pod
from pinning.pods.qos import pod_amounts
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted
from tests.pods import fields
from tests.tables import table
from tests.webhook.rules.mutated import mutated, planned, reviewed

WHOLE, NUMA, ISOLATED = "corepin.io/whole-cores", "corepin.io/numa-cpus", "corepin.io/isolated-cores"
WORDS: dict[str, dict[str, str]] = {
    "require": {"smt-policy.corepin.io/pod": "require"},
    "isolate": {"smt-policy.corepin.io/pod": "isolate"},
    "single": {**EXCLUSIVE, "numa-policy.corepin.io/pod": "single"},
}
COMBINED = {
    **WORDS,
    "require on one node": {**WORDS["require"], "numa-policy.corepin.io/pod": "single"},
    "isolate on one node": {**WORDS["isolate"], "numa-policy.corepin.io/pod": "single"},
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
    """Return the stored pod after a later webhook has added a sidecar."""
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


def sums(document: Any) -> dict[str, int]:
    """Return the sum of each counted resource over the containers of a pod."""
    return {key: sum(it.get(key, 0) for it in counted(document).values()) for key in (WHOLE, NUMA, ISOLATED)}


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
    assert not reviewed(stored, NODES).causes
    document["spec"]["resources"] = {kind: {"cpu": "4"} for kind in ("limits", "requests")}
    document["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": SIDECAR, "resources": copy.deepcopy(resources)}
    ]
    assert sums(stored) == sums(mutated(document, NODES))


@table(
    "listed, resources, words",
    {
        "a slice": (
            {"main": 2, "side": 1},
            {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
            WORDS["single"],
        ),
        "a request": ({"main": 2, "log": None}, {"requests": {"cpu": "2"}}, WORDS["single"]),
        "a request beside another": (
            {"main": 2, "log": "500m"},
            {"requests": {"cpu": "1500m"}},
            {**WORDS["single"], **WORDS["require"]},
        ),
    },
)
def test_a_budget_that_a_later_sidecar_makes_is_counted(listed: Any, resources: Any, words: Any) -> None:
    """If a later sidecar gives the pod a budget, all its CPUs are counted, and validation accepts the counts."""
    stated = {"limits": {"cpu": "4"}}
    document: Any = budgeted("a", None, listed, annotations=words, resources=copy.deepcopy(stated))
    assert read_pod(document).budget is None
    stored = meshed(document, resources)
    budget = read_pod(stored).budget
    assert budget
    assert budget.cpus == 4
    assert stored["metadata"]["annotations"][POD_BUDGET] == "4"
    assert sum(amounts.get(NUMA, 0) for amounts in counted(stored).values()) == 4
    assert not reviewed(stored, NODES).causes


@table(
    "listed, inits, stated",
    {
        "one container": ({"main": 2}, {}, "both"),
        "two slices": ({"a": 2, "b": 1}, {}, "a request"),
        "a pool": ({"main": 3, "log": None}, {}, "both"),
        "an init container": ({"log": None}, {"init": (2, "")}, "both"),
        "a sidecar": ({"log": None}, {"side": (2, SIDECAR)}, "both"),
    },
)
@pytest.mark.parametrize("words", COMBINED.values(), ids=COMBINED)
def test_a_budget_that_a_later_webhook_adds_is_counted(
    listed: Any, inits: Any, stated: str, words: dict[str, str]
) -> None:
    """A pod that gets `spec.resources` from a later webhook is counted as if it had been sent with it."""
    document: Any = budgeted("a", None, listed, inits, annotations=words)
    stored = mutated(document, NODES)
    for pod in (document, stored):
        pod["spec"]["resources"] = copy.deepcopy(STATED[stated])
    stored = mutated(stored, NODES)
    assert stored["metadata"]["annotations"][POD_BUDGET] == "4"
    assert not reviewed(stored, NODES).causes
    assert sums(stored) == sums(mutated(document, NODES))


@pytest.mark.parametrize("words", COMBINED.values(), ids=COMBINED)
@pytest.mark.parametrize("stated", STATED.values(), ids=STATED)
def test_a_corrected_request_gets_an_equal_limit(stated: Any, words: dict[str, str]) -> None:
    """A count that is requested without a limit, and is right without the budget alone, is corrected in both."""
    document: Any = budgeted("a", None, {"main": 2, "log": None}, annotations=words)
    amounts = mutated(document, NODES)["spec"]["containers"][0]["resources"]["requests"]
    document["spec"]["containers"][0]["resources"]["requests"] = amounts
    document["spec"]["resources"] = copy.deepcopy(stated)
    stored = mutated(document, NODES)
    assert not reviewed(stored, NODES).causes
    assert sums(stored)  # limits and requests are equal


@pytest.mark.parametrize("words", COMBINED.values(), ids=COMBINED)
def test_a_refused_count_of_a_budget_that_a_later_webhook_adds_names_that_webhook(words: Any) -> None:
    """If corepin is not called again, the refusal of its count says that another webhook changed the pod."""
    stored = mutated(budgeted("a", None, {"main": 2}, annotations=words), NODES)
    stored["spec"]["resources"] = copy.deepcopy(STATED["both"])
    causes = reviewed(stored, NODES).causes
    messages = [it.message for it in causes if "not injected" not in it.message]
    assert messages
    assert all("another webhook changed the pod" in it for it in messages)


@table(
    "resource, amount, is_refused",
    {"wrong": (ISOLATED, "1", True), "right": (ISOLATED, "2", False), "needless": (WHOLE, "1", False)},
)
def test_a_count_of_the_users_own_is_judged_alike_in_each_call(
    resource: str, amount: str, is_refused: bool
) -> None:
    """A user's own count is kept or refused alike, whether or not a later webhook causes a second call."""
    document: Any = budgeted("a", 4, {"main": 2, "log": None}, annotations=WORDS["isolate"])
    for kind in ("limits", "requests"):
        document["spec"]["containers"][0]["resources"][kind] = {"cpu": "2", resource: amount}
    stored = meshed(document, ADDED["without amounts"])
    assert stored["spec"]["containers"][0]["resources"]["requests"][resource] == amount
    refused = fields(reviewed(stored, NODES).causes)
    assert refused == ([f"spec.containers[0].resources.requests[{ISOLATED}]"] if is_refused else [])


def test_pod_level_cpu_that_is_no_budget_is_not_reported_as_dropped() -> None:
    """Pod-level CPU that is not a budget is not reported when the API server drops it."""
    document: Any = budgeted("a", None, {"main": 2, "log": None}, annotations=WORDS["single"])
    document["spec"]["resources"] = {"limits": {"cpu": "4"}}
    stored = mutated(document, NODES)
    assert stored["metadata"]["annotations"][POD_BUDGET] == "none"
    del stored["spec"]["resources"]
    verdict = reviewed(stored, NODES)
    assert not verdict.causes
    assert "spec.resources" not in fields(verdict.warnings)


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
    """A slice that a later webhook adds is subtracted from the pool's count."""
    stored = meshed(budgeted("a", 4, listed, annotations=WORDS[words]), ADDED["with a whole CPU"])
    assert {name: amounts[ISOLATED] for name, amounts in counted(stored).items()} == expected


def test_counts_of_a_pod_that_was_copied_are_those_of_the_copy() -> None:
    """The counts of a pod that was copied and edited are those of its new amounts."""
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
    """A webhook that does not know the threads per core keeps a count that is right for some node."""
    document: Any = budgeted("a", 4, {"main": 2, "log": "500m"}, annotations=WORDS["require"])
    document["spec"]["containers"][1]["resources"]["limits"][WHOLE] = str(given)
    document["metadata"]["annotations"]["pod-budget.corepin.io/cpus"] = "4"
    plan = planned(document)
    path = "/spec/containers/1/resources/limits/corepin.io~1whole-cores"
    written = [step["value"] for step in plan.operations if step["path"] == path]
    assert written == ([] if given == expected else [str(expected)])


def test_the_users_count_of_the_pool_stays_beside_corepins() -> None:
    """A user's count of the pool and corepin's other count are on the same container after both calls."""
    settings = b"{numaCPUs: true, isolatedCores: false, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}]}"
    words = {"numa-policy.corepin.io/pod": "single", **WORDS["isolate"]}
    document: Any = budgeted("a", 4, {"main": 2, "log": None, "web": None}, annotations=words)
    document["spec"]["containers"][2]["resources"] = {
        kind: {ISOLATED: "2"} for kind in ("limits", "requests")
    }
    stored = mutated(document, settings)
    assert counted(stored) == {"web": {ISOLATED: 2, NUMA: 8}}
    assert not reviewed(stored, settings).causes


def test_validation_names_the_order_of_webhooks() -> None:
    """A wrong count after the second call is refused with the reason that another webhook changed the pod."""
    stored = mutated(budgeted("a", 4, {"main": 2, "log": None}, annotations=WORDS["isolate"]), NODES)
    stored["spec"]["containers"].append(
        {"name": "proxy", "resources": {"limits": {"cpu": "1", ISOLATED: "1"}}}
    )
    causes = reviewed(stored, NODES).causes
    assert fields(causes)[0] == f"spec.containers[1].resources.requests[{ISOLATED}]"
    assert "another webhook changed the pod" in causes[0].message
    users_own: Any = budgeted("a", None, {"main": 2}, annotations=WORDS["isolate"])
    users_own["spec"]["containers"][0]["resources"]["limits"][ISOLATED] = "1"
    causes = reviewed(users_own, NODES).causes
    assert causes[0].message.endswith(
        "remove it from requests and limits; corepin adds it if the webhook is configured to count it"
    )


MEMORY: dict[str, Any] = {"limits": {"memory": "1Gi"}}


@table(
    "containers, inits, words",
    {
        "whole CPUs": (
            {"main": 2},
            {},
            {**WORDS["require"], "smt-policy.corepin.io/container.main": "prefer"},
        ),
        "a larger init container": ({"main": 1}, {"first": (3, "")}, WORDS["isolate"]),
        "on one node": ({"main": 1}, {"first": (3, "")}, COMBINED["require on one node"]),
        "fractions": ({"main": "1500m", "log": "500m"}, {}, WORDS["require"]),
    },
)
@pytest.mark.parametrize(
    "settings", [NODES, b"{gate: true, gateImage: 'r/corepin:1'}"], ids=["counts", "gate"]
)
def test_memory_alone_is_validated_as_it_was_mutated(
    containers: Any, inits: Any, words: dict[str, str], settings: bytes
) -> None:
    """The API server adds the containers' CPUs to pod-level memory after mutation; validation misses nothing then."""
    sent: Any = budgeted("a", None, containers, inits, annotations=words, resources=copy.deepcopy(MEMORY))
    ours = mutated(sent, settings)
    assert ours["spec"]["resources"] == MEMORY
    amounts = pod_amounts(ours, ("cpu",))
    assert amounts
    for kind, given in (("limits", amounts.limits), ("requests", amounts.requests)):
        ours["spec"]["resources"].setdefault(kind, {})["cpu"] = str(given["cpu"])
    verdict = reviewed(ours, settings)
    assert not verdict.causes


def test_a_later_sidecar_beside_memory_alone_stays_valid() -> None:
    """No pod-level CPU is written beside memory alone, because a later container's request would exceed it."""
    sent: Any = budgeted(
        "a", None, {"main": 2}, annotations=WORDS["isolate"], resources=copy.deepcopy(MEMORY)
    )
    stored = meshed(sent, {"requests": {"cpu": "100m"}})
    assert stored["spec"]["resources"] == MEMORY
    assert counted(stored) == {"main": {ISOLATED: 2}}
