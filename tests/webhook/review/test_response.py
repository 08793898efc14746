"""The answers: the API server's rules for them hold for every value."""

from __future__ import annotations

import base64
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pinning.errors import Cause
from webhook.review.response import Allowed, Denied, Patched, encode, fit_warnings, message


def response(body: bytes) -> dict[str, Any]:
    """Return the response of an encoded review, its envelope checked."""
    document = json.loads(body)
    assert document["apiVersion"] == "admission.k8s.io/v1"
    assert document["kind"] == "AdmissionReview"
    found = document["response"]
    assert isinstance(found, dict)
    return found


def test_allowed_carries_the_uid_and_nothing_else() -> None:
    """A plain admission has neither patch nor status nor warnings."""
    assert response(encode("u", Allowed())) == {"uid": "u", "allowed": True}


def test_patch_and_its_type_come_together() -> None:
    """The operations come back from base64 as they were given."""
    operations = ({"op": "add", "path": "/metadata/annotations", "value": {"é": "1"}},)

    found = response(encode("u", Patched(operations, ("w",), {"decision": "x"})))

    assert found["allowed"] is True
    assert found["patchType"] == "JSONPatch"
    assert json.loads(base64.b64decode(found["patch"])) == list(operations)
    assert found["warnings"] == ["w"]
    assert found["auditAnnotations"] == {"decision": "x"}


def test_no_operations_mean_no_patch_and_no_type() -> None:
    """An empty patch is a plain admission."""
    assert response(encode("u", Patched(()))) == {"uid": "u", "allowed": True}


def test_refusal_names_kind_object_and_causes() -> None:
    """The status is what kubectl turns into its own words, each cause signed."""
    denied = Denied("Pod", "web-...", (Cause("spec.a", "is 3, use 2", "FieldValueRequired"),), group="g")

    found = response(encode("u", denied))

    assert found["allowed"] is False
    assert found["status"] == {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": "corepin refuses Pod web-...: spec.a: is 3, use 2",
        "details": {
            "kind": "Pod",
            "name": "web-...",
            "group": "g",
            "causes": [
                {"reason": "FieldValueRequired", "message": "corepin: is 3, use 2", "field": "spec.a"}
            ],
        },
    }


def test_signed_cause_is_not_signed_twice() -> None:
    """A message that is signed already is not signed again; a nameless object is reported as "(no name)"."""
    details = response(encode("u", Denied("Pod", "", (Cause("a", "corepin: b"),))))["status"]["details"]

    assert details["causes"][0]["message"] == "corepin: b"
    assert details["name"] == "(no name)"
    assert "group" not in details


def test_message_counts_what_it_leaves_out() -> None:
    """The message names ten causes and counts the others."""
    causes = tuple(Cause(f"f{number}", "wrong") for number in range(12))

    assert message(Denied("Pod", "p", causes)).endswith("f9: wrong; and 2 more")


TEXTS = st.text(max_size=1500)


@given(name=TEXTS, causes=st.lists(st.builds(Cause, TEXTS, TEXTS), min_size=1, max_size=30))
def test_message_is_always_short_signed_and_complete(name: str, causes: list[Cause]) -> None:
    """Whatever the causes, the message is one line below 1,000 characters, and names or counts every cause."""
    text = message(Denied("VirtualMachineInstance", name, tuple(causes)))

    assert len(text) < 1000
    assert text.startswith("corepin refuses")
    assert "\n" not in text


@given(st.lists(TEXTS, max_size=40))
def test_warnings_keep_the_limits_of_the_api(texts: list[str]) -> None:
    """Warnings have at most 256 characters each and 4096 in all, and those left out are counted."""
    fitting = fit_warnings(tuple(texts))

    assert all(len(text) <= 256 for text in fitting)
    assert sum(map(len, fitting)) <= 4096
    if len(fitting) < len(texts) or (texts and "left out" in fitting[-1]):
        left = int(fitting[-1].split()[1])
        assert left == len(texts) - (len(fitting) - 1)


def test_warnings_are_one_printable_line() -> None:
    """Line breaks and control characters, which HTTP would refuse, become blanks."""
    assert fit_warnings(("a\nb\x00c é",)) == ["a b c é"]
