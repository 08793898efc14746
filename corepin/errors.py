"""Error of a command, of which only the message is printed, without a traceback."""

from __future__ import annotations


class CommandFailed(Exception):
    """A command failed; the message is one line. Exit code 2."""
