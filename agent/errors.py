"""What goes wrong outside of the agent; each error is translated at the edge that meets it.

The kernel and the runtime fail as the API server does, so that whoever tries again need not know which of them it was:

AgentError
  +- Unavailable   the runtime, the API server or the kernel does not answer now; try again later
  +- Gone          the container or pod is not there any more; nothing to do
  +- Refused       it answered no; the message says why and what to do
"""

from __future__ import annotations

from apiserver.errors import APIError, Gone, Refused, Unavailable

__all__ = ["AgentError", "Gone", "Refused", "Unavailable"]

AgentError = APIError
