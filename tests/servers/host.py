"""A test host of its own: a network namespace with one address, which only this machine can reach.

Endpoints of a Service may not be loopback addresses, and tests send nothing to any other address of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import SkipTest

if TYPE_CHECKING:
    from collections.abc import Iterator

NEAR, FAR = "10.231.77.1", "10.231.77.2"


class HostMissing(Exception):
    """No network namespace can be made here."""


class SkippedHostMissing(HostMissing, SkipTest):
    """The same outside CI, where pytest takes it for a skip."""


@dataclass(frozen=True)
class Host:
    """A test host."""

    name: str
    address: str

    def run(self, *command: str) -> tuple[str, ...]:
        """Return the command line that runs a command there."""
        return ("ip", "netns", "exec", self.name, *command)


@contextmanager
def host_apart() -> Iterator[Host]:
    """Make a test host, and take it away with all its interfaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise _missing("a network namespace needs root and iproute2")
    name = f"corepin-{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", f"cp{os.getpid()}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{NEAR}/30", "dev", f"cp{os.getpid()}")
        _ip("link", "set", f"cp{os.getpid()}", "up")
        _ip("-n", name, "addr", "add", f"{FAR}/30", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        yield Host(name, FAR)
    finally:
        _ip("netns", "delete", name)


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _missing(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _missing(why: str) -> HostMissing:
    return (HostMissing if os.environ.get("CI") == "true" else SkippedHostMissing)(why)
