"""Reports about an object are short whatever it contains, and an update is judged by its changes alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinning.contract import LIMIT_RANGER, SIDECAR_LIMITS_POD
from pinning.pods import annotations as policy_annotations
from pinning.pods.annotations import MOST_POLICIES
from pinning.pods.claims import read_pod
from pinning.truncate import MOST_REPORTED
from tests.pods import CORES, CPU_MANAGER, container, pod
from tests.webhook.edge import Edge
from tests.webhook.requests import RULES, denied, request, updated
from tests.webhook.rules.mutated import planned
from webhook.review.response import Allowed, Denied, encode, fit_warnings

REFUSAL_LIMIT = 64_000  # bytes
LONG = "\U0001f600\x01" * 40_000  # ten bytes each in JSON
GHOST = "cpu-manager.corepin.io/container.ghost{}"
POD = ("", "Pod")
VM = ("kubevirt.io", "VirtualMachine")
VMI = ("kubevirt.io", "VirtualMachineInstance")


def ghosts(*numbers: int, containers: int = 1) -> Any:
    """Return a pod whose annotations name containers that it has not."""
    members = [container(f"c{number:0>60}", "2") for number in range(containers)]
    return pod(*members, annotations={GHOST.format(number): "exclusive" for number in numbers})


def featured(*policies: str) -> Any:
    """Return a VirtualMachine with CPU features of these policies."""
    cpu = {
        "cores": 1,
        "features": [{"name": f"f{at}", "policy": policy} for at, policy in enumerate(policies)],
    }
    spec = {"template": {"spec": {"domain": {"cpu": cpu, "memory": {"guest": "1Gi"}}}}}
    return {"metadata": {"name": "vm"}, "spec": spec}


HOSTILE = [
    pytest.param(("", "Pod"), ghosts(*range(3000), containers=900), id="unknown containers in a large pod"),
    pytest.param(
        ("", "Pod"),
        pod(annotations={f"smt-policy.corepin.io/{number}": "require" for number in range(20_000)}),
        id="unknown scopes",
    ),
    pytest.param(
        ("", "Pod"),
        pod(
            *[container(f"{number}{LONG}", {"cpu": LONG}) for number in range(3)],
            annotations={f"cpu-manager.corepin.io/container.{number}{LONG}": LONG for number in range(3)},
        ),
        id="long names, keys and values",
    ),
    pytest.param(
        ("", "Pod"),
        pod(
            *[container(f"c{number}", {CORES: "1", "cpu": "1m"}) for number in range(900)],
            annotations={CPU_MANAGER: "exclusive", "cmk.intel.com/mutate": LONG},
        ),
        id="a word against each container",
    ),
    pytest.param(VM, featured(*["wrong"] * 6000), id="CPU features"),
    pytest.param(VM, featured(LONG, LONG), id="long policies of CPU features"),
    pytest.param(
        VMI,
        {
            "metadata": {"annotations": {f"numa-policy.corepin.io/{at}{LONG}": LONG for at in range(3)}},
            "spec": {"architecture": LONG, "domain": {"cpu": {"model": LONG, "realtime": {"mask": LONG}}}},
        },
        id="long words of a virtual machine",
    ),
]


@pytest.mark.parametrize(("kind", "document"), HOSTILE)
def test_a_refusal_is_short(kind: tuple[str, str], document: Any) -> None:
    """A refusal of any size is below 64 kB and names the first causes and that there are more; so is its log line."""
    edge = Edge(RULES)
    body: dict[str, Any] = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    body["request"] = {
        "uid": "u",
        "kind": {"group": kind[0], "version": "v1", "kind": kind[1]},
        "operation": "CREATE",
        "name": LONG,
        "object": document,
    }
    answer = edge.post("/validate", json.dumps(body, ensure_ascii=False).encode())
    status = answer.json()["response"]["status"]
    assert status["code"] == 422
    assert len(answer.content) < REFUSAL_LIMIT
    assert 0 < len(status["details"]["causes"]) <= MOST_REPORTED
    assert len(status["message"]) <= 1000
    assert len(edge.lines[0]) < 8000


def test_causes_above_the_limit_are_not_counted() -> None:
    """Up to fifty causes are counted exactly; above that the message says "or more"."""
    few, many = (RULES.validate(request(ghosts(*range(count)))) for count in (40, 400))
    assert isinstance(few, Denied)
    assert isinstance(many, Denied)
    statuses = [json.loads(encode("u", answer))["response"]["status"] for answer in (few, many)]
    assert [len(status["details"]["causes"]) for status in statuses] == [40, MOST_REPORTED]
    assert [status["message"].rpartition("; and ")[2] for status in statuses] == ["36 more", "47 or more"]


def test_warnings_are_few_and_short() -> None:
    """Hundreds of warnings become a handful, and the last one says that there are more."""
    fitting = fit_warnings(tuple(f"spec.a[{number}]: wrong" for number in range(400)))
    assert len(fitting) == MOST_REPORTED + 1
    assert fitting[-1] == "corepin: 350 or more warnings are left out"
    members = [container(f"c{number}") for number in range(199)]
    crowd = pod(*members, container("main", "2"), annotations={CPU_MANAGER: "exclusive"})
    assert len(planned(crowd).warnings) <= MOST_REPORTED + 1
    assert len(RULES.validate(request(crowd)).warnings) <= MOST_REPORTED + 1


def test_mutation_works_out_no_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutating webhook computes no causes, which only a refusal shows."""
    fields: list[str] = []
    monkeypatch.setattr("pinning.pods.annotations.Cause", lambda *cause, **_: fields.append(cause[0]))
    assert RULES.mutate(request(ghosts(*range(200)))) == Allowed()
    assert fields == []


