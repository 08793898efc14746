"""State of this machine's agent, read from its local socket."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Final

from corepin.errors import CommandFailed
from corepin.flags import add_flag
from pinning.contract import AGENT_SOCKET

if TYPE_CHECKING:
    import argparse

TIMEOUT_SECONDS: Final = 5.0


def add_socket_flag(parser: argparse._ActionsContainer) -> None:
    """Add the flag that names the agent's socket."""
    add_flag(parser, "--socket", "PATH", "the local agent's socket", AGENT_SOCKET)


def read_state(path: str) -> bytes:
    """Return the text of the agent's state; raise CommandFailed if it cannot be read."""
    if not path:  # usually from an unset variable of a shell
        raise CommandFailed("--socket: it is empty: write the path of a socket, or leave the flag out")
    remedy = "start `corepin agent` here, name its socket with --socket, or a node of the cluster with --node"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(path)
            content = b"".join(iter(lambda: connection.recv(2**16), b""))
    except PermissionError as error:
        raise CommandFailed(f"{path}: {error.strerror}: run as root, other users have no access") from error
    except TimeoutError as error:  # it listens, so another agent could not start here
        raise CommandFailed(
            f"{path}: the agent did not answer within {TIMEOUT_SECONDS:g} s:"
            " its log says what it does; if it hangs, delete its pod"
        ) from error
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}: {remedy}") from error
    if not content.strip():
        raise CommandFailed("the agent has just started and has no state yet: repeat the command in a moment")
    if not content.startswith(b"{"):
        raise CommandFailed(f"{path}: what answers there is not a corepin agent")
    return content
