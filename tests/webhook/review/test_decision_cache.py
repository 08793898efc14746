"""Pods that are equal to the rules are decided once, and each gets the answer that it would get alone."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pinning.pods.types import ObjectMeta
from pinning.truncate import MOST_REPORTED
from tests.pods import (
    CORES,
    CPU_MANAGER,
    LAUNCHER,
    SMT,
    container,
    pod,
    token_mount,
    token_volume,
)
from tests.webhook.requests import BEYOND, generated, request
from webhook.config.mutations import BUILT_IN, Mutations, load_mutations
from webhook.config.settings import Settings, load_settings
from webhook.review.decision_cache import EACH, MOST_KEPT, ROOM, DecisionCache, pod_key, reader
from webhook.review.handler import Decider
from webhook.review.response import Patched, weight
from webhook.rules.injection import Injection
from webhook.rules.mutate import plan_mutation
from webhook.rules.pod_parts import NEW
from webhook.rules.pods import review_new_pod

NAMING = load_mutations(
    b"mutations: {perPod: {metadata: {annotations: {own: x}}, spec: {nodeSelector: {a: b}}},"
    b" perContainer: {env: [{name: A, value: z}]}}"
)


ACCOUNT = load_mutations(b"mutations: {perPod: {spec: {serviceAccount: cmk}}}")


@given(generated, st.booleans(), st.sampled_from([BUILT_IN, NAMING, ACCOUNT]))
@settings(max_examples=200, deadline=None)
def test_the_part_that_is_looked_at_decides_alone(document: Any, asked: bool, mutations: Mutations) -> None:
    """For any pod, plan and verdict on the cache key's part equal those on the whole pod."""
    rules = load_settings(b"sidecarLimits: claims" if asked else b"")
    text = json.dumps(document).encode()
    part = reader(mutations).read(msgspec.Raw(text))
    pod_key(part, mutations, len(text))
    fill(document)
    assert plan_mutation(part, rules, Injection(mutations)) == plan_mutation(
        document, rules, Injection(mutations)
    )
    assert review_new_pod(part, rules, Injection(mutations)) == review_new_pod(
        document, rules, Injection(mutations)
    )


def fill(document: Any) -> None:
    """Give a pod every member that the key leaves out; the status is dropped wherever a review is read."""
    metadata, spec = document.get("metadata") or {}, document["spec"]
    metadata.update(dict.fromkeys((name for name, kind in NEW[ObjectMeta].items() if kind is None), "x"))
    for member in (*spec["containers"], *(spec.get("initContainers") or ())):
        for mount in member.get("volumeMounts") or ():
            mount["readOnly"] = True


def sibling(number: int, *before: Any) -> Any:
    """Return one of the pods of a ReplicaSet: its own name, uid and token volume, which may follow others."""
    token = f"kube-api-access-x7k{'bcdfghjkl'[number]}p"
    mounts = [{"name": it["name"], "mountPath": f"/{number}"} for it in before]
    document: Any = pod(
        container("main", {CORES: "2"}, volumeMounts=[*mounts, token_mount(token)]),
        volumes=[*before, token_volume(token)],
    )
    document["metadata"].update(name=f"web-{number}", uid=str(number))
    return document


def test_pods_of_one_controller_are_decided_once() -> None:
    """Pods of one controller get the same answer object; a different claim gets another one."""
    rules = Decider(Settings(), BUILT_IN)
    first = rules.mutate(request(sibling(1)))
    assert rules.mutate(request(sibling(2))) is first
    other = copy.deepcopy(sibling(3))
    other["spec"]["containers"][0]["resources"]["limits"][CORES] = "3"
    assert rules.mutate(request(other)) != first


