"""Unreadable objects: refused, a warning, or admitted where that bypasses no rule."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.pods import CPU_MANAGER, SMT, container, pod
from tests.tables import table
from tests.webhook.edge import Edge
from tests.webhook.requests import BEYOND, RULES, denied, request, updated
from webhook.config.mutations import BUILT_IN
from webhook.config.settings import Settings
from webhook.review import wire
from webhook.review.handler import Decider
from webhook.review.response import Allowed
from webhook.rules.part_reader import MOST
from webhook.rules.raw_json import Malformed

CONTROLLER = "system:serviceaccount:kubevirt:kubevirt-controller"
NO_POLICY = f"metadata.annotations[{CPU_MANAGER}]"
MACHINE, RUNNING = ("kubevirt.io", "VirtualMachine"), ("kubevirt.io", "VirtualMachineInstance")
DEPLOYMENT = ("apps", "Deployment")
WRONG_POD = {"metadata": {"name": "p", "annotations": {CPU_MANAGER: "exclusive"}}, "spec": {"containers": {}}}
WRONG_GUEST = {"metadata": {"generateName": "vm-"}, "spec": {"domain": {"cpu": {"cores": "two"}}}}
REFUSALS = {
    "Pod": (("", "Pod"), WRONG_POD, "spec.containers", "p"),
    "VirtualMachine": (MACHINE, {"spec": {"template": WRONG_GUEST}}, "spec.template.spec.domain.cpu.cores", "(no name)"),
    "VirtualMachineInstance": (RUNNING, WRONG_GUEST, "spec.domain.cpu.cores", "vm-..."),
}  # fmt: skip


def body(
    kind: tuple[str, str], new: Any, old: Any = None, operation: str = "CREATE", sub: str | None = None
) -> bytes:
    """Return a review as the API server orders it."""
    name = new["metadata"].get("name") if isinstance(new, dict) and "metadata" in new else None
    asked = {
        "uid": "u",
        "kind": {"group": kind[0], "version": "v1", "kind": kind[1]},
        **({"subResource": sub} if sub else {}),
        **({"name": name} if name else {}),
        "operation": operation,
        "userInfo": {"username": "jane"},
        "object": new,
        "oldObject": old,
    }
    review = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": asked}
    return json.dumps(review).encode()


def answered(path: str, content: bytes, outcome: str) -> dict[str, Any]:
    """Return the response to a body, which is counted and logged as this outcome."""
    edge = Edge(Decider(Settings(), BUILT_IN))
    reply = edge.post(path, content)
    assert reply.status_code == 200, reply.text
    line = edge.line()
    assert (line["outcome"], line["uid"]) == (outcome, "u")
    reason = "malformed" if outcome == "unreadable" else line["reason"]
    assert edge.count(endpoint=path[1:], outcome=outcome, reason=reason) == 1
    response: dict[str, Any] = reply.json()["response"]
    return response


@pytest.mark.parametrize("did", ["created", "updated"])
@pytest.mark.parametrize(("kind", "wrong", "field", "name"), REFUSALS.values(), ids=REFUSALS)
def test_an_object_that_cannot_be_read_is_refused(
    kind: tuple[str, str], wrong: Any, field: str, name: str, did: str
) -> None:
    """Pods and KubeVirt's kinds are refused with field, reason and remedy, and counted and logged as unreadable."""
    asked = body(kind, wrong) if did == "created" else body(kind, wrong, {"metadata": {}}, "UPDATE")
    if did == "updated" and kind == RUNNING:
        asked = asked.replace(b'"username": "jane"', b'"username": "%b"' % CONTROLLER.encode())
    status = answered("/validate", asked, "unreadable")["status"]

    assert (status["code"], status["details"]["name"]) == (422, name)
    assert status["details"]["causes"][0]["field"] == field
    assert ": cannot be read: Expected `" in status["message"]
    assert status["message"].endswith("; change it or leave it out")


@pytest.mark.parametrize(("kind", "wrong", "field", "name"), REFUSALS.values(), ids=REFUSALS)
def test_an_unreadable_object_is_not_mutated(
    kind: tuple[str, str], wrong: Any, field: str, name: str
) -> None:
    """An unreadable object gets no patch: the validating webhook refuses it."""
    assert field
    assert name
    outcome = "unreadable" if kind == ("", "Pod") else "allowed"
    assert answered("/mutate", body(kind, wrong), outcome) == {"uid": "u", "allowed": True}


