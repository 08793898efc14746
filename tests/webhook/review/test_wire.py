"""The AdmissionReview envelope: decoding, and errors for malformed ones."""

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
        pytest.param(b'{"\x00":"\\ud800"}', "$", id="a control character beside half a pair"),
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
    """A malformed review is refused with the JSON path of the error."""
    with pytest.raises(Malformed) as refusal:
        wire.decode(body)

    assert refusal.value.path == path
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    ("behind", "begun"),
    [
        pytest.param(
            b',"kind":{"kind":"Pod"},"operation":"UPDATE","name":"a\\"b","object":',
            ("Pod", "UPDATE", 'a"b'),
            id="cut off",
        ),
        pytest.param(
            b',"kind":{"kind":"Pod"},"name":"' + b"n" * 5000 + b'","operation":"UPDATE"}}',
            ("Pod", "", None),
            id="a long name",
        ),
        pytest.param(b',"kind":{"kind":5},"operation":"CREATE"', ("", "", None), id="an unreadable kind"),
        pytest.param(b"", ("", "", None), id="nothing else"),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_request_is_known_by_its_beginning(
    behind: bytes, begun: tuple[str, str, str | None], swapped: bool
) -> None:
    """The uid and kind of an unreadable body are taken from its first 4 KiB."""
    type_meta = [b'"kind": "AdmissionReview"', b'"apiVersion": "admission.k8s.io/v1"']
    first, second = reversed(type_meta) if swapped else type_meta
    request = wire.begin(b'{%b, %b, "request": {"uid": "1\\u002d2"%b' % (first, second, behind))

    assert request is not None
    assert (request.uid, request.kind.kind, request.operation, request.name) == ("1-2", *begun)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"x" + review(), id="something before it"),
        pytest.param(b" " * 4096 + review(), id="late"),
        pytest.param(b'{"metadata":' + review()[:-1] + b"}", id="a review inside of another object"),
        pytest.param(review().replace(b'"uid"', b'"uuid"'), id="no uid"),
        pytest.param(review(uid="u" * 1025), id="a long uid"),
        pytest.param(review(uid="UID").replace(b"UID", b"\xff"), id="a uid that is not UTF-8"),
        pytest.param(review().replace(b"k8s.io/v1", b"k8s.io/v1beta1"), id="an old version"),
    ],
)
def test_what_begins_as_no_review_has_no_request(body: bytes) -> None:
    """The uid is looked for only where the API server writes it, never inside of the object."""
    assert wire.begin(body) is None


def test_path_starts_at_the_root_of_the_review() -> None:
    """The path of a malformed field starts at the root of the AdmissionReview."""
    assert str(Malformed("$.spec", "x").under("$.request.object")) == "$.request.object.spec: x"


@pytest.mark.parametrize("found", [{"metadata": None}, {}, [], {"metadata": {"generateName": 3}}])
def test_generate_name_is_none_where_there_is_none(found: object) -> None:
    """An absent or unreadable generateName is None."""
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
    """Only a member generateName near the start is found, not a text that looks like one."""
    request = wire.decode(review().replace(b'"dryRun"', b'"object":' + raw + b',"dryRun"'))

    assert wire.peek_generate_name(request) == name


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (r"\ud800", "\ufffd"),
        (r"x\udc00y", "x\ufffdy"),
        (r"\ud800\u0041", "\ufffdA"),
        (r"\uD83D\ud83d\ude00\ude00", "\ufffd\U0001f600\ufffd"),
        (r"\\\ud800\\ud800", "\\\ufffd\\ud800"),
    ],
)
def test_half_a_surrogate_pair_is_read_as_go_reads_it(text: str, read: str) -> None:
    """Half a surrogate pair is read as U+FFFD, as Go does; whole pairs and escaped backslashes stay."""
    request = wire.decode(review(name="NAME", annotations={"k": "NAME"}).replace(b"NAME", text.encode()))

    assert request.name == read
    assert json.loads(bytes(request.object))["metadata"]["annotations"] == {"k": read}


@pytest.mark.parametrize("body", [r'{"a":"\ud83d', r'{"a":"\u12', '{"a":"x', r'{"a":"\\ud800'])
def test_a_truncated_body_is_reported_as_truncated(body: str) -> None:
    """A body that ends inside of a JSON text is reported as truncated."""
    with pytest.raises(Malformed, match=r"truncated|unexpected end"):
        wire.decode(body.encode())
