"""The cluster's dashboard on loopback."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from tests.environments.server.daemon import free_port, running

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS: Final = Path(sys.executable).parent  # where `corepin` and `kubectl-corepin` are


@contextmanager
def dashboard(kubeconfig: Path, folder: Path) -> Iterator[str]:
    """Serve the page until the block ends; yield its address once it shows the cluster."""
    host = f"127.0.0.1:{free_port()}"
    command = ["env", f"KUBECONFIG={kubeconfig}", str(PROGRAMS / "corepin"), "dashboard", "--listen", host]
    with running("corepin dashboard", command, folder / "dashboard.log") as daemon:
        daemon.wait_until(lambda: _knows_all(f"http://{host}/healthz"))
        yield f"http://{host}/"


def _knows_all(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).is_success
    except httpx.TransportError:
        return False
