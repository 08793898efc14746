"""The budget of a pod: pods that have one, slices of containers, and warnings."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from pinning.contract import FILLED_IN, LIMIT_RANGER, NoisePolicy
from pinning.pods.budget import filled_in, filled_in_annotation
from pinning.pods.claims import read_pod
from pinning.pods.qos import pod_amounts
from pinning.pods.resources import Role
from tests.pinning.budgets import EXCLUSIVE, SIDECAR, budgeted
from tests.pods import fields
from tests.tables import table

FIELD = "spec.resources.limits[cpu]"
SMT = "smt-policy.corepin.io/"


def read(*given: Any, **more: Any) -> Any:
    """Return the claims of a pod with a budget."""
    document: Any = budgeted("a", *given, **more)
    return read_pod(document)


@table(
    "annotations, has_one",
    {
        "exclusive": (EXCLUSIVE, True),
        "another family": ({"cpu-policy.gocrane.io/cpu-manager": "exclusive"}, None),
        "crane's key": ({"qos.gocrane.io/cpu-manager": "exclusive"}, True),
        "require alone": ({f"{SMT}pod": "require"}, True),
        "isolate alone": ({f"{SMT}pod": "isolate"}, True),
        "prefer alone": ({f"{SMT}pod": "prefer"}, None),
        "share": ({"cpu-manager.corepin.io/pod": "share"}, None),
        "none": ({"cpu-manager.corepin.io/pod": "none", f"{SMT}pod": "require"}, None),
        "a container's alone": ({"cpu-manager.corepin.io/container.m": "exclusive"}, None),
        "no policy": ({}, None),
    },
)
def test_pods_that_ask_for_exclusive_cpus_as_a_whole_have_a_budget(
    annotations: dict[str, str], has_one: bool | None
) -> None:
    """A pod has a budget if its pod-wide annotation asks for exclusive CPUs, not if only its containers' do."""
    found = read(4, {"m": 2, "p": None}, annotations=annotations)
    assert (found.budget is not None) is bool(has_one)
    assert FIELD not in fields(found.warnings)


@table(
    "limit, requested, message",
    {
        "a fraction": ("3500m", None, "limit 3500m and request 3.5 (filled in) give the pod no CPUs"),
        "request below the limit": ("4", "2", "limit 4 and request 2 give"),
        "no limit": (None, "4", "limit absent and request 4 give"),
        "nothing": ("0", None, "limit 0 and request 0 (filled in)"),
        "too many": ("99999999", None, "more than any machine has"),
    },
)
def test_pod_level_cpu_that_is_no_budget_is_warned_about(
    limit: str | None, requested: str | None, message: str
) -> None:
    """A pod-level CPU amount that is not a budget is a warning, and the pod is read as without it."""
    document: Any = budgeted("a", 4, {"m": None})
    document["spec"]["resources"] = {
        "limits": {} if limit is None else {"cpu": limit},
        "requests": {} if requested is None else {"cpu": requested},
    }
    found = read_pod(document)
    assert found.budget is None
    assert found.pool is None
    (warning,) = [warning for warning in found.warnings if warning.field == FIELD]
    assert message in warning.message


def test_one_cpu_is_the_least_budget() -> None:
    """A pod-level CPU of 1 is a budget, whose pool is that CPU."""
    found = read(1, {"m": None})
    assert (found.budget.cpus, found.pool.count) == (1, 1)
    assert not found.warnings


MEMORY = {"limits": {"memory": "1Gi"}}


@table(
    "containers, inits, expected",
    {
        "whole CPUs": ({"m": 2, "n": 1}, {}, (3, 0)),
        "a pool while an init container is larger": ({"m": 1}, {"i": (3, "")}, (3, 2)),
        "fractions with a whole sum": ({"m": "1500m", "n": "500m"}, {}, (2, 2)),
        "a fraction": ({"m": 2, "n": "500m"}, {}, None),
        "a container without CPU": ({"m": 2, "n": None}, {}, None),
        "no CPU": ({"m": None}, {}, None),
    },
)
def test_memory_alone_is_a_budget_of_the_containers_cpus(
    containers: Any, inits: Any, expected: tuple[int, int] | None
) -> None:
    """A pod that states memory at pod level is read as stored: the API server adds the containers' CPUs there."""
    document: Any = budgeted("a", None, containers, inits, resources=MEMORY)
    found = read_pod(document)
    assert ((found.budget.cpus, found.pool.count) if found.budget and found.pool else None) == expected
    stored = pod_amounts(document)
    assert stored
    for kind, given in (("limits", stored.limits), ("requests", stored.requests)):
        document["spec"]["resources"] = {**document["spec"]["resources"], kind: written(given)}
    assert read_pod(document).budget == found.budget


