"""One cluster for all tests of this folder."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.cluster.cluster import Cluster


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the cluster; it needs the servers of both other markers too."""
    for item in items:
        if "cluster_session" in getattr(item, "fixturenames", ()):
            for marker in ("node", "server", "runtime"):
                item.add_marker(marker)


@pytest.fixture(scope="package")  # stopped before other tests start nodes of their own
def cluster_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running cluster on which nothing is installed; skipped with the reason where there can be none."""
    from tests.environments.cluster.start import (
        start_cluster,  # gRPC takes a moment, and most tests need none
    )

    with ExitStack() as stack:
        yield start_cluster(stack, tmp_path_factory.mktemp("cluster-"))


@pytest.fixture
def cluster(any_cluster: Cluster) -> Cluster:
    """Return the cluster with `manifests/base` installed, whose cores are all free."""
    if any_cluster.applied != ("base", 2):
        any_cluster.install()
    any_cluster.wait_for_cores()
    return any_cluster


@pytest.fixture
def any_cluster(cluster_session: Cluster) -> Iterator[Cluster]:
    """Return the cluster as the test before has left it, but without pods of users; the test's own are removed too."""
    yield cluster_session
    cluster_session.clear()