def test_the_agent_reads_few_causes() -> None:
    """The agent stops looking for causes after those that its events can show."""
    assert len(read_pod(ghosts(*range(400))).causes) == MOST_REPORTED + 1


def test_an_unknown_container_is_refused_with_ten_known_names() -> None:
    """A refusal of an unknown container lists ten of the pod's containers."""
    (cause,) = read_pod(ghosts(1, containers=200)).causes
    assert cause.message.count(", ") == 9
    assert cause.message.endswith(" and 190 more")
    assert len(cause.message) < 1000


# Updates.


def test_a_new_error_among_old_ones_is_refused() -> None:
    """An update that adds a wrong annotation to a hundred old ones is refused for the new one alone."""
    old, new = ghosts(*range(100)), ghosts(*range(101))
    assert denied(updated(new, old)) == [f"metadata.annotations[{GHOST.format(100)}]"]
    assert denied(updated(ghosts(*range(99), 200), old)) == [f"metadata.annotations[{GHOST.format(200)}]"]


def test_a_repair_among_old_errors_is_admitted() -> None:
    """An update that removes or repairs one of a hundred wrong annotations is admitted (ratcheting validation)."""
    old = ghosts(*range(100))
    assert updated(ghosts(*range(1, 100)), old) == Allowed()
    repaired = ghosts(*range(100))
    del repaired["metadata"]["annotations"][GHOST.format(50)]
    repaired["metadata"]["annotations"][CPU_MANAGER] = "exclusive"
    assert updated(repaired, old) == Allowed()


def test_long_words_are_compared_whole() -> None:
    """Two keys, or two values, that look alike when truncated are still two errors."""
    long = "x" * 5000
    old = pod(annotations={f"smt-policy.corepin.io/{long}1": "prefer", CPU_MANAGER: f"{long}1"})
    key = pod(annotations={f"smt-policy.corepin.io/{long}2": "prefer", CPU_MANAGER: f"{long}1"})
    value = pod(annotations={f"smt-policy.corepin.io/{long}1": "prefer", CPU_MANAGER: f"{long}2"})
    assert len(denied(updated(key, old))) == 1
    assert denied(updated(value, old)) == [f"metadata.annotations[{CPU_MANAGER}]"]


WRONG = {"cpu-manager.corepin.io/container.main": "exclusive"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            pod(container("main", "1500m"), annotations=WRONG),
            pod(container("main", "1700m"), annotations=WRONG),
            id="a named container cannot own CPUs",
        ),
        pytest.param(
            pod(container("main", "1500m"), annotations={CPU_MANAGER: "exclusive"}),
            pod(container("main", "1700m"), annotations={CPU_MANAGER: "exclusive"}),
            id="no container can",
        ),
        pytest.param(
            pod(container("main", "9000000"), annotations=WRONG),
            pod(container("main", "9500000"), annotations=WRONG),
            id="more than any machine has",
        ),
        pytest.param(
            pod(container("main", "2"), container("side", "300m"), annotations={CPU_MANAGER: "exclusive"}),
            pod(container("main", "2"), container("side", "400m"), annotations={CPU_MANAGER: "exclusive"}),
            id="a neighbour in the shared set",
        ),
    ],
)
def test_a_resize_of_a_wrong_pod_is_admitted(old: Any, new: Any) -> None:
    """A resize of a pod that was wrong before is admitted without a warning."""
    assert updated(new, old) == Allowed()


def test_a_resize_that_breaks_a_policy_is_refused() -> None:
    """A resize that makes a container ineligible is refused."""
    sound, wrong = (pod(container("main", cpus), annotations=WRONG) for cpus in ("2", "1500m"))
    assert len(denied(updated(wrong, sound))) == 1


