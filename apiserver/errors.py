"""What can go wrong with the API server; each error is translated once, where it is met.

APIError
  +- Unavailable   it does not answer now; try again later
  |    +- Busy         it asks for patience
  |         +- Failed      it failed at this request; others may fare better
  +- Gone          the object is not there any more; nothing to do
  +- Refused       it answered no; the message says why and what to do
  |    +- Conflict     the object was changed meanwhile
  +- Expired       the history that was asked for is gone: list again
  +- TooLong       the answer has more bytes than were asked for
"""

from __future__ import annotations


class APIError(Exception):
    """Anything that went wrong with a request."""


class Unavailable(APIError):
    """What was asked does not answer now; trying again later may help."""


class Busy(Unavailable):
    """The other side asks for patience; `retry_seconds` is what it said, if it said anything."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class Failed(Busy):
    """The API server failed at one request: others, about other objects, may fare better."""


class Gone(APIError):
    """What was asked for is not there any more."""


class Refused(APIError):
    """The answer is no; the message says why."""


class Conflict(Refused):
    """The resource was changed meanwhile, is another one than was meant, or exists already (409)."""


class Expired(APIError):
    """The API server no longer has the history that was asked for (410): list again."""


class TooLong(APIError):
    """The answer has more bytes than were asked for."""
