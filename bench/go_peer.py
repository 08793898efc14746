"""Build the Go webhook that corepin's is measured against, with the builder and the cache of the test servers."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.servers.build import build_missing, cache_folder, find
from tests.servers.catalog import Module, Server

FOLDER = Path(__file__).parent / "peers" / "controller-runtime"


@dataclass(frozen=True)
class OwnModule(Module):
    """A module whose program is ours, so that its source decides what is built too."""

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the recipe and the source."""
        source = (self.folder / "main.go").read_text()
        return hashlib.sha256(f"{super().digest}\0{source}".encode()).hexdigest()[:12]


@dataclass(frozen=True)
class OwnServer(Server):
    """The program in the root of its module."""

    @property
    def package(self) -> str:
        """Return the Go package to build."""
        return "."


CONTROLLER_RUNTIME = OwnServer(
    "controller-runtime", OwnModule(FOLDER, "sigs.k8s.io/controller-runtime"), command="webhook"
)


def program() -> Path:
    """Return the built peer; raise `GoMissing` or `BuildFailed` when there is none and it cannot be built."""
    build_missing(sys.stderr, [CONTROLLER_RUNTIME])
    path = find(CONTROLLER_RUNTIME, cache_folder())
    if path is None:
        raise FileNotFoundError(f"{CONTROLLER_RUNTIME.label} was built and is not there")
    return path
