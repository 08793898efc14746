"""The AdmissionReview envelope as it travels: the fields corepin reads, decoded and checked in one pass.

The objects inside stay raw bytes here; whoever judges a kind decodes what it needs of it and raises `Malformed`
when it cannot. Unknown fields are ignored, because the API grows.
"""
# ruff: noqa: N815 - field names of the Kubernetes API

from __future__ import annotations

import re

import msgspec

from webhook.rules.raw_json import NULL, UNREADABLE, Malformed, malformed

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

LONGEST_UID = 1024  # characters, of which the API server's have 36; each answer repeats them
SURROGATE_PAIR = 12  # characters of the two escapes
PEEKED = 1024  # bytes of an object in which its generateName is looked for
_GENERATE_NAME = re.compile(rb'"generateName"\s*:\s*("(?:[^"\\]|\\.)*")')
_CUT_OFF = ("Input data was truncated", "JSON is malformed: unexpected end of hex escape")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


class GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    """The kind of an object."""

    kind: str
    version: str = ""
    group: str = ""


class GroupVersionResource(msgspec.Struct, frozen=True, gc=False):
    """The resource that a request addresses, e.g. `pods`."""

    resource: str = ""
    version: str = ""
    group: str = ""


class UserInfo(msgspec.Struct, frozen=True):
    """Who made the request."""

    username: str | None = None
    groups: tuple[str, ...] | None = None


class Request(msgspec.Struct, frozen=True):
    """One admission request; `object` is null on DELETE and CONNECT, `oldObject` on CREATE."""

    uid: str
    kind: GroupVersionKind
    operation: str
    resource: GroupVersionResource = GroupVersionResource()
    subResource: str | None = None
    name: str | None = None
    namespace: str | None = None
    userInfo: UserInfo = UserInfo()
    object: msgspec.Raw = NULL
    oldObject: msgspec.Raw = NULL
    dryRun: bool | None = None


class Review(msgspec.Struct, frozen=True):
    """The envelope."""

    apiVersion: str
    kind: str
    request: Request


class _Metadata(msgspec.Struct, gc=False):
    generateName: str | None = None


class _Named(msgspec.Struct):
    metadata: _Metadata | None = None


_review = msgspec.json.Decoder(Review)
_named = msgspec.json.Decoder(_Named)


def decode(body: bytes) -> Request:
    """Return the request of a review, or raise `Malformed` naming the JSON path."""
    try:
        if not body.isascii():
            body.decode()  # what msgspec leaves raw it has not looked at
        review = _review.decode(body)
    except UNREADABLE as error:
        if _is_half_a_pair(error, body):
            raise Malformed("$", "a text has a lone surrogate, which is half a character") from error
        raise malformed(error) from error

    if len(review.request.uid) > LONGEST_UID:
        raise Malformed("$.request.uid", f"has more than {LONGEST_UID} characters")
    _expect("$.apiVersion", review.apiVersion, API_VERSION)
    _expect("$.kind", review.kind, KIND)
    return review.request


def _is_half_a_pair(error: Exception, body: bytes) -> bool:
    """Say whether reading ended at a lone surrogate, of which msgspec may say that the text is cut off there."""
    message = str(error)
    if "surrogate pair" in message:
        return True
    if not message.startswith(_CUT_OFF) or not body.rstrip().endswith(b"}"):
        return False
    place = _BYTE.search(message)
    end = int(place[1]) if place else len(body)
    return _HIGH_SURROGATE.search(body, max(end - SURROGATE_PAIR, 0), end + 1) is not None


def generate_name(request: Request) -> str | None:
    """Return the object's generateName, None when there is none to read."""
    try:
        metadata = _named.decode(request.object).metadata
    except UNREADABLE:
        return None
    return metadata.generateName if metadata else None


def peek_generate_name(request: Request) -> str | None:
    """Return the generateName near the object's beginning; for the log only, because it is found and not parsed.

    Quotes inside of texts are escaped, so what matches is a member; the API server writes metadata before the rest.
    """
    found = _GENERATE_NAME.search(memoryview(request.object)[:PEEKED])
    return msgspec.json.decode(found[1], type=str) if found else None


def _expect(path: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise Malformed(path, f"expected {wanted}, found {found[:40]!a}")
