"""The AdmissionReview envelope: the fields that corepin reads, decoded and checked in one pass.

The objects inside stay raw bytes; the rules of each kind decode the parts that they need, and raise `Malformed` if that
fails. Unknown fields are ignored, because the API grows.
"""
# ruff: noqa: N815 - field names of the Kubernetes API

from __future__ import annotations

import re

import msgspec

from webhook.rules import lenient
from webhook.rules.raw_json import NULL, UNREADABLE, Malformed, malformed

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"

LONGEST_UID = 1024  # characters of a uid; the API server's have 36, and each answer repeats the uid
PEEKED = 1024  # bytes at the start of an object that are searched for its generateName
_GENERATE_NAME = re.compile(rb'"generateName"\s*:\s*("(?:[^"\\]|\\.)*")')
HEAD = 4096  # bytes that identify a review: the API server writes the uid before all user data
_AS_REVIEW = (rb'"kind"\s*:\s*"AdmissionReview"', rb'"apiVersion"\s*:\s*"admission\.k8s\.io/v1"')
_TEXT = rb'"(?:[^"\\]++|\\.)*+"'
_BEGINNING = re.compile(
    rb"\s*+\{\s*+(?:%b\s*,\s*%b|%b\s*,\s*%b)" % (*_AS_REVIEW, *reversed(_AS_REVIEW))
    + rb'\s*,\s*"request"\s*:\s*(?P<request>\{\s*"uid"\s*:\s*%b' % _TEXT
    + rb'(?:\s*+,\s*+"\w++"\s*+:\s*+(?:%b|\{[^{}]*+\}))*+)' % _TEXT,
    re.DOTALL,
)


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
    """The user that made the request."""

    username: str | None = None


class Request(msgspec.Struct, frozen=True):
    """One admission request; `object` is null on DELETE, `oldObject` on CREATE and CONNECT."""

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
    """An AdmissionReview: the envelope of one request."""

    apiVersion: str
    kind: str
    request: Request


class Beginning(msgspec.Struct, frozen=True):
    """The first members of a request."""

    uid: str
    kind: GroupVersionKind = GroupVersionKind("")
    operation: str = ""
    subResource: str | None = None
    name: str | None = None
    namespace: str | None = None


class _Identity(msgspec.Struct):
    uid: str


class _Metadata(msgspec.Struct, gc=False):
    generateName: str | None = None


class _Named(msgspec.Struct):
    metadata: _Metadata | None = None


_review = msgspec.json.Decoder(Review)
_beginning = msgspec.json.Decoder(Beginning)
_identity = msgspec.json.Decoder(_Identity)
_named = msgspec.json.Decoder(_Named)


def decode(body: bytes | bytearray) -> Request:
    """Return the request of a review, or raise `Malformed` naming the JSON path."""
    try:
        review = lenient.decode(_review, body)
    except UNREADABLE as error:
        raise malformed(error) from error

    if len(review.request.uid) > LONGEST_UID:
        raise Malformed("$.request.uid", f"has more than {LONGEST_UID} characters")
    _expect("$.apiVersion", review.apiVersion, API_VERSION)
    _expect("$.kind", review.kind, KIND)
    return review.request


def begin(body: bytes | bytearray) -> Request | None:
    """Return a request with only the members before user data; None if the body does not start like a review."""
    found = _BEGINNING.match(body, 0, HEAD)
    if found is None:
        return None
    text = found["request"] + b"}"
    try:
        beginning = _beginning.decode(text)
    except UNREADABLE:
        try:
            beginning = Beginning(_identity.decode(text).uid)
        except UNREADABLE:
            return None
    if len(beginning.uid) > LONGEST_UID:
        return None
    return Request(**msgspec.structs.asdict(beginning))


def generate_name(request: Request) -> str | None:
    """Return the object's generateName, None if it has none."""
    try:
        metadata = lenient.decode(_named, request.object).metadata
    except UNREADABLE:
        return None
    return metadata.generateName if metadata else None


def peek_generate_name(request: Request) -> str | None:
    """Return the generateName in an object's first bytes; for the log only, because the bytes are searched, not parsed.

    Quotes inside texts are escaped, so a match is a member; the API server writes metadata before the rest.
    """
    found = _GENERATE_NAME.search(memoryview(request.object)[:PEEKED])
    try:
        return msgspec.json.decode(found[1], type=str) if found else None
    except UNREADABLE:
        return None


def _expect(path: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise Malformed(path, f"expected {wanted}, found {found[:40]!a}")
