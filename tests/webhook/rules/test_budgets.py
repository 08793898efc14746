"""Pods with a budget at admission: what the scheduler counts, what no node has, and which resizes are refused."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import Mock

import pytest

from pinning.contract import FILLED_IN, GATE_CONTAINER, GUARDED, LIMIT_RANGER
from pinning.pods import claims
from pinning.pods.claims import read_pod
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted
from tests.pods import fields
from tests.tables import table
from tests.webhook.rules.mutated import changed, mutated, patched, planned, reviewed
from webhook.config.settings import load_settings

FIELD = "spec.resources.limits[cpu]"
WHOLE, NUMA, ISOLATED = "corepin.io/whole-cores", "corepin.io/numa-cpus", "corepin.io/isolated-cores"
REQUIRE = {"smt-policy.corepin.io/pod": "require"}
ISOLATE = {"smt-policy.corepin.io/pod": "isolate"}
SINGLE = {**EXCLUSIVE, "numa-policy.corepin.io/pod": "single"}
NODES = b"{numaCPUs: true, isolatedCores: true, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}]}"
PLAIN = load_settings(b"")


def counts(document: Any, settings: bytes = NODES) -> dict[str, dict[str, int]]:
    """Return the counted resources of each container of a pod after its plan, which is idempotent."""
    result = mutated(document, settings)
    assert not reviewed(result, settings).causes
    listed = [*result["spec"]["initContainers"], *result["spec"]["containers"]]
    limits = {it["name"]: (it.get("resources") or {}).get("limits") or {} for it in listed}
    return {
        name: {key: int(amount) for key, amount in given.items() if key in (WHOLE, NUMA, ISOLATED)}
        for name, given in limits.items()
    }


@table(
    "annotations, expected",
    {
        "nothing to count": (EXCLUSIVE, {"m": {}, "log": {}, "web": {}}),
        "require: each part's cores": (REQUIRE, {"m": {WHOLE: 1}, "log": {WHOLE: 2}, "web": {}}),
        "isolate": (ISOLATE, {"m": {ISOLATED: 2}, "log": {ISOLATED: 3}, "web": {}}),
        "single: the whole budget": (SINGLE, {"m": {}, "log": {NUMA: 5}, "web": {}}),
        "with idle CPUs": ({**SINGLE, **REQUIRE}, {"m": {WHOLE: 1}, "log": {WHOLE: 2, NUMA: 6}, "web": {}}),
        "single for a container": (
            {**EXCLUSIVE, "numa-policy.corepin.io/container.m": "single"},
            {"m": {NUMA: 2}, "log": {}, "web": {}},
        ),
    },
)
def test_the_first_container_without_a_slice_counts_the_pool(
    annotations: dict[str, str], expected: dict[str, dict[str, int]]
) -> None:
    """The container that carries the pool requests its cores, because spec.resources takes no extended resources."""
    assert counts(budgeted("a", 5, {"m": 2, "log": None, "web": None}, annotations=annotations)) == expected


@pytest.mark.parametrize("policies", [EXCLUSIVE, REQUIRE, ISOLATE, SINGLE])
@pytest.mark.parametrize("settings", [NODES, b""])
def test_mutation_computes_no_budget(
    policies: dict[str, str], settings: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutating webhook needs only the pool's size, and does not compute the budget."""
    computed = Mock(side_effect=claims._budget)
    monkeypatch.setattr(claims, "_budget", computed)
    document: Any = budgeted("a", 5, {"m": 2, "log": None}, annotations={**EXCLUSIVE, **policies})
    planned(document, settings)
    computed.assert_not_called()


def test_a_pod_of_slices_counts_the_pool_on_the_first_of_them() -> None:
    """If every container has a slice, the first one requests the pool's cores."""
    assert counts(budgeted("a", 5, {"m": 2, "n": 1}, annotations=REQUIRE)) == {
        "m": {WHOLE: 2},
        "n": {WHOLE: 1},
    }
    assert counts(budgeted("a", 3, {"m": 2, "n": 1}, annotations=REQUIRE)) == {
        "m": {WHOLE: 1},
        "n": {WHOLE: 1},
    }