def written(amounts: Any) -> dict[str, str]:
    """Return amounts as the API server writes them."""
    return {name: f"{int(amount * 1000)}m" for name, amount in amounts.items()}


def test_the_budget_is_what_the_api_server_will_store() -> None:
    """A pod-level limit that is missing is the sum of the containers' limits, if each has one, as in the API server."""
    document: Any = budgeted("a", 4, {"m": 3, "n": 1})
    document["spec"]["resources"] = {"requests": {"cpu": "4"}}
    budget = read_pod(document).budget
    assert budget
    assert budget.cpus == 4


@pytest.mark.parametrize(("allocated", "cpus"), [("2", 2), ("x", 4), (None, 4), ("1500m", None)])
def test_the_kubelet_has_the_last_word(allocated: str | None, cpus: int | None) -> None:
    """While a resize is pending, the budget is what the pod's status says the kubelet has allocated."""
    document: Any = budgeted("a", 4, {"m": None})
    document["status"] = {"allocatedResources": {"cpu": allocated} if allocated else None}
    budget = read_pod(document).budget
    assert (budget and budget.cpus) == cpus


def test_the_pool_is_what_the_slices_leave() -> None:
    """The pool is the budget less the slices of main containers and sidecars, not of ordinary init containers."""
    found = read(6, {"m": 2, "p": None}, {"side": (1, SIDECAR), "init": (4, ""), "gate": (None, "")})
    assert [claim.container for claim in found.slices] == ["side", "init", "m"]
    assert found.pool.count == 3
    assert [(user.container, user.start_index, user.role) for user in found.pool.pool.users] == [
        ("gate", 2, Role.INIT),
        ("p", 4, Role.MAIN),
    ]
    assert found.every_claim == (*found.claims, found.pool)
    assert found.carrier == "p"
    assert not found.causes


@pytest.mark.parametrize(
    ("containers", "inits", "carrier"),
    [
        ({"m": 2, "p": None}, {"side": (None, SIDECAR)}, "side"),
        ({"m": 2, "n": 1}, {"i": (None, "")}, "m"),
    ],
)
def test_one_container_carries_what_is_counted_for_the_pool(
    containers: Any, inits: Any, carrier: str
) -> None:
    """The pool's count is on the first lasting container without a slice, or else on the first lasting one."""
    assert read(6, containers, inits).carrier == carrier


def test_a_pod_without_pool_containers_is_not_warned_about_an_empty_pool() -> None:
    """An empty pool is no warning if no container uses it; an ordinary init container runs on the pod's CPUs."""
    found = read(2, {"m": 2}, {"init": (None, "")})
    assert (found.pool.count, found.every_claim) == (0, found.claims)
    assert not found.warnings


def test_an_empty_pool_is_warned_about() -> None:
    """The warning names the containers that run in the shared set."""
    (warning,) = read(2, {"m": 2, "web": None, "log": None}).warnings
    assert (warning.field, warning.message) == (
        FIELD,
        "PodPoolEmpty: all 2 CPUs of the pod are slices of other containers; containers without a slice run in the"
        " shared set instead of the pool: log, web",
    )
    assert not read(2, {"m": 2, "log": None}, resourceClaims=[{"name": "c"}]).warnings


def test_a_pod_without_slices_is_not_refused() -> None:
    """A budget without slices is valid, and the pod's policies apply to its pool."""
    annotations = {
        f"{SMT}pod": "require",
        "numa-policy.corepin.io/pod": "single",
        "numa-memory.corepin.io/pod": "bind",
        "core-type.corepin.io/pod": "efficient",
        "device-policy.corepin.io/pod": "prefer",
    }
    found = read(2, {"m": None}, annotations=annotations)
    assert (found.causes, found.warnings) == ((), ())
    pool = found.pool
    assert (str(pool.smt), str(pool.numa), str(pool.numa_memory), str(pool.core_type), str(pool.devices)) == (
        "require",
        "single",
        "bind",
        "efficient",
        "prefer",
    )
    assert pool.must_fit
    assert not read(2, {"m": None}).pool.must_fit


