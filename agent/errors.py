"""Errors of the kernel, the runtime and the pod source; the module that calls one of these translates its errors.

AgentError
  +- Unavailable   the called program does not answer now; try again later
  |    +- TooLarge the answer is larger than gRPC's limit for a message
  +- Gone          the container or pod does not exist any more; nothing to do
  +- Refused       the request was refused; the message has reason and remedy
  |    +- Unimplemented  the other program lacks the service or method; do not retry
  |    +- Managed  the kernel alone chooses the CPUs of this interrupt
  +- TooMany       a container has more child cgroups than the agent reads
  +- Unsettled     threads start faster than they are moved; the next pass continues
  +- Unfinished    a container has more cgroups than one call moves; the next pass continues

Errors of the API server are not among them: see `apiserver.errors.APIError`.
"""

from __future__ import annotations


class AgentError(Exception):
    """An error of kernel, runtime or pod source."""


class Unavailable(AgentError):
    """The callee does not answer now; `retry_seconds` is its requested delay, if any."""

    def __init__(self, reason: str, retry_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.retry_seconds = retry_seconds


class TooLarge(Unavailable):
    """The answer exceeds the size limit; earlier results stay valid."""


class Gone(AgentError):
    """The container, pod or process does not exist any more."""


class Refused(AgentError):
    """The request was refused; the message has the reason."""


class Unimplemented(Refused):
    """The other program does not have this service or method, so retrying does not help until it is replaced."""


class Managed(Refused):
    """The kernel alone chooses the CPUs of this interrupt."""


class TooMany(AgentError):
    """A listing reached its bound: not all tasks of a container are known."""


class Unsettled(AgentError):
    """A move of threads reached its bound: some threads may run on other CPUs."""


class Unfinished(AgentError):
    """A move of cgroups reached its bound: until it continues, the container has its old CPUs and its new ones."""