def test_init_containers_count_nothing_of_the_pool() -> None:
    """The carrier of the pool's request runs as long as the pod: a main container or a sidecar."""
    inits: Any = {"init": (2, ""), "side": (None, SIDECAR)}
    found = counts(budgeted("a", 4, {"m": 2}, inits, {**SINGLE, **REQUIRE}))
    assert found == {"init": {WHOLE: 1}, "side": {WHOLE: 1, NUMA: 4}, "m": {WHOLE: 1}}


@table(
    "listed, words, expected",
    {
        "a container without a slice": ({"m": None}, ISOLATE, {"m": {ISOLATED: 4}}),
        "of one NUMA node": ({"m": None}, {**ISOLATE, **SINGLE}, {"m": {ISOLATED: 4, NUMA: 8}}),
        "by whole cores": ({"m": None}, REQUIRE, {"m": {WHOLE: 2}}),
        "a slice": ({"a": 2}, ISOLATE, {"a": {ISOLATED: 4}}),
        "slices of one NUMA node": ({"a": 2, "b": 2}, SINGLE, {"a": {NUMA: 4}, "b": {}}),
    },
)
def test_a_container_added_later_requests_nothing_of_the_pool_again(
    listed: Any, words: Any, expected: Any
) -> None:
    """If another webhook puts a container in front and the API server calls corepin again, one request stays enough."""
    document: Any = budgeted("a", 4, listed, annotations=words)
    first = patched(document, NODES)
    for where in ("initContainers", "containers"):
        again = copy.deepcopy(first)
        again["spec"][where].insert(0, {"name": "proxy", "restartPolicy": SIDECAR})
        assert counts(again) == {"proxy": {}, **expected}


def test_a_users_request_for_the_pool_is_judged_where_it_is() -> None:
    """The request may be on any container of the pool, and corepin does not add it a second time."""
    for given, is_right in ((3, True), (4, False)):
        document: Any = budgeted("a", 5, {"m": 2, "log": None, "web": None}, annotations=ISOLATE)
        amount = {kind: {ISOLATED: given} for kind in ("limits", "requests")}
        document["spec"]["containers"][2]["resources"] = amount
        document = patched(document)
        assert "resources" not in document["spec"]["containers"][1]
        causes = reviewed(document).causes
        field = "spec.containers[2].resources.requests[corepin.io/isolated-cores]"
        assert fields(causes) == ([] if is_right else [field])


def test_a_wrong_request_for_the_pool_is_refused() -> None:
    """A user's wrong request for the pool is refused with the right amount."""
    document: Any = budgeted("a", 5, {"m": 2, "log": None}, annotations=ISOLATE)
    for right, given in ((True, 3), (False, 2)):
        document["spec"]["containers"][1]["resources"] = {
            kind: {ISOLATED: given} for kind in ("limits", "requests")
        }
        causes = reviewed(document).causes
        assert (
            "spec.containers[1].resources.requests[corepin.io/isolated-cores]" in fields(causes)
        ) is not right


def test_a_budget_that_no_node_has_is_refused() -> None:
    """Slices and pool that need more whole cores than any node has are refused."""
    settings = b"nodeShapes: [{name: a, cores: 4, threadsPerCore: 2}]"
    large: Any = budgeted("a", 16, {"m": 2, "p": None}, annotations=REQUIRE)
    causes = reviewed(large, settings).causes
    assert FIELD in fields(causes)
    assert any("needs 8 whole cores for this pod" in cause.message for cause in causes)
    fitting: Any = budgeted("a", 4, {"m": 2, "p": None}, annotations=REQUIRE)
    assert FIELD not in fields(reviewed(fitting, settings).causes)


def test_a_pod_whose_pool_must_fit_is_marked_and_gated() -> None:
    """A pod without other claims is marked and gated if its pool must fit."""
    document: Any = budgeted("a", 4, {"p": None}, annotations=REQUIRE)
    result = patched(document, b"{gate: true, gateImage: registry.example/corepin}")
    assert result["spec"]["initContainers"][0]["name"] == GATE_CONTAINER
    assert GUARDED in result["metadata"]["annotations"]


def test_limits_of_a_limit_range_are_recorded_for_its_next_run() -> None:
    """If a later webhook adds a container and LimitRanger runs again, recorded limits still make no slices."""
    document: Any = budgeted("a", 4, {"m": 1, "log": 1}, annotations=ISOLATE)
    document["metadata"]["annotations"] |= {LIMIT_RANGER: _FILLED + "m; cpu limit for container log"}
    document = patched(document)
    assert document["metadata"]["annotations"][FILLED_IN] == "m,log"
    proxy = {"name": "proxy", "resources": {"limits": {"cpu": "1"}}}
    document["spec"]["containers"].append(proxy)
    document["metadata"]["annotations"][LIMIT_RANGER] = _FILLED + "proxy"
    document = patched(document)
    assert document["metadata"]["annotations"][FILLED_IN] == "m,log,proxy"
    assert patched(document) == document
    assert reviewed(document).causes == ()
    assert read_pod(document).slices == ()


