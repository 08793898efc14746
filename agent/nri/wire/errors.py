"""Errors between plugin and runtime.

WireError
  +- ProtocolError     the runtime sent an invalid message
  +- Disconnected      the connection is no longer usable
     +- EventsRefused  the runtime does not know an event that the plugin wants
     +- NotListed      the runtime ends the connection instead of listing its pods and containers
Reject                 a handler refuses a request
"""

from __future__ import annotations

from typing import Final

FAILED_PRECONDITION: Final = 9  # status code of gRPC
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13


class WireError(Exception):
    """An error that ends the connection; its text is the reason."""


class ProtocolError(WireError):
    """The runtime sent an invalid message."""


class Disconnected(WireError):
    """The connection is no longer usable."""


class EventsRefused(Disconnected):
    """The runtime closed the connection after Configure, as it does for an event that it does not know."""

    def __init__(self, runtime: str, events: int) -> None:
        super().__init__(f"the runtime closed the connection when asked for the events {events:#x}")
        self.runtime = runtime


class NotListed(Disconnected):
    """The runtime ended the connection before the last part of Synchronize."""


class Reject(Exception):
    """A handler refuses a request: the runtime gets the text as an error, with a gRPC code."""

    def __init__(self, message: str, code: int = FAILED_PRECONDITION) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
