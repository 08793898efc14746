"""A test host: a network namespace with one address, which only this machine can reach.

Endpoints of a Service may not be loopback addresses, and tests send nothing to any other address of the machine.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest import SkipTest

if TYPE_CHECKING:
    from collections.abc import Iterator

_NUMBERS: Final = 256
_LOCKS: Final = Path("/run")
_numbers = count(os.getpid())


class HostMissing(Exception):
    """A network namespace cannot be created here."""


class SkippedHostMissing(HostMissing, SkipTest):
    """A network namespace cannot be created outside CI: pytest skips the test."""


@dataclass(frozen=True)
class Host:
    """A test host."""

    name: str
    address: str
    near: str  # this machine's address for the host
    interface: str  # this machine's interface to the host

    def run(self, *command: str) -> tuple[str, ...]:
        """Return the prefix of command lines that run there."""
        return ("ip", "netns", "exec", self.name, *command)


@contextmanager
def host_apart() -> Iterator[Host]:
    """Create a test host, and remove it with all its interfaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise _missing("a network namespace needs root and iproute2")
    with own_number(next(_numbers)) as number, _made(number) as host:
        yield host


@contextmanager
def own_number(first: int, locks: Path = _LOCKS) -> Iterator[int]:
    """Yield a number that no other test host uses, also of simultaneous runs; the host's addresses contain it."""
    for number in ((first + step) % _NUMBERS for step in range(_NUMBERS)):
        with (locks / f"corepin-tests.host-{number}").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield number
            return
    raise _missing(f"all {_NUMBERS} networks of test hosts are in use")


@contextmanager
def _made(number: int) -> Iterator[Host]:
    name, interface = f"corepin-{os.getpid()}-{number}", f"cp{os.getpid()}x{number}"
    near, far = f"10.231.{number}.1", f"10.231.{number}.2"
    ip("netns", "add", name)
    try:
        ip("link", "add", interface, "type", "veth", "peer", "name", "eth0", "netns", name)
        try:
            ip("addr", "add", f"{near}/30", "dev", interface)
            ip("link", "set", interface, "up")
            ip("-n", name, "addr", "add", f"{far}/30", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            yield Host(name, far, near, interface)
        finally:
            # Delete it explicitly: with the namespace the kernel would remove it later, in the background.
            ip("link", "delete", interface)
    finally:
        ip("netns", "delete", name)


def ip(*words: str) -> None:
    """Run a command of iproute2."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise _missing(f"ip {' '.join(words)}: {done.stderr.strip()}")


def _missing(why: str) -> HostMissing:
    return (HostMissing if os.environ.get("CI") == "true" else SkippedHostMissing)(why)