@table(
    "record",
    {"of other containers": "gone,log", "of some": "m", "empty": "", "unreadable": "[m, log]"},
)
def test_a_record_of_limits_that_was_copied_is_completed(record: str) -> None:
    """The record of filled-in limits that a copied pod brings is completed by the limits that are filled in now."""
    words = {**ISOLATE, FILLED_IN: record, LIMIT_RANGER: _FILLED + "m; cpu limit for container log"}
    document = patched(budgeted("a", 4, {"m": 1, "log": 1}, annotations=words))
    assert document["metadata"]["annotations"][FILLED_IN] == "m,log"
    document["metadata"]["annotations"][LIMIT_RANGER] = _FILLED + "proxy"
    assert read_pod(document).slices == ()
    assert patched(document) == document


@pytest.mark.parametrize("record", ["m,log", "log,m,m,gone"])
def test_a_record_of_all_limits_is_left_as_it_is(record: str) -> None:
    """A record is replaced only if a container is missing."""
    words = {**ISOLATE, FILLED_IN: record, LIMIT_RANGER: _FILLED + "m; cpu limit for container log"}
    document = patched(budgeted("a", 4, {"m": 1, "log": 1}, annotations=words))
    assert document["metadata"]["annotations"][FILLED_IN] == record


_FILLED = "LimitRanger plugin set: cpu limit for container "


@pytest.mark.parametrize(
    ("cpu", "refused"),
    [("6", False), ("2", False), ("3500m", True)],
)
def test_a_resize_of_the_budget_is_reviewed(cpu: str, refused: bool) -> None:
    """A resize may grow or shrink the budget, to a whole number of CPUs."""
    old: Any = budgeted("a", 4, {"m": 2, "p": None})
    new: Any = budgeted("a", cpu, {"m": 2, "p": None})
    verdict = changed(old, new)
    assert fields(verdict.causes) == ([FIELD] if refused else [])
    if refused:
        assert verdict.causes[0].message.startswith(
            "the pod has a budget of 4 CPUs, and would have none: set limit"
        )
    else:
        assert fields(verdict.warnings) == ([FIELD] if cpu == "2" else [])


@table(
    "words, settings, budget, slice_, init, expected",
    {
        "inside the budget": (ISOLATE, b"", 6, 1, 2, []),
        "up to the whole budget": (ISOLATE, b"", 6, 6, 2, []),
        "of slice and budget, to more": (ISOLATE, b"", 7, 1, 2, ["4 cores for container log"]),
        "of slice and budget, to fewer": (ISOLATE, b"", 5, 3, 2, ["4 cores for container log"]),
        "of the budget": (ISOLATE, b"", 7, 2, 2, ["4 cores for container log"]),
        "of an init container": (ISOLATE, b"", 6, 1, 3, ["2 cores for container init"]),
        "inside the budget, as many cores": (REQUIRE, NODES, 6, 4, 2, []),
        "inside the budget, with two idle CPUs": (REQUIRE, NODES, 6, 1, 2, ["2 cores for container log"]),
        "where the number of threads is unknown": (REQUIRE, b"", 6, 1, 2, []),
        "of CPUs of one NUMA node": ({**SINGLE, **ISOLATE}, NODES, 6, 1, 2, []),
    },
)
def test_a_resize_warns_only_if_the_pod_has_another_sum_counted(
    words: dict[str, str], settings: bytes, budget: int, slice_: int, init: int, expected: list[str]
) -> None:
    """A resize warns only if the sum that the scheduler counts for slices and pool becomes too large or too small."""
    inits: Any = {"init": (2, "")}
    old = mutated(budgeted("a", 6, {"m": 2, "log": None}, inits, words), NODES)
    new = copy.deepcopy(old)
    new["spec"]["resources"] = {kind: {"cpu": str(budget)} for kind in ("limits", "requests")}
    for listed, cpus in (("containers", slice_), ("initContainers", init)):
        new["spec"][listed][0]["resources"]["limits"]["cpu"] = str(cpus)
    warnings = changed(old, new, settings).warnings
    counted = [it.message for it in warnings if it.message.startswith("the scheduler still counts")]
    assert [message.partition(",")[0] for message in counted] == [
        f"the scheduler still counts {text}" for text in expected
    ]


