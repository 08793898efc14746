"""NRI's own runtime side, in each tested version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.agent.nri.nri_runtime import NRIRuntime, running_nri
from tests.environments.server.catalog import NRI_RUNTIMES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.hookimpl(tryfirst=True)  # must run before pytest selects tests by `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that uses NRI's runtime side as `server`, because it is built together with the servers."""
    for item in items:
        if "nri" in getattr(item, "fixturenames", ()):
            item.add_marker("server")


@pytest.fixture(params=list(NRI_RUNTIMES))
def nri(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NRIRuntime]:
    """Return NRI's runtime side, to which plugins can connect."""
    with running_nri(request.param, tmp_path) as runtime:
        yield runtime
