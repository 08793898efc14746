"""Answers to reviews of objects that corepin cannot decode; HTTP 200, because a failed call admits the object.

`/validate` refuses, so that no annotation takes effect without validation. `/mutate` admits without changes, because
`/validate` is called next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pinning.errors import Cause
from webhook.review.handler import CHANGING, JUDGED_OF_PODS, POD, name_of, warning_texts
from webhook.review.response import Allowed, Answer, Denied
from webhook.rules.raw_json import OBJECT
from webhook.rules.vms import KINDS
from webhook.rules.workloads import TEMPLATES

if TYPE_CHECKING:
    from webhook.review.wire import Request
    from webhook.rules.raw_json import Malformed

UNKNOWN: Final = ("", "")  # kind of a request whose kind could not be read
WHOLE: Final = "object"  # field of a cause about the whole object
REFUSED: Final = {"refused": "1"}


def answer(endpoint: str, request: Request, error: Malformed) -> Answer:
    """Return the answer to a request whose object the rules could not decode."""
    kind = (request.kind.group, request.kind.kind)
    if endpoint == "mutate" or not _is_judged(request, kind):
        return Allowed()
    field = error.path.removeprefix(OBJECT).lstrip(".") or WHOLE
    if kind in TEMPLATES:
        message = f"cannot be read: {error.why}; pods of it may be refused"
        return Allowed(warning_texts((Cause(field, message),)))
    message = f"cannot be read: {error.why}; change it or leave it out"
    return Denied(request.kind.kind, name_of(request), (Cause(field, message),), audit=REFUSED, group=kind[0])


def _is_judged(request: Request, kind: tuple[str, str]) -> bool:
    """Return whether `/validate` handles such requests; an unknown kind or operation counts as handled."""
    if request.operation and request.operation not in CHANGING:
        return False
    if kind == POD:
        return request.subResource in JUDGED_OF_PODS
    return kind in TEMPLATES or kind == UNKNOWN or (kind in KINDS and not request.subResource)