@table(
    "old, new, words, warned",
    {
        "a first limit": ({"log": None}, {"log": 1}, {}, True),
        "a limit that was there": ({"log": "500m"}, {"log": 1}, {}, False),
        "a first limit that makes no slice": ({"log": None}, {"log": "500m"}, {}, False),
        "a container that is named": ({"log": None}, {"log": 1}, {"container.log": "exclusive"}, False),
        "no budget before": ({"log": None}, {"log": 1}, {"pod": "share"}, False),
    },
)
def test_a_resize_warns_of_a_first_cpu_limit(old: Any, new: Any, words: Any, warned: bool) -> None:
    """A resize that gives a container its first CPU limit is a warning, because the agent keeps it in the pool."""
    annotations = {**EXCLUSIVE, **{f"cpu-manager.corepin.io/{scope}": word for scope, word in words.items()}}
    before: Any = budgeted("a", 4, {"m": 2, **old}, annotations=annotations)
    after: Any = budgeted("a", 5, {"m": 2, **new}, annotations=annotations)
    warnings = [it for it in changed(before, after).warnings if "LimitRange" in it.message]
    assert fields(warnings) == (["spec.containers[1].resources.limits[cpu]"] if warned else [])
    assert not warned or "cpu-manager.corepin.io/container.log: exclusive" in warnings[0].message


@table(
    "words, limit",
    {
        "another sum of cores": (REQUIRE, 1),
        "an empty pool": (ISOLATE, 4),
        "a quota that is unset": ({**EXCLUSIVE, "shared-cpus.corepin.io/pod": "true"}, 1),
    },
)
def test_a_first_cpu_limit_causes_no_other_warning(words: dict[str, str], limit: int) -> None:
    """A container's first CPU limit at a resize changes no count, so that there is no other warning."""
    old = mutated(budgeted("a", 6, {"m": 2, "log": None, "web": None}, annotations=words), NODES)
    new = copy.deepcopy(old)
    resources = new["spec"]["containers"][1].setdefault("resources", {})
    for kind in ("limits", "requests"):
        resources.setdefault(kind, {})["cpu"] = str(limit)
    verdict = changed(old, new, NODES)
    assert not verdict.causes
    assert [it.message.partition(",")[0] for it in verdict.warnings] == [
        "container log had no CPU limit until now"
    ]