def test_pods_that_lose_their_token_are_decided_once() -> None:
    """The token volume's name is not part of the cache key, but its index is, because removals use it."""
    rules = Decider(Settings(), ACCOUNT)
    first = rules.mutate(request(sibling(1)))
    assert rules.mutate(request(sibling(2))) is first
    own = {"name": "own", "emptyDir": {}}
    second = rules.mutate(request(sibling(1, own)))
    assert rules.mutate(request(sibling(1, {"name": "other", "hostPath": {"path": "/x"}}))) is second
    removed = [
        [step["path"] for step in answer.operations if step["op"] == "remove"]
        for answer in (first, second)
        if isinstance(answer, Patched)
    ]
    assert removed == [[f"/spec/containers/0/volumeMounts/{at}", f"/spec/volumes/{at}"] for at in range(2)]


def test_numbered_pods_are_decided_once() -> None:
    """Labels that number pods of a StatefulSet or Job are not part of the cache key; a launcher's label is."""
    rules = Decider(Settings(), BUILT_IN)

    def numbered(number: int, **labels: str) -> Any:
        document = sibling(number)
        document["metadata"]["labels"] = {"statefulset.kubernetes.io/pod-name": f"web-{number}", **labels}
        return document

    first = rules.mutate(request(numbered(1)))
    assert rules.mutate(request(numbered(2))) is first
    assert rules.mutate(request(numbered(3, **LAUNCHER))) is not first


def test_pods_with_variables_of_their_own_are_decided_once() -> None:
    """Annotations and variables that no rule reads are not part of the key; CMK_NUM_CORES and the file's are."""
    rules = Decider(Settings(), NAMING)

    def own(*variables: str, value: str = "1", **annotations: str) -> Any:
        document = sibling(1)
        document["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name in variables]
        document["metadata"]["annotations"] = annotations
        return document

    first = rules.mutate(request(own("EXECUTOR", value="1", task="1")))
    assert rules.mutate(request(own("EXECUTOR", value="2", task="2"))) is first
    assert rules.mutate(request(own("OTHER", "MORE", step="3"))) is first
    for other in (own("EXECUTOR", "CMK_NUM_CORES"), own("A"), own("EXECUTOR", own="1")):
        assert rules.mutate(request(other)) != first


@pytest.mark.parametrize(
    ("annotations", "warned"),
    [
        ({"cpu-c-states.crio.io": "disable"}, ["cpu-c-states.crio.io"]),
        ({"cpu-load-balancing.crio.io/main": "disable"}, ["cpu-load-balancing.crio.io/main"]),
        ({"irq-policy.corepin.io/pod": "devices"}, ["irq-policy.corepin.io/pod"]),
        ({"irq-policy.corepin.io/pod": "devices", "irq-load-balancing.crio.io": "disable"}, []),
    ],
    ids=[
        "not followed",
        "not followed for a container",
        "nothing keeps interrupts off",
        "CRI-O's keeps them off",
    ],
)
def test_annotations_of_crio_are_part_of_the_key(annotations: dict[str, str], warned: list[str]) -> None:
    """A new pod's warnings take CRI-O's annotations into account, also after one without them."""
    rules, given = Decider(Settings(), BUILT_IN), {CPU_MANAGER: "exclusive"}
    plain = rules.judge_new_pod(request(pod(container("main", "2"), annotations=given)))
    verdict = rules.judge_new_pod(request(pod(container("main", "2"), annotations=given | annotations)))
    assert [warning.field for warning in plain.warnings] == []
    assert [warning.field for warning in verdict.warnings] == [f"metadata.annotations[{it}]" for it in warned]


def test_labels_of_the_mutations_file_are_part_of_the_key() -> None:
    """A label that the mutations file adds is part of the cache key."""
    rules = Decider(Settings(), load_mutations(b"mutations: {perPod: {metadata: {labels: {a: b}}}}"))
    without, having = sibling(1), sibling(2)
    without["metadata"]["labels"], having["metadata"]["labels"] = {"other": "x"}, {"other": "x", "a": "y"}
    assert len(answered(rules, without).operations) == len(answered(rules, having).operations) + 1


def answered(rules: Decider, document: Any) -> Patched:
    """Return the answer to a pod that is changed."""
    answer = rules.mutate(request(document))
    assert isinstance(answer, Patched)
    return answer


def test_each_configuration_has_a_cache_of_its_own() -> None:
    """Each generation of the configuration has a cache of its own, which its equality ignores."""
    old, new = (Decider(load_settings(text), BUILT_IN) for text in (b"", b"sidecarLimits: claims"))
    assert old.mutate(request(sibling(1))) is not new.mutate(request(sibling(1)))
    assert old == Decider(Settings(), BUILT_IN)


def test_a_file_beyond_the_usual_keys_decides_each_pod_anew() -> None:
    """A decision that depends on the whole pod is not cached; a status in the request has no effect."""
    rules = Decider(Settings(), BEYOND)
    assert rules.mutate(request(sibling(1))) is not rules.mutate(request(sibling(1)))
    injected = {
        **sibling(1),
        "status": {"containerStatuses": [{"name": "main", "allocatedResources": {"cpu": "1"}}]},
    }
    assert rules.validate(request(injected)) == rules.validate(request(sibling(1)))


def test_what_is_kept_is_bounded() -> None:
    """The cache's memory is bounded, for many kinds of pods, huge pods and huge answers."""
    answers: DecisionCache[int] = DecisionCache(lambda _: 1000)
    decided = []

    def decide() -> int:
        decided.append(1)
        return len(decided)

    fitting = ROOM // (EACH + 1000 + 1000)
    for number in range(fitting + 1):
        answers.of(b"%01000d" % number, decide)
    assert answers.of(b"%01000d" % fitting, decide) == fitting + 1
    assert answers.of(b"%01000d" % 0, decide) == fitting + 2, "the oldest were forgotten together"
    huge = b"x" * MOST_KEPT
    assert answers.of(huge, decide) != answers.of(huge, decide)
    heavy: DecisionCache[int] = DecisionCache(lambda _: MOST_KEPT)
    assert heavy.of(b"small", decide) != heavy.of(b"small", decide)


@pytest.mark.parametrize("count", [1, 2, 8, 100])
@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({CORES: "1"}, {}),
        ({"cpu": "1", "memory": "1Gi"}, {CPU_MANAGER: "exclusive", SMT: "isolate"}),
        ({}, {"cmk.intel.com/mutate": "true"}),
    ],
    ids=["claims", "isolate", "bare"],
)
def test_an_answer_takes_no_more_than_it_weighs(
    count: int, limits: dict[str, str], annotations: dict[str, str]
) -> None:
    """A cached patch is charged with about the memory that its objects take."""
    rules = Decider(Settings(), BUILT_IN)
    seen: set[int] = set()
    taken(vars(BUILT_IN), seen)
    answer = rules.mutate(request(pod(*like(count, limits), annotations=annotations)))
    assert taken(answer, seen) <= EACH + weight(answer) <= 4 * taken(answer, set())


