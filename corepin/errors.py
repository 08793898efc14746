"""Error of a command for its user, printed instead of a traceback."""

from __future__ import annotations


class CommandFailed(Exception):
    """A command failed; the message is one line. Exit code 2."""
