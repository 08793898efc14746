"""Fixture: an API server for the pages' commands, with objects of Intel CMK and Crane, and KubeVirt's CRDs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.environments.server.catalog import KUBERNETES
from tests.environments.server.start import start_servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.server.apiserver import ApiServer

BEFORE = Path(__file__).with_name("before_migration.yaml")
NEWEST = max(KUBERNETES)
ROUTING = "--enable-aggregator-routing=true"  # calls of webhooks without endpoints fail at once


@pytest.fixture(scope="session")
def api() -> Iterator[ApiServer]:
    """Return an API server without corepin, which tests install if they need it."""
    with start_servers(NEWEST, extra_flags=[ROUTING]) as api:
        for name in ("telco", "crane-system", "team"):
            api.create_namespace(name)
        api.kubectl("apply", "-f", str(BEFORE))
        yield api
