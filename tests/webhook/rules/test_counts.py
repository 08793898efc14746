"""Resources that the scheduler counts beside a claim's CPUs: whole cores for `require`, CPUs of one NUMA node."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pods import CORES, OTHER_CORES, SMT, container, launcher, pod
from tests.tables import table
from tests.webhook.rules.mutated import changed, judged, mutated, reviewed, templated
from webhook.rules.pods import Verdict

WHOLE, NUMA, ISOLATED = "corepin.io/whole-cores", "corepin.io/numa-cpus", "corepin.io/isolated-cores"
SINGLE = {"cpu-manager.corepin.io/pod": "exclusive", "numa-policy.corepin.io/pod": "single"}
TWO = b"{numaCPUs: true, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}, {name: b, cores: 64, threadsPerCore: 2}]}"
MIXED = b"{numaCPUs: true, nodeShapes: [{name: a, cores: 8, threadsPerCore: 2}, {name: b, cores: 64}]}"
UNKNOWN = b"numaCPUs: true"


def counts(document: Any, settings: bytes) -> dict[str, int]:
    """Return the counted resources of the first container, equal in limits and requests."""
    resources = mutated(document, settings)["spec"]["containers"][0]["resources"]
    limits, requests = (resources.get(kind) or {} for kind in ("limits", "requests"))
    added = {name: int(limits[name]) for name in (WHOLE, NUMA, ISOLATED) if name in limits}
    assert added == {name: int(requests[name]) for name in (WHOLE, NUMA, ISOLATED) if name in requests}
    return added


@table(
    "settings, cpus, expected",
    {
        "an odd count takes a hidden CPU": (TWO, "3", {WHOLE: 2}),
        "an even one takes whole cores too": (TWO, "4", {WHOLE: 2}),
        "nodes without SMT": (b"nodeShapes: [{name: a, cores: 8}]", "3", {WHOLE: 3}),
        "nodes that differ": (MIXED, "3", {}),
        "no node is known": (UNKNOWN, "3", {}),
        "switched off": (TWO.replace(b"{", b"{wholeCores: false, ", 1), "3", {}),
    },
)
def test_require_counts_cores_where_all_nodes_agree(
    settings: bytes, cpus: str, expected: dict[str, int]
) -> None:
    """`require` counts the cores that every node takes; where nodes differ, or none is known, it counts none."""
    assert counts(pod(container("main", cpus), annotations={SMT: "require"}), settings) == expected


@table(
    "words, settings, expected",
    {
        "CPUs": ({}, TWO, {NUMA: 3}),
        "off, as it is shipped": ({}, b"", {}),
        "shared CPUs are held too": ({"cpu-manager.corepin.io/pod": "share"}, TWO, {NUMA: 3}),
        "with the hidden CPU": ({SMT: "require"}, TWO, {WHOLE: 2, NUMA: 4}),
        "as many as are known to be taken": ({SMT: "require"}, MIXED, {NUMA: 3}),
        "with all siblings": ({SMT: "isolate"}, TWO, {ISOLATED: 3, NUMA: 6}),
        "siblings that nobody knows": ({SMT: "isolate"}, UNKNOWN, {ISOLATED: 3, NUMA: 3}),
        "more than one NUMA node will do": ({"numa-policy.corepin.io/pod": "packed"}, TWO, {}),
    },
)
def test_single_counts_cpus_of_one_numa_node(
    words: dict[str, str], settings: bytes, expected: dict[str, int]
) -> None:
    """`single` requests the claim's CPUs of one NUMA node, with siblings where it owns whole cores."""
    document = pod(container("main", "3"), annotations={**SINGLE, **words})
    assert counts(document, settings) == expected


def test_cores_of_cmk_are_counted_by_numa_node_too() -> None:
    """Cores of CMK are counted by NUMA node too; those of the shared pool are not."""
    words = {"numa-policy.corepin.io/pod": "single"}
    for resource, expected in ((CORES, {NUMA: 4}), (OTHER_CORES, {})):
        amounts = {resource: "2"}
        assert counts(pod(container("main", amounts, amounts), annotations=words), TWO) == expected


def test_each_container_is_counted_by_itself() -> None:
    """Each container is counted by its own policy, and one without a claim requests nothing."""
    words = {**SINGLE, "numa-policy.corepin.io/container.two": "packed"}
    document = pod(
        container("one", "2"),
        container("two", "2"),
        container("log"),
        init=[container("i", "4")],
        annotations=words,
    )
    spec = mutated(document, TWO)["spec"]
    assert spec["initContainers"][0]["resources"]["limits"] == {"cpu": "4", NUMA: "4"}
    one, two, log = spec["containers"]
    assert one["resources"]["limits"] == {"cpu": "2", NUMA: "2"}
    assert NUMA not in two["resources"]["limits"]
    assert "resources" not in log


def test_a_launcher_is_counted() -> None:
    """A launcher requests CPUs of one NUMA node, so that its VM is scheduled where they fit."""
    document: Any = launcher(compute=container("compute", "4"))
    document["metadata"]["annotations"] = {"numa-policy.corepin.io/pod": "single"}
    assert counts(document, TWO) == {NUMA: 4}


def stated(cpus: str, resource: str, number: str, words: dict[str, str]) -> Any:
    """Return a pod that states a count itself."""
    amounts = {"cpu": cpus, resource: number}
    return pod(container("main", amounts, amounts), annotations=words)