@pytest.mark.parametrize(("operation", "old"), [("CREATE", None), ("UPDATE", {"spec": {"template": {}}})])
def test_a_template_that_cannot_be_read_is_a_warning(operation: str, old: Any) -> None:
    """An unreadable template of a workload is admitted with a warning."""
    response = answered(
        "/validate", body(DEPLOYMENT, {"spec": {"template": WRONG_POD}}, old, operation), "unreadable"
    )
    assert response == {
        "uid": "u",
        "allowed": True,
        "warnings": [
            "spec.template.spec.containers: corepin: cannot be read: Expected `array | null`, got `object`; "
            "pods of it may be refused"
        ],
    }


LEAVING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": {CPU_MANAGER: "nonsense"}}
GUEST_SPEC = {"template": WRONG_GUEST}


@table(
    "asked",
    {
        "a pod is deleted": body(("", "Pod"), None, WRONG_POD, "DELETE"),
        "a pod is leaving": body(("", "Pod"), {**WRONG_POD, "metadata": LEAVING}, WRONG_POD, "UPDATE"),
        "a machine is leaving": body(MACHINE, {"metadata": LEAVING, "spec": GUEST_SPEC}, {}, "UPDATE"),
        "a running one is leaving": body(RUNNING, {**WRONG_GUEST, "metadata": LEAVING}, {}, "UPDATE"),
        "a debugging container": body(("", "Pod"), WRONG_POD, None, "UPDATE", "ephemeralcontainers"),
        "an eviction": body(("", "Pod"), WRONG_POD, None, "CREATE", "eviction"),
        "a status": body(MACHINE, 5, None, "UPDATE", "status"),
        "a pod's status changes": body(("", "Pod"), WRONG_POD, {**WRONG_POD, "status": {}}, "UPDATE"),
        "a machine's finalizer": body(MACHINE, {"metadata": {"finalizers": []}, "spec": GUEST_SPEC}, {"metadata": {}, "spec": GUEST_SPEC}, "UPDATE"),
        "a running one's status": body(RUNNING, {**WRONG_GUEST, "status": 5}, {**WRONG_GUEST, "metadata": {}}, "UPDATE"),
        "a workload is scaled": body(DEPLOYMENT, {"spec": {"template": WRONG_POD}}, {"spec": {"template": WRONG_POD, "replicas": 2}}, "UPDATE"),
    },
)  # fmt: skip
def test_what_changes_nothing_stays_admitted(asked: bytes) -> None:
    """An unreadable object may be deleted, and is admitted for operations that corepin does not judge."""
    assert answered("/validate", asked, "allowed") == {"uid": "u", "allowed": True}


def test_a_running_machine_is_compared_as_a_whole() -> None:
    """A running VMI's spec is compared as a whole: a changed one that cannot be read is refused."""
    old, new = ({**WRONG_GUEST["spec"], "x": {"a": number}} for number in (1, 2))  # type: ignore[dict-item]
    crowd: list[Any] = [{} for _ in range(MOST.values)]
    asked = body(RUNNING, {"spec": {**new, "y": crowd}}, {"spec": {**old, "y": crowd}}, "UPDATE")
    refused = answered("/validate", asked, "unreadable")["status"]["details"]["causes"][0]
    assert refused["field"] == "$.request.oldObject.spec"
    assert "has more than 50000 lists and objects" in refused["message"]


BEGUN = b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u"'


@table(
    "rest, allowed, warned",
    {
        "a pod": (b',"kind":{"group":"","version":"v1","kind":"Pod"},"object":{', False, False),
        "a machine": (b',"kind":{"group":"kubevirt.io","kind":"VirtualMachine"},"object":\x00', False, False),
        "a workload": (b',"kind":{"group":"apps","kind":"Deployment"},"dryRun":5}}', True, True),
        "a deletion": (b',"kind":{"group":"","kind":"Pod"},"operation":"DELETE","object":{', True, False),
        "an eviction": (b',"kind":{"group":"","kind":"Pod"},"subResource":"eviction",', True, False),
        "a kind that is not ours": (b',"kind":{"group":"","kind":"Secret"},"object":{', True, False),
        "a kind that is none": (b',"kind":"Pod"', False, False),
        "nothing else": (b"", False, False),
        "a nest": (b',"kind":{"group":"","kind":"Pod"},"object":' + b"[" * 30_000, False, False),
    },
)
def test_a_review_that_cannot_be_read_is_answered_by_its_beginning(
    rest: bytes, allowed: bool, warned: bool
) -> None:
    """A review that cannot be read is answered by the uid and kind in its first bytes."""
    response = answered("/validate", BEGUN + rest, "unreadable")
    assert (response["allowed"], "warnings" in response) == (allowed, warned)
    assert answered("/mutate", BEGUN + rest, "unreadable") == {"uid": "u", "allowed": True}