@pytest.mark.parametrize("word", ["k", "\U0001f600"], ids=["narrow", "wide"])
def test_a_verdict_takes_no_more_than_it_weighs(word: str) -> None:
    """A cached verdict is charged with the memory of its causes and warnings, uncut names included."""
    rules = Decider(Settings(), BUILT_IN)
    wrong = {f"{CPU_MANAGER}.{word * 300}{at}": "wrong" for at in range(100)}
    verdict = rules.judge_new_pod(request(pod(*like(2, {CORES: "x"}), annotations=wrong)))
    assert len(verdict.causes) > MOST_REPORTED
    assert taken(verdict, set()) <= EACH + verdict.weight() <= 2 * taken(verdict, set())


def like(count: int, limits: dict[str, str]) -> list[Any]:
    """Return containers with the same limits."""
    return [container(f"c{at}", limits) for at in range(count)]


def taken(value: Any, seen: set[int]) -> int:
    """Return the bytes of an object with all that it refers to."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    held: list[Any] = []
    if isinstance(value, dict):
        held = [*value, *value.values()]
    elif isinstance(value, list | tuple):
        held = [*value]
    elif dataclasses.is_dataclass(value):
        held = [getattr(value, name.name) for name in dataclasses.fields(value)]
        held += [vars(value)] if hasattr(value, "__dict__") else []
    return sys.getsizeof(value) + sum(taken(part, seen) for part in held)
