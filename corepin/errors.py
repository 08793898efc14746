"""What a command tells its user instead of a traceback."""

from __future__ import annotations


class CommandFailed(Exception):
    """A command cannot do its work; the message is one clear line. Exit code 2."""