NEST = b"[" * 5000 + b"]" * 5000
STRANGE = {
    "not UTF-8": b'"managedFields":[{"fieldsV1":{"f:\xff":{}}}]',
    "nested": b'"managedFields":[{"fieldsV1":{"f:a":%b}}]' % NEST,
    "half a character": b'"managedFields":[{"fieldsV1":{"f:\\ud800":{}}}]',
    "crowded": b'"managedFields":[{"fieldsV1":{"f:a":[%b]}}]' % b",".join([b"{}"] * 200_000),
}
ARGS = {
    "1,250,000 escapes": b"\\u003c" * 1_250_000,  # 7.5 MB, within the limit of a body
    "270,000 commas": b"," * 270_000,
    "100,001 brackets": b"{" * 100_001,
    "what looks like a status": b'\\"},\\"status\\":{',
}


@pytest.mark.parametrize("mutations", [BUILT_IN, BEYOND], ids=["typed", "whole pods"])
@pytest.mark.parametrize(("meta", "args"), [(raw, b"x") for raw in STRANGE.values()] + [(b'"x":1', raw) for raw in ARGS.values()], ids=[*STRANGE, *ARGS])  # fmt: skip
def test_what_no_rule_reads_changes_no_answer(mutations: Any, meta: bytes, args: bytes) -> None:
    """Bytes that no rule reads change neither refusal nor patch of a pod, also where whole pods are read."""
    rules = Decider(Settings(), mutations)
    usual = pod(container("main", "2"), annotations={CPU_MANAGER: "exclusive", SMT: "isolate"})
    for document in (usual, pod(annotations={CPU_MANAGER: "nonsense"})):
        document["metadata"]["META"] = 1  # type: ignore[typeddict-unknown-key,index]
        document["spec"]["containers"][0]["args"] = ["ARGS"]  # type: ignore[typeddict-unknown-key,index]
        plain, strange = (
            request(document),
            wire.decode(body(("", "Pod"), document).replace(b'"META": 1', meta).replace(b"ARGS", args)),
        )
        assert rules.mutate(strange) == rules.mutate(plain)
        assert denied(rules.validate(strange)) == denied(rules.validate(plain))


def test_an_object_that_could_not_be_read_is_judged_as_new() -> None:
    """If the old object is unreadable the new one is judged as a whole; a running VMI is refused."""
    wrong, right = pod(annotations={CPU_MANAGER: "all"}), pod()
    assert denied(updated(wrong, 5)) == [NO_POLICY]
    assert updated(right, 5) == Allowed()
    machine = ("kubevirt.io", "VirtualMachine")
    assert updated({"spec": {"template": {"spec": {}}}}, {"spec": 5}, kind=machine) == Allowed()
    with pytest.raises(Malformed) as refused:
        updated({"spec": {}}, 5, kind=("kubevirt.io", "VirtualMachineInstance"))
    assert refused.value.path == "$.request.oldObject"


NUMBERS = [
    pytest.param("1e999", "Number out of range", id="a number without end"),
    pytest.param("1" * 5000, "Integer value out of range", id="5000 digits"),
    pytest.param("-" + "1" * 5000, "Integer value out of range", id="5000 digits below zero"),
]


@pytest.mark.parametrize(("number", "why"), NUMBERS)
@pytest.mark.parametrize("old", ['{"a":1}', '{"a":{"b":[1]}}', '{"c":1}', "null"])
def test_a_number_out_of_range_is_the_clients_error(number: str, why: str, old: str) -> None:
    """A number out of range anywhere in a running VMI's spec is the client's error, with its path."""
    spec = f'{{"a":{{"b":[{number}]}}}}'
    with pytest.raises(Malformed, match=r"^\$\.request\.object\.spec") as refused:
        RULES.validate(running(spec, old))
    assert refused.value.why == why
    with pytest.raises(Malformed, match=r"^\$\.request\.oldObject\.spec"):
        RULES.validate(running(old, spec))


@pytest.mark.parametrize("user", ["jane", CONTROLLER])
def test_an_unchanged_spec_is_not_read(user: str) -> None:
    """An update that leaves the spec unchanged is admitted, even if the spec cannot be read."""
    spec = '{"a":{"b":1e999},"c":[' + "[" * 300 + "]" * 300 + "]}"
    assert RULES.validate(running(spec, spec, user)) == Allowed()


def running(new: str, old: str, user: str = "jane") -> wire.Request:
    """Return the update of a running machine whose specs are these texts."""
    asked = request(
        {"spec": "NEW"},
        {"spec": "OLD"},
        kind=("kubevirt.io", "VirtualMachineInstance"),
        operation="UPDATE",
        user=user,
    )
    objects = [bytes(document) for document in (asked.object, asked.oldObject)]
    new_raw, old_raw = (
        msgspec.Raw(document.replace(b'"NEW"', new.encode()).replace(b'"OLD"', old.encode()))
        for document in objects
    )
    return msgspec.structs.replace(asked, object=new_raw, oldObject=old_raw)
