"""`corepin guard` as a process next to a runtime."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.environments import plain_http
from tests.environments.server.daemon import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.server.daemon import Daemon

COMMAND = Path(sys.executable).with_name("corepin")


class GuardProcess(NamedTuple):
    """A running guard and the URL of its probes."""

    daemon: Daemon
    url: str

    def readiness(self) -> tuple[int, str]:
        """Return HTTP status and body of the readiness probe."""
        answer = plain_http.get(f"{self.url}/readyz")
        return answer.status_code, answer.text.strip()


@contextmanager
def guard_on(socket: Path, directory: Path) -> Iterator[GuardProcess]:
    """Run the guard's command and yield it when its probes answer, which may be before it is connected to the runtime."""
    address = f"127.0.0.1:{free_port()}"
    command = [
        *(sys.executable, "-W", "error", str(COMMAND), "guard", "--nri", str(socket)),
        *("--config", "nowhere", "--kubelet-state", "nowhere", "--health-listen", address),
    ]
    log = directory / f"guard-{address[-5:]}.log"
    with running("corepin guard", command, log) as daemon:
        daemon.wait_until(lambda: '"serving"' in log.read_text())
        yield GuardProcess(daemon, f"http://{address}")
