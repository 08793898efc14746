"""One cluster for all tests of this folder."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.cluster import Cluster


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses the cluster; it needs the servers of both other markers too."""
    for item in items:
        if "cluster_session" in getattr(item, "fixturenames", ()):
            for marker in ("node", "server", "runtime"):
                item.add_marker(marker)


@pytest.fixture(scope="session")
def cluster_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a running cluster on which nothing is installed; skipped with the reason where there can be none."""
    from tests.cluster.start import start_cluster  # gRPC takes a moment, and most tests need none

    with ExitStack() as stack:
        yield start_cluster(stack, tmp_path_factory.mktemp("cluster-"))


@pytest.fixture
def cluster(cluster_session: Cluster) -> Iterator[Cluster]:
    """Return the cluster with corepin installed, and without pods of users; those of the test are removed after it."""
    if not cluster_session.is_installed:
        cluster_session.install()
    yield cluster_session
    cluster_session.clear()