@table(
    "annotations, containers, expected",
    {
        "plain": (EXCLUSIVE, {"m": 2, "p": None}, False),
        "the pool alone": ({f"{SMT}pod": "require"}, {"p": None}, True),
        "a slice beside an empty pool": ({f"{SMT}pod": "require"}, {"m": 4}, True),
        "a slice": ({**EXCLUSIVE, f"{SMT}container.m": "isolate"}, {"m": 2, "p": None}, True),
        "prefer": ({**EXCLUSIVE, f"{SMT}pod": "prefer"}, {"m": 2, "p": None}, False),
        "single": ({**EXCLUSIVE, "numa-policy.corepin.io/pod": "single"}, {"p": None}, False),
        "devices": ({**EXCLUSIVE, "device-policy.corepin.io/pod": "require"}, {"p": None}, True),
    },
)
def test_a_pod_must_fit_if_one_of_its_parts_must(
    annotations: dict[str, str], containers: Any, expected: bool
) -> None:
    """A pod must fit if its pool or one of its slices must; an empty pool need not."""
    found = read(4, containers, annotations=annotations)
    assert found.must_fit is expected
    assert found.must_fit is any(claim.must_fit for claim in found.every_claim)


def test_no_budget_is_computed_to_know_whether_a_pod_must_fit() -> None:
    """Every new pod is asked, and cutting the budget costs as much as reading the claims of two containers."""
    asked: list[tuple[Any, Any]] = [
        ({"m": 2, "p": None}, EXCLUSIVE),
        ({"m": 2, "p": None}, {f"{SMT}pod": "require"}),
        ({"p": None}, {**EXCLUSIVE, f"{SMT}pod": "require"}),
    ]
    plain, of_slice, of_pool = (read(4, containers, annotations=it) for containers, it in asked)
    assert (plain.must_fit, of_slice.must_fit, of_pool.must_fit) == (False, True, True)
    assert not any("budget" in vars(it) for it in (plain, of_slice, of_pool))


def test_a_container_that_is_named_still_needs_whole_cpus() -> None:
    """A container that its own annotation names is refused without a whole CPU limit, instead of put into the pool."""
    annotations = {**EXCLUSIVE, "cpu-manager.corepin.io/container.p": "exclusive"}
    assert fields(read(4, {"m": 2, "p": None}, annotations=annotations).causes) == [
        "metadata.annotations[cpu-manager.corepin.io/container.p]"
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LimitRanger plugin set: cpu limit for container a", {"a"}),
        (
            "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for init container b",
            {"b"},
        ),
        ("LimitRanger plugin set: memory limit for container a; cpu request for container a", set()),
        ("anything; limit for ; cpu limit for", set()),
        ("", set()),
    ],
)
def test_filled_in_limits_are_read_from_the_annotation(text: str, found: set[str]) -> None:
    """The LimitRanger's annotation names CPU limits that were filled in; other resources do not count."""
    document: Any = {"metadata": {"annotations": {LIMIT_RANGER: text}}}
    assert filled_in(document) == found
    if found:
        document["metadata"]["annotations"] = {LIMIT_RANGER: filled_in_annotation(found)}
        assert filled_in(document) == found


def test_filled_in_limits_of_an_earlier_run_are_those_that_the_webhook_kept() -> None:
    """Filled-in limits of an earlier LimitRanger run, which the webhook recorded, count besides the annotation's."""
    again = "LimitRanger plugin set: cpu limit for container proxy"
    document: Any = {"metadata": {"annotations": {FILLED_IN: "a,b", LIMIT_RANGER: again}}}
    assert filled_in(document) == {"a", "b", "proxy"}
    document["metadata"]["annotations"].pop(LIMIT_RANGER)
    assert filled_in(document) == {"a", "b"}


