"""The pytest plugin of the container runtime: a containerd of each version, started once, without pods for each test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.agent.containerd import Containerd


@pytest.hookimpl(tryfirst=True)  # before `-m` is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a container runtime."""
    for item in items:
        if "containerd" in getattr(item, "fixturenames", ()):
            item.add_marker("runtime")


@pytest.fixture(scope="session", params=["1.6", "2.4"])
def containerd_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """Return a running containerd of each version."""
    from tests.agent.containerd import start_containerd  # gRPC takes a moment, and most tests need none

    version = request.param
    with start_containerd(version, tmp_path_factory.mktemp(f"containerd-{version}-")) as containerd:
        yield containerd


@pytest.fixture
def containerd(containerd_session: Containerd) -> Iterator[Containerd]:
    """Return a containerd without pods; those that a test makes are removed after it."""
    yield containerd_session
    containerd_session.remove_pods()