def test_a_first_cpu_limit_needs_no_further_core() -> None:
    """A first CPU limit makes no slice, so that it needs no core beside those of the pool."""
    settings = load_settings(b"nodeShapes: [{name: a, cores: 4, threadsPerCore: 2}]")
    old: Any = budgeted("a", 6, {"m": 2, "log": None, "web": None}, annotations=REQUIRE)
    new = copy.deepcopy(old)
    new["spec"]["containers"][1]["resources"] = {"limits": {"cpu": "1"}}
    assert changed(old, new, settings).causes == ()
    new["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "3"}}
    new["metadata"]["annotations"]["cpu-manager.corepin.io/container.log"] = "exclusive"
    assert "needs 4 whole cores" in changed(old, new, settings).causes[0].message


@table(
    "words, settings, budget, slice_, expected",
    {
        "of an empty pool": (ISOLATE, b"", 8, 6, ["0 cores for container log"]),
        "of slice and budget": (ISOLATE, b"", 8, 8, ["6 cores for container m"]),
        "inside the budget": (ISOLATE, b"", 6, 4, []),
        "where nothing is counted": (ISOLATE, b"{isolatedCores: false}", 8, 6, []),
        "of whole cores": (REQUIRE, NODES, 8, 6, ["0 cores for container log"]),
    },
)
def test_a_resize_warns_of_a_container_for_which_nothing_is_counted(
    words: dict[str, str], settings: bytes, budget: int, slice_: int, expected: list[str]
) -> None:
    """A resize that fills an empty pool warns that no container requests the pool's cores."""
    counted = settings if b"false" in settings else NODES
    old = mutated(budgeted("a", 6, {"m": 6, "log": None}, annotations=words), counted)
    assert not {WHOLE, ISOLATED} & (old["spec"]["containers"][1].get("resources") or {}).keys()
    new = copy.deepcopy(old)
    new["spec"]["resources"] = {kind: {"cpu": str(budget)} for kind in ("limits", "requests")}
    new["spec"]["containers"][0]["resources"]["limits"]["cpu"] = str(slice_)
    warnings = changed(old, new, settings).warnings
    counted_texts = [it.message for it in warnings if it.message.startswith("the scheduler still counts")]
    assert [message.partition(",")[0] for message in counted_texts] == [
        f"the scheduler still counts {text}" for text in expected
    ]


def test_a_resize_to_a_fraction_takes_nothing_from_a_pod_whose_pool_is_empty() -> None:
    """A budget whose CPUs are all slices may be resized to a fraction."""
    old: Any = budgeted("a", 4, {"m": 4, "p": None})
    new: Any = budgeted("a", "4500m", {"m": 4, "p": None})
    assert not changed(old, new).causes


@pytest.mark.parametrize("inits", [{}, {"init": (2, "")}])
def test_a_pod_without_containers_is_reviewed(inits: Any) -> None:
    """A pod without containers is reviewed without an error, since the API server refuses it later."""
    document: Any = budgeted("a", 4, {}, inits, {**SINGLE, **REQUIRE})
    assert not [it for it in planned(document, NODES).operations if it["path"] == ""]
    reviewed(document, NODES)
    larger: Any = budgeted("a", 5, {}, inits, {**SINGLE, **REQUIRE})
    changed(document, larger, NODES)


def test_an_edit_may_give_the_budget_back() -> None:
    """A budget may become a fraction in the edit that sets the policy `none`."""
    old: Any = budgeted("a", 4, {"p": None})
    new: Any = budgeted("a", 4, {"p": None}, annotations={"cpu-manager.corepin.io/pod": "none"})
    assert not changed(old, new).causes


def test_a_resize_of_a_pod_without_policies_is_not_looked_at() -> None:
    """A resize of a budget without policies is admitted."""
    old: Any = budgeted("a", 4, {"p": None}, annotations={})
    new: Any = budgeted("a", "3500m", {"p": None}, annotations={})
    verdict = changed(old, new)
    assert (verdict.causes, verdict.warnings) == ((), ())


def stored_without_budget(document: Any) -> Any:
    """Return a pod as an API server stores it that drops pod-level resources after mutation."""
    stored = mutated(document, NODES)
    del stored["spec"]["resources"]
    return stored


def test_a_dropped_budget_is_told() -> None:
    """A pod whose budget the API server dropped after mutation is admitted with a warning."""
    stored = stored_without_budget(budgeted("a", 4, {"m": 2, "log": None}))
    verdict = reviewed(stored, NODES)
    assert (verdict.causes, fields(verdict.warnings)[0]) == ((), "spec.resources")
    assert verdict.warnings[0].message.startswith(
        "the pod was sent with a budget of 4 CPUs, which the API server drops"
    )
    whole = mutated(budgeted("a", 4, {"m": 2, "log": None}), NODES)
    assert not reviewed(whole, NODES).warnings


@pytest.mark.parametrize(("words", "resource"), [(REQUIRE, WHOLE), (ISOLATE, ISOLATED)])
def test_no_cores_are_counted_for_a_dropped_pool(words: dict[str, str], resource: str) -> None:
    """A pod that still requests cores for a dropped pool is refused, because the scheduler would count them in vain."""
    stored = stored_without_budget(budgeted("a", 4, {"m": 2, "log": None}, annotations=words))
    verdict = reviewed(stored, NODES)
    assert fields(verdict.causes) == [f"spec.containers[1].resources.requests[{resource}]"]
    assert "PodLevelResources is off" in verdict.causes[0].message


def test_the_record_of_a_budget_is_of_this_pod() -> None:
    """A copied pod gets a record of its own budget, or none without a budget."""
    key = "pod-budget.corepin.io/cpus"
    for budget, expected in ((5, "5"), (None, None)):
        copied = budgeted("a", budget, {"m": 2, "log": None}, annotations={**EXCLUSIVE, key: "4"})
        stored = mutated(copied, b"")
        assert stored["metadata"]["annotations"].get(key) == expected
        assert planned(stored).operations == ()
        warned = reviewed(stored).warnings
        assert "spec.resources" not in fields(warned)
