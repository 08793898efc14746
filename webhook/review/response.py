"""Answers of the webhook as values, and their encoding.

The API server's rules are implemented here once: the uid is echoed, patch and patchType appear together or not at
all, warnings and messages keep the API's limits, a refusal names kind, object and every cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from pinning.contract import PRODUCT
from pinning.lazy import lazy
from pinning.truncate import MOST_REPORTED, truncate
from webhook.review.wire import API_VERSION, KIND

if TYPE_CHECKING:
    from pinning.errors import Cause

Operation = Mapping[str, object]  # one step of a JSON Patch (RFC 6902)

UNPROCESSABLE = 422  # the API server's own code for an invalid object
UNNAMED = "(no name)"
NAME_LIMIT = 260  # characters of a name: the longest valid one, and the dots of a generateName
CAUSES_ROOM = 48 * 1024  # bytes for the causes of a refusal, which stays below 64 kB in total
MESSAGE_LIMIT = 1000  # characters of a message: events are truncated at 1024
CAUSES_NAMED = 10  # most causes in a message
WARNING_LIMIT = 256  # characters of a warning: the API server may truncate a longer one,
WARNINGS_LIMIT = 4096  # and drops warnings after this many characters
MORE_WARNINGS_ROOM = 64  # characters for the line with the number of omitted warnings
HELD_PER_ENCODED = 5  # bytes in memory for each encoded byte, including that byte

_encode = msgspec.json.Encoder().encode


_HEAD = _encode({"apiVersion": API_VERSION, "kind": KIND})[:-1] + b',"response":{"uid":'


class _Encoded:
    """Base class of answers, which caches the encoded form."""

    @lazy
    def encoded(self: Any) -> bytes:
        """Return the members of `response` except the uid, with the closing brace."""
        return _encode(_response(self))[1:]


def _none() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True)
class Allowed(_Encoded):
    """The object is admitted unchanged."""

    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=_none)


@dataclass(frozen=True)
class Patched(_Encoded):
    """The object is admitted with these changes."""

    operations: tuple[Operation, ...]
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=_none)


@dataclass(frozen=True)
class Denied(_Encoded):
    """The object is refused, with every cause; `name` may be `prefix-...` of a generateName."""

    kind: str
    name: str
    causes: tuple[Cause, ...]
    warnings: tuple[str, ...] = ()
    audit: Mapping[str, str] = field(default_factory=_none)
    group: str = ""


Answer = Allowed | Patched | Denied


def weight(answer: Answer) -> int:
    """Return an upper bound of an answer's size in bytes, including its encoded form."""
    return HELD_PER_ENCODED * len(answer.encoded)


def encode(uid: str, answer: Answer) -> bytes:
    """Return the JSON of an AdmissionReview with `answer` to the request `uid`."""
    return b"".join((_HEAD, _encode(uid), b",", answer.encoded, b"}"))


def _response(answer: Answer) -> dict[str, Any]:
    response: dict[str, Any] = {"allowed": not isinstance(answer, Denied)}
    if isinstance(answer, Denied):
        response["status"] = _status(answer)
    elif isinstance(answer, Patched) and answer.operations:
        response["patchType"] = "JSONPatch"
        response["patch"] = _encode(answer.operations)  # msgspec writes bytes as base64
    if answer.warnings:
        response["warnings"] = fit_warnings(answer.warnings)
    if answer.audit:
        response["auditAnnotations"] = dict(answer.audit)
    return response


def message(denied: Denied) -> str:
    """Return a refusal's message with kind, object and cause, because events of controllers show only this text."""
    head = f"{PRODUCT} refuses {denied.kind} {_one_line(truncate(denied.name or UNNAMED, NAME_LIMIT))}: "
    texts: list[str] = []
    room = MESSAGE_LIMIT - len(head) - len("; and 1000000 more")
    for cause in denied.causes[:CAUSES_NAMED]:
        text = _one_line(f"{cause.field}: {cause.message}")
        if texts and len(text) > room:
            break
        texts.append(truncate(text, room))
        room -= len(texts[-1]) + len("; ")
    left = _count(len(denied.causes), len(texts))
    return head + "; ".join(texts) + (f"; and {left} more" if left else "")


def fit_warnings(warnings: tuple[str, ...]) -> list[str]:
    """Return the warnings that fit into the API's limits; if some are omitted, the last one has their number."""
    fitting: list[str] = []
    room = WARNINGS_LIMIT
    texts = [_one_line(truncate(warning, WARNING_LIMIT)) for warning in warnings]
    for number, text in enumerate(texts, start=1):
        reserve = MORE_WARNINGS_ROOM if number < len(texts) else 0
        if len(text) > room - reserve or number > MOST_REPORTED:
            left = _count(len(texts), len(fitting))
            fitting.append(f"{PRODUCT}: {left} more warnings are left out")
            break
        fitting.append(text)
        room -= len(text)
    return fitting


def _count(found: int, shown: int) -> str:
    """Return the number of omitted causes or warnings as text; `7 or` before `more` if not all were counted."""
    if found > MOST_REPORTED:
        return f"{found - shown} or"
    return str(found - shown) if found > shown else ""


def _status(denied: Denied) -> dict[str, Any]:
    details: dict[str, Any] = {
        "kind": denied.kind,
        "name": truncate(denied.name or UNNAMED, NAME_LIMIT),
        "causes": _causes(denied.causes),
    }
    if denied.group:
        details["group"] = denied.group
    return {
        "status": "Failure",
        "code": UNPROCESSABLE,
        "reason": "Invalid",
        "message": message(denied),
        "details": details,
    }


def _causes(causes: tuple[Cause, ...]) -> list[dict[str, str]]:
    shown: list[dict[str, str]] = []
    room = CAUSES_ROOM
    for cause in causes[:MOST_REPORTED]:
        written = _cause(cause)
        room -= len(_encode(written))
        if shown and room < 0:
            break
        shown.append(written)
    return shown


def _cause(cause: Cause) -> dict[str, str]:
    """Return a cause in the API's form; its message names corepin, because kubectl prints only `field: message`."""
    text = cause.message if cause.message.startswith(f"{PRODUCT}: ") else f"{PRODUCT}: {cause.message}"
    return {"reason": cause.reason, "message": text, "field": cause.field}


def _one_line(text: str) -> str:
    """Return the text without line breaks and control characters, which HTTP warnings cannot carry."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)