@pytest.mark.parametrize(
    ("key", "part", "between"),
    [(FILLED_IN, "{:x}", ","), (LIMIT_RANGER, "cpu limit for {:x}", "; ")],
)
def test_the_first_parts_of_an_annotation_are_read(key: str, part: str, between: str) -> None:
    """No annotation takes much more memory than its text, because one of 3 MiB is only refused after the webhook."""
    every = range(3 * 2**20 // len(part.format(10**5) + between))
    document: Any = {"metadata": {"annotations": {key: between.join(map(part.format, every))}}}
    tracemalloc.start()
    try:
        found = filled_in(document)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == {f"{number:x}" for number in range(400)}
    assert peak < 8 * 2**20


@pytest.mark.parametrize(
    ("more", "slices"),
    [
        ({}, ["m"]),
        ({"cpu-manager.corepin.io/container.p": "exclusive"}, ["m", "p"]),
        ({f"{SMT}container.p": "require"}, ["m", "p"]),
    ],
)
def test_a_filled_in_limit_makes_no_slice_unless_the_container_is_named(
    more: dict[str, str], slices: list[str]
) -> None:
    """A LimitRange with whole defaults would make a slice of every sidecar."""
    annotations = {**EXCLUSIVE, LIMIT_RANGER: filled_in_annotation(["p"]), **more}
    found = read(4, {"m": 2, "p": 1}, annotations=annotations)
    assert [claim.container for claim in found.slices] == slices
    assert [claim.container for claim in found.budget.filled] == ([] if more else ["p"])


@table(
    "scope, slices, warned",
    {
        "for the container": ("container.p", {"m": 2}, True),
        "for the pod, whose slice uses it": ("pod", {"m": 2}, False),
        "for the pod, without a slice": ("pod", {"m": None}, True),
    },
)
def test_the_shared_set_beside_a_filled_in_limit_is_a_warning(
    scope: str, slices: dict[str, int | None], warned: bool
) -> None:
    """A filled-in limit makes no slice, so that a shared-CPUs annotation has no effect: a warning, no refusal."""
    key = f"shared-cpus.corepin.io/{scope}"
    annotations = {**EXCLUSIVE, LIMIT_RANGER: filled_in_annotation(["p"]), key: "true"}
    found = read(8, {**slices, "p": 1}, annotations=annotations)
    assert found.causes == ()
    told = [cause for cause in found.warnings if "without the shared set" in cause.message]
    assert fields(told) == ([f"metadata.annotations[{key}]"] if warned else [])
    assert all("annotate cpu-manager.corepin.io/container.p: exclusive" in cause.message for cause in told)


def test_a_filled_in_limit_without_the_shared_set_is_no_warning() -> None:
    """A filled-in limit without a shared-CPUs annotation causes no warning."""
    found = read(8, {"m": 2, "p": 1}, annotations={**EXCLUSIVE, LIMIT_RANGER: filled_in_annotation(["p"])})
    assert found.warnings == ()


def test_requests_of_containers_in_a_pool_load_no_other_set() -> None:
    """Requests of containers whose pool is empty count for the shared set, those of other pools for no set."""
    assert read(4, {"m": 2, "log": "500m"}).unclaimed_millicores == 0
    assert read(2, {"m": 2, "log": "500m"}).unclaimed_millicores == 500


def test_a_pod_has_no_budget_without_annotations() -> None:
    """Without annotations a pod has no budget."""
    found = read(4, {"m": 2}, annotations={})
    assert (found.budget, found.slices, found.pool, found.every_claim) == (None, (), None, ())


NOISE = "noise-policy.corepin.io/"


@table(
    "words, of_slice, of_pool",
    {
        "pod": ({"pod": "quiet"}, NoisePolicy.QUIET, NoisePolicy.QUIET),
        "one of the pool": ({"container.p": "quiet"}, None, NoisePolicy.QUIET),
        "a slice": ({"container.m": "quiet"}, NoisePolicy.QUIET, None),
        "the other": ({"pod": "quiet", "container.p": "none"}, NoisePolicy.QUIET, NoisePolicy.QUIET),
        "neither": (
            {"pod": "quiet", "container.p": "none", "container.q": "none"},
            NoisePolicy.QUIET,
            NoisePolicy.NONE,
        ),
        "no policy": ({}, None, None),
    },
)
def test_pool_is_quiet_if_one_of_its_containers_is(
    words: dict[str, str], of_slice: NoisePolicy | None, of_pool: NoisePolicy | None
) -> None:
    """A pool is quiet if one of its containers is, because they share its CPUs."""
    annotations = EXCLUSIVE | {f"{NOISE}{scope}": word for scope, word in words.items()}
    found = read(4, {"m": 2, "p": None, "q": None}, annotations=annotations)
    assert [it.noise for it in found.claims] == [of_slice]
    assert found.budget.rest.noise == of_pool
    assert not [it for it in found.warnings if NOISE in it.field]