@table(
    "document, settings, message",
    {
        "right": (stated("3", WHOLE, "2", {SMT: "require"}), TWO, ""),
        "wrong": (stated("3", WHOLE, "3", {SMT: "require"}), TWO, "3 differs from the 2 cores that require"),
        "its user knows the nodes": (stated("3", WHOLE, "2", {SMT: "require"}), b"", ""),
        "on no node": (stated("3", WHOLE, "4", {SMT: "require"}), b"", "4 differs from the 1 to 3 cores"),
        "right CPUs": (stated("3", NUMA, "3", SINGLE), UNKNOWN, ""),
        "too few CPUs": (
            stated("3", NUMA, "2", SINGLE),
            UNKNOWN,
            "2 differs from the 3 CPUs of one NUMA node that single takes; "
            "remove it from requests and limits; corepin adds it if the webhook is configured to count it",
        ),
        "too many CPUs": (stated("3", NUMA, "4", SINGLE), UNKNOWN, "4 differs from the 3"),
        "siblings of wide cores": (stated("3", NUMA, "12", {**SINGLE, SMT: "isolate"}), UNKNOWN, ""),
        "half": (
            stated("3", NUMA, "2500m", {**SINGLE, SMT: "isolate"}),
            UNKNOWN,
            "2500m differs from the 3 to 24",
        ),
    },
)
def test_a_users_request_is_kept_or_refused(document: Any, settings: bytes, message: str) -> None:
    """A user's own request is kept if some node takes as much, and refused otherwise; also in a template."""
    found = judged(document, settings)
    assert [cause.message[: len(message)] for cause in found.causes] == ([message] if message else [])
    assert templated(document, settings).causes == found.causes


@pytest.mark.parametrize("number", [3, 6, 24])
def test_a_users_request_gets_an_equal_limit(number: int) -> None:
    """A request without a limit that is right for some node gets an equal limit, which the API server demands."""
    amounts = {"cpu": "3", NUMA: str(number)}
    document = pod(container("main", {"cpu": "3"}, amounts), annotations={**SINGLE, SMT: "isolate"})
    assert counts(document, UNKNOWN) == {NUMA: number, ISOLATED: 3}


@pytest.mark.parametrize("requests", [None, {}, {"cpu": "3"}, {"cpu": "3", NUMA: "2"}])
def test_a_templates_wrong_count_is_named_where_it_is_written(requests: Any) -> None:
    """A template, whose requests the API server does not fill in, may state a count as a limit alone."""
    document = pod(container("main", {"cpu": "3", NUMA: "2"}, requests), annotations=SINGLE)
    [cause] = templated(document, UNKNOWN).causes
    kind = "requests" if NUMA in (requests or ()) else "limits"
    assert cause.field == f"spec.containers[0].resources.{kind}[{NUMA}]"


@table(
    "resource, words, sentences",
    {
        "whole cores": (
            WHOLE,
            {SMT: "require"},
            (
                "2 cores for container main, and require now takes 3; the agent",
                "2 cores for container main, and require now takes 1; create",
            ),
        ),
        "CPUs of one NUMA node": (
            NUMA,
            SINGLE,
            (
                "4 CPUs of one NUMA node for container main, and single now takes 5; the agent",
                "4 CPUs of one NUMA node for container main, and single now takes 2; create",
            ),
        ),
    },
)
def test_a_resize_beyond_the_request_is_warned_about(
    resource: str, words: dict[str, str], sentences: tuple[str, str]
) -> None:
    """A resize cannot change the request that the scheduler counts: it is a warning, not a refusal."""
    number = "2" if resource == WHOLE else "4"
    before = stated("4", resource, number, words)
    for cpus, sentence in zip(("5", "2"), sentences, strict=True):
        verdict = changed(before, stated(cpus, resource, number, words), TWO)
        assert verdict.causes == ()
        [warning] = verdict.warnings
        assert warning.message.startswith(f"the scheduler still counts {sentence}")
    assert changed(before, before, TWO) == Verdict()


def test_a_replica_that_knows_the_nodes_earlier_refuses_nothing() -> None:
    """A pod that another replica could not count yet is admitted by one that can."""
    document = mutated(pod(container("main", "3"), annotations={SMT: "require"}), UNKNOWN)
    assert reviewed(document, TWO) == Verdict()


@table(
    "stored, larger, settings, expected",
    {
        "a container that becomes eligible": ("500m", "1", TWO, ["0 cores for container n"]),
        "a container that did not change": ("1", "1", TWO, []),
        "where the operator counts none": ("500m", "1", b"{isolatedCores: false}", []),
    },
)
def test_a_resize_warns_of_a_container_that_requests_no_count(
    stored: str, larger: str, settings: bytes, expected: list[str]
) -> None:
    """A resize to a claim without a counted request is a warning, since updates cannot add an extended resource."""

    def of(cpu: str) -> Any:
        return pod(container("m", "2"), container("n", cpu), annotations={SMT: "isolate"})

    old, new = mutated(of(stored), settings), mutated(of(stored), settings)
    if stored == larger:  # stored while the webhook was away
        old, new = of(stored), of(stored)
    new["spec"]["containers"][1]["resources"] = {kind: {"cpu": larger} for kind in ("limits", "requests")}
    new["spec"]["containers"][0]["resources"]["limits"]["cpu"] = "2"
    warnings = changed(old, new, settings).warnings
    assert [it.message.partition(",")[0] for it in warnings if "scheduler" in it.message] == [
        f"the scheduler still counts {text}" for text in expected
    ]
