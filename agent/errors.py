"""What goes wrong with the kernel, the runtime and the source of pods; each error is translated where it is met.

AgentError
  +- Unavailable   it does not answer now; try again later
  |    +- TooLarge the answer is larger than gRPC's limit for a message
  +- Gone          the container or pod is not there any more; nothing to do
  +- Refused       the answer is no; the message says why and what to do
  +- Unsettled     threads are started faster than they are moved; the next pass goes on

What the API server answers to a report is an `apiserver.errors.APIError` and stays with the reports.
"""

from __future__ import annotations


class AgentError(Exception):
    """Anything that went wrong outside of the agent."""


class Unavailable(AgentError):
    """What was asked does not answer now; `retry_seconds` is how long it asks to be left alone, if it does."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class TooLarge(Unavailable):
    """The answer is larger than the limit for a message; what was known before stays true."""


class Gone(AgentError):
    """What was asked for is not there any more."""


class Refused(AgentError):
    """The answer is no; the message says why."""


class Unsettled(AgentError):
    """A move of threads reached its bound: where every one of them is, is not known."""
