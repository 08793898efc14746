"""The envelope: what is read, and what is said of what cannot be read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.webhook.reviews import review
from webhook.review import wire
from webhook.rules.raw_json import Malformed


def changed(**changes: Any) -> bytes:
    """Return a review with members of its request replaced."""
    body = json.loads(review())
    body["request"].update(changes)
    return json.dumps(body).encode()


def test_request_is_decoded_with_its_objects_left_raw() -> None:
    """The members are typed, the object keeps its bytes, what is absent is null."""
    request = wire.decode(review(name="p", namespace="n"))

    assert (request.kind.kind, request.operation, request.name, request.namespace) == (
        "Pod",
        "CREATE",
        "p",
        "n",
    )
    assert json.loads(bytes(request.object))["metadata"]["generateName"] == "web-"
    assert bytes(request.oldObject) == b"null"


def test_nulls_of_a_delete_are_read() -> None:
    """A DELETE carries null where an object was."""
    request = wire.decode(changed(object=None, operation="DELETE", dryRun=None, subResource=None))

    assert bytes(request.object) == b"null"
    assert wire.generate_name(request) is None


@pytest.mark.parametrize(
    ("body", "path"),
    [
        pytest.param(b"", "$", id="empty"),
        pytest.param(b"{", "$", id="truncated"),
        pytest.param(b"[]", "$", id="list"),
        pytest.param(b"null", "$", id="null"),
        pytest.param(b'{"apiVersion":"\xff","kind":"a"}', "$", id="not UTF-8"),
        pytest.param(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "$", id="nested"),
        pytest.param(b'{"apiVersion":"v1","kind":"Pod"}', "$", id="request is absent"),
        pytest.param(b'{"apiVersion":"v1","kind":"Pod","request":null}', "$.request", id="request is null"),
        pytest.param(changed(uid=1), "$.request.uid", id="uid is a number"),
        pytest.param(changed(uid="u" * 2000), "$.request.uid", id="uid is long"),
        pytest.param(changed(kind={"kind": []}), "$.request.kind.kind", id="kind is a list"),
        pytest.param(review().replace(b"k8s.io/v1", b"k8s.io/v1beta1"), "$.apiVersion", id="old version"),
        pytest.param(review().replace(b'"AdmissionReview"', b'"Pod"'), "$.kind", id="other kind"),
    ],
)
def test_malformed_reviews_name_the_path(body: bytes, path: str) -> None:
    """Every unreadable review is refused with the JSON path, in few words."""
    with pytest.raises(Malformed) as refusal:
        wire.decode(body)

    assert refusal.value.path == path
    assert len(str(refusal.value)) < 200


def test_path_is_told_from_the_place_of_the_object() -> None:
    """A complaint about an object inside is told from the envelope's root."""
    assert str(Malformed("$.spec", "x").under("$.request.object")) == "$.request.object.spec: x"


@pytest.mark.parametrize("found", [{"metadata": None}, {}, [], {"metadata": {"generateName": 3}}])
def test_generate_name_is_none_where_there_is_none(found: object) -> None:
    """A generateName that is absent or unreadable is no error."""
    request = wire.decode(changed(object=found))

    assert wire.generate_name(request) is None
    assert wire.peek_generate_name(request) is None


def test_generate_name_is_read_from_the_object() -> None:
    """The generateName of the object is found."""
    assert wire.generate_name(wire.decode(review())) == "web-"
    assert wire.peek_generate_name(wire.decode(review())) == "web-"


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b'{"metadata":{"labels":{"x":"\\"generateName\\":\\"y\\""},"generateName" : "a\\u00e9"}}', "aé"),
        (b'{"a":"' + b"x" * 1024 + b'","metadata":{"generateName":"late"}}', None),
    ],
)
def test_generate_name_is_peeked_at(raw: bytes, name: str | None) -> None:
    """A member is told from a text that looks like one; what comes late is not told."""
    request = wire.decode(review().replace(b'"dryRun"', b'"object":' + raw + b',"dryRun"'))

    assert wire.peek_generate_name(request) == name


@pytest.mark.parametrize(
    "text", [r"\ud800", r"\ud800 and so on and so on", r"x\udc00", r"\ud800\u0041", r"\uD83D\ud83d\ude00"]
)
@pytest.mark.parametrize("behind", ["", "}" * 20, " " * 20])
def test_a_lone_surrogate_is_told_as_what_it_is(text: str, behind: str) -> None:
    """Half a character is not a text that was cut off, wherever in the body it stands."""
    for body in (f'{{"uid":"{text}"}}{behind}', f'{{"a":{{"{text}":1}},"b":"long enough"}}{behind}'):
        with pytest.raises(Malformed, match="lone surrogate"):
            wire.decode(body.encode())


@pytest.mark.parametrize("body", [r'{"a":"\ud83d', r'{"a":"\u12', '{"a":"x', r'{"a":"\\ud800'])
def test_a_body_that_is_cut_off_is_told_so(body: str) -> None:
    """What ends in the middle of a text is truncated."""
    with pytest.raises(Malformed, match=r"truncated|unexpected end"):
        wire.decode(body.encode())
