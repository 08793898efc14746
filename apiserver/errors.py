"""Errors of requests to the API server, into which `apiserver.client` translates status codes and HTTP errors.

APIError
  +- Unavailable   no answer; retry later
  |    +- Busy         the API server requests a later retry (429, 5xx)
  |         +- Failed      only this request failed; others may succeed
  +- Gone          the object does not exist; nothing to do
  +- Refused       the API server refused the request; the message has reason and remedy
  |    +- Conflict     the object was changed since it was read
  +- Expired       the requested resource version is too old: list again
  +- TooLong       the answer exceeds its size limit
"""

from __future__ import annotations


class APIError(Exception):
    """Base class of errors of a request."""


class Unavailable(APIError):
    """The server does not answer; a retry may succeed."""


class Busy(Unavailable):
    """The server asks to retry later, after `retry_seconds` if it said so."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class Failed(Busy):
    """The API server failed at one request; requests about other objects may succeed."""


class Gone(APIError):
    """The object does not exist (404)."""


class Refused(APIError):
    """The server refused the request; the message has the reason."""


class Conflict(Refused):
    """The resource was changed since it was read, is another one than expected, or exists already (409)."""


class Expired(APIError):
    """The API server no longer has the requested history (410): list again."""


class TooLong(APIError):
    """The answer is longer than the caller allows."""
