"""Build the Go webhook that corepin's is measured against, with the builder and the cache of the test servers."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.servers.build import build_missing, cache_folder, find
from tests.servers.catalog import OwnModule, Server

FOLDER = Path(__file__).parent / "peers" / "controller-runtime"
CONTROLLER_RUNTIME = Server("controller-runtime", OwnModule(FOLDER, "sigs.k8s.io/controller-runtime"))


def program() -> Path:
    """Return the built peer; raise `GoMissing` or `BuildFailed` when there is none and it cannot be built."""
    build_missing(sys.stderr, [CONTROLLER_RUNTIME])
    path = find(CONTROLLER_RUNTIME, cache_folder())
    if path is None:
        raise FileNotFoundError(f"{CONTROLLER_RUNTIME.label} was built and is not there")
    return path
