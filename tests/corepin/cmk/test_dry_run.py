"""Dry runs of an installation: the fields that would change, and the objects that would be refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from corepin.cmk.dry_run import changed_fields, check_applies
from corepin.errors import CommandFailed

TAKEN = (409, 'Apply failed with 1 conflict: conflict with "kubectl-edit" using apps/v1: .spec.replicas')
STALE = (409, "Operation cannot be fulfilled: the object has been modified")
INVALID = (422, "DaemonSet is invalid: spec.selector: field is immutable")
NEW = (404, 'namespaces "corepin-agent" not found')
UNSERVED = (404, "the server could not find the requested resource")
CANNOT = (400, 'admission webhook "a.example" does not support dry run')
OVERRULE = "nothing was changed: to take these fields over, add --force-conflicts"


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        pytest.param({"a": {"b": 1}}, {"a": {"b": 1}}, [], id="same"),
        pytest.param({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b"], id="value"),
        pytest.param({"a": {}}, {"a": {"b": 2}}, ["a.b"], id="added"),
        pytest.param({"a": {"b": None}}, {"a": {}}, [], id="null is absent"),
        pytest.param({"a": [{"b": 1}, {"b": 2}]}, {"a": [{"b": 1}, {"b": 3}]}, ["a[1].b"], id="item"),
        pytest.param({"a": [1]}, {"a": [1, 2]}, ["a"], id="longer list"),
        pytest.param({"a": {"b": 1}}, {"a": "b"}, ["a"], id="another kind"),
    ],
)
def test_changed_fields_are_named(before: Any, after: Any, paths: list[str]) -> None:
    """Changed fields are named by their paths, at the depth at which the objects differ."""
    assert list(changed_fields(before, after)) == paths


def checked(
    answers: dict[str, tuple[int, str]], namespace: str | None = None, *, has_namespace: bool = False
) -> str:
    """Return the error for objects whose dry runs get these answers; empty without an error."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            assert request.url.path == f"/api/v1/namespaces/{namespace}"
            return httpx.Response(200 if has_namespace else 404, json={})
        assert request.method == "PATCH"
        assert request.url.params["dryRun"] == "All"
        status, message = answers[request.url.path.strip("/")]
        return httpx.Response(status, json={"message": message})

    where = {} if namespace is None else {"namespace": namespace}
    documents = [{"kind": "DaemonSet", "metadata": {"name": name, **where}} for name in answers]
    with httpx.Client(base_url="https://api.example", transport=httpx.MockTransport(answer)) as api:
        try:
            check_applies(api, documents, lambda it: f"/{it['metadata']['name']}", "fieldManager=kubectl")
        except CommandFailed as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("answers", "remedy"),
    [
        pytest.param([TAKEN], OVERRULE, id="conflict"),
        pytest.param([TAKEN, STALE], "nothing was changed: repeat this command", id="changed meanwhile"),
        pytest.param([TAKEN, INVALID], "correct what the API server refuses, and repeat", id="invalid"),
    ],
)
def test_refusals_are_found_before_anything_is_changed(answers: list[tuple[int, str]], remedy: str) -> None:
    """Refused objects fail the dry run before any change, with the API server's messages and one remedy."""
    said = checked({f"d{number}": answer for number, answer in enumerate(answers)})
    assert all(f"PATCH /d{number}: the API server answered" in said for number in range(len(answers)))
    assert remedy in said


@pytest.mark.parametrize("answer", [NEW, CANNOT])
def test_what_a_dry_run_cannot_show_is_no_refusal(answer: tuple[int, str]) -> None:
    """Errors of a namespace that does not exist yet, or of a webhook without dry-run support, are ignored."""
    assert checked({"a": answer, "b": (200, "")}, "corepin-agent") == ""


@pytest.mark.parametrize(
    ("namespace", "has_namespace"),
    [
        pytest.param(None, False, id="of the cluster"),
        pytest.param("corepin-agent", True, id="in a namespace that exists"),
    ],
)
def test_kind_that_is_not_served_is_a_refusal(namespace: str | None, *, has_namespace: bool) -> None:
    """A kind that is not served, a 404, is a refusal, because it would stop the installation halfway."""
    said = checked({"a": UNSERVED, "b": (200, "")}, namespace, has_namespace=has_namespace)
    assert "PATCH /a: the API server answered 404: the server could not find" in said
    assert "correct what the API server refuses" in said


def test_only_some_of_many_refusals_are_named() -> None:
    """The error names only some of many refusals."""
    said = checked({f"d{number}": TAKEN for number in range(30)})
    assert said.count("Apply failed") == 3
    assert f"; and 27 objects more: {OVERRULE}" in said
