"""What goes wrong between plugin and runtime.

WireError
  +- ProtocolError     the runtime sent what cannot be understood
  +- Disconnected      the connection is of no more use
     +- EventsRefused  the runtime does not know an event that the plugin wants
     +- NotListed      the runtime ends the connection instead of listing its pods and containers
Reject                 a handler's answer: no
"""

from __future__ import annotations

from typing import Final

FAILED_PRECONDITION: Final = 9  # codes of gRPC
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13


class WireError(Exception):
    """Anything that ends a connection; its text says why."""


class ProtocolError(WireError):
    """The runtime sent what cannot be understood."""


class Disconnected(WireError):
    """The connection is of no more use."""


class EventsRefused(Disconnected):
    """The runtime has closed the connection behind Configure, as it does when it does not know an event."""


class NotListed(Disconnected):
    """The runtime has ended the connection before the last part of Synchronize."""


class Reject(Exception):
    """What a handler raises to refuse a request: the runtime gets its text as an error, with a code of gRPC."""

    def __init__(self, message: str, code: int = FAILED_PRECONDITION) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
