"""A control plane of its own: its nodes would take pods of other tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import KUBE_SCHEDULER, TOPOLOGY_SCHEDULER
from tests.environments.server.control_plane import start_scheduler, start_topology_scheduler
from tests.environments.server.start import require, start_servers

CRD = Path("tests/environments/server/scheduler-plugins/crd.yaml")


@pytest.fixture(scope="module")
def scheduled() -> Iterator[ApiServer]:
    """Return an API server whose pods are placed by the scheduler with the filter."""
    [program] = require(TOPOLOGY_SCHEDULER)
    with start_servers() as server:
        server.apply(CRD.read_text())
        server.kubectl("wait", "--for=condition=Established", "--timeout=180s", "-f", str(CRD))
        with start_topology_scheduler(program, server):
            yield server


@pytest.fixture(scope="module")
def stock() -> Iterator[ApiServer]:
    """Return an API server whose pods are placed by Kubernetes' own scheduler."""
    [program] = require(KUBE_SCHEDULER)
    with start_servers() as server, start_scheduler(program, server):
        yield server
