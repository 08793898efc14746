"""Build of the Go programs that are compared, with the builder and the cache of the test servers."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.environments.server.build import build_missing, cache_folder, find
from tests.environments.server.catalog import Module, OwnModule, Server

PEERS = Path(__file__).parent / "peers"
CONTROLLER_RUNTIME = Server(
    "controller-runtime", OwnModule(PEERS / "controller-runtime", "sigs.k8s.io/controller-runtime")
)
NRI_STUB = Server(
    "nri-stub", OwnModule(PEERS / "nri-stub", "github.com/containerd/nri", tags=("nri_no_wasm",))
)
DRA_DRIVER = Server(
    "dra-driver-cpu",
    Module(PEERS / "dra-driver-cpu", "github.com/kubernetes-sigs/dra-driver-cpu"),
    "cmd/dracpu",
)


def program(peer: Server) -> Path:
    """Return the built peer; raise `GoMissing` or `BuildFailed` if there is none."""
    build_missing(sys.stderr, [peer])
    path = find(peer, cache_folder())
    if path is None:
        raise FileNotFoundError(f"{peer.label} was built and is not there")
    return path