def test_features_of_a_machine_may_move() -> None:
    """An update may remove one of many wrong CPU features, which shifts the others; a new wrong one is refused."""
    old = featured(*["wrong"] * 100)
    fewer = featured(*["wrong"] * 100)
    del fewer["spec"]["template"]["spec"]["domain"]["cpu"]["features"][3]
    assert updated(fewer, old, kind=VM) == Allowed()
    field = "spec.template.spec.domain.cpu.features[100].policy"
    assert denied(updated(featured(*["wrong"] * 101), old, kind=VM)) == [field]


# Who gave a container its values.


@pytest.mark.parametrize(
    ("text", "is_ranged"),
    [
        pytest.param("LimitRanger plugin set: cpu request for container side", True, id="alone"),
        pytest.param("LimitRanger plugin set: cpu limit for init container side; x", True, id="first"),
        pytest.param("; memory limit for container side", True, id="last"),
        pytest.param("cpu request for container side-car; cpu limit for container aside", False, id="others"),
        pytest.param("cpu request for container side b", False, id="two words"),
        pytest.param(";" * 1000, False, id="nothing"),
    ],
)
def test_the_limit_rangers_words_are_understood(text: str, is_ranged: bool) -> None:
    """Containers are found in the LimitRanger's annotation by their whole names."""
    document = pod(
        container("main", {"cpu": "2", "memory": "1Gi"}),
        container("side", "300m"),
        annotations={CPU_MANAGER: "exclusive", SIDECAR_LIMITS_POD: "true", LIMIT_RANGER: text},
    )
    (warning,) = planned(document).warnings
    assert warning.message.endswith("(a LimitRange filled some in)") is is_ranged


def policies(kind: tuple[str, str], count: int, cpu: str = "2") -> Any:
    """Return a pod or one of KubeVirt's objects with so many policy annotations that are wrong."""
    made = pod(container("main", cpu), annotations={GHOST.format(at): "wrong" for at in range(count)})
    if kind == POD:
        return made
    machine = {"metadata": made["metadata"], "spec": {"domain": {"cpu": {"cores": 2}}}}
    return machine if kind == VMI else {"spec": {"runStrategy": "Always", "template": machine}}


@pytest.mark.parametrize("kind", [POD, VM, VMI])
def test_too_many_policies_are_one_refusal(kind: tuple[str, str]) -> None:
    """More policies than a pod can use are one refusal with their number."""
    answers = [
        RULES.validate(request(policies(kind, count), kind=kind)) for count in (MOST_POLICIES + 1, 60_000)
    ]
    assert answers[0] == answers[1]
    assert isinstance(answers[0], Denied)
    (cause,) = (cause for cause in answers[0].causes if "annotations" in cause.field)
    assert cause.field.endswith("metadata.annotations")
    assert f"more than {MOST_POLICIES} " in cause.message


@pytest.mark.parametrize("kind", [POD, VM, VMI])
def test_an_update_is_refused_when_it_brings_too_many_policies(kind: tuple[str, str]) -> None:
    """An update above the limit of policies is refused; an object stored above it can be edited and repaired."""
    few, many, more = (policies(kind, count) for count in (1, MOST_POLICIES + 1, MOST_POLICIES + 2))
    assert isinstance(updated(many, few, kind=kind), Denied)
    assert isinstance(updated(more, many, kind=kind), Allowed)
    assert isinstance(updated(many, more, kind=kind), Allowed)


def test_as_many_policies_as_a_pod_can_use_are_read() -> None:
    """Seven annotations for each of 200 containers are below the number; the last one of the number still counts."""
    (claim,) = read_pod(
        pod(
            container("main", "2"),
            annotations={f"example.com/{at}": "x" for at in range(3 * MOST_POLICIES)}
            | {CPU_MANAGER: "exclusive"},
        )
    ).claims
    assert claim.count == 2
    assert len(read_pod(policies(POD, MOST_POLICIES)).causes) == MOST_REPORTED + 1
    (cause,) = read_pod(policies(POD, MOST_POLICIES + 1)).causes
    assert cause.field == "metadata.annotations"


def test_policies_beyond_the_number_cost_a_look_at_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30,000 policies that replace 30,000 others, each reading looks at one key more than a pod may have."""
    looks: list[str] = []
    is_policy_key = policy_annotations.is_policy_key

    def look(key: str) -> bool:
        looks.append(key)
        return is_policy_key(key)

    monkeypatch.setattr(policy_annotations, "is_policy_key", look)
    old, new = policies(POD, 30_000), policies(POD, 30_000, cpu="3")
    assert isinstance(updated(new, old), Allowed)
    assert len(looks) <= 6 * (MOST_POLICIES + 1)
