"""Why a wrapper does not get what it asks for. The text goes to its user as it is."""

from __future__ import annotations

from agent.errors import AgentError


class Denied(AgentError):
    """The answer to a wrapper is no; the message says what was wanted, what was found, and what to do."""


class Crowded(AgentError):
    """The node holds as many connections as it may; the connection closes without an answer, so the shim asks again."""
