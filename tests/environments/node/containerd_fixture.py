"""Pytest plugin for container runtimes, each started once; every test begins without pods.

A test with the fixture `containerd` runs on each version of containerd. To run on CRI-O too, parametrize
`containerd_session` with EVERY_RUNTIME.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.node.containerd import Containerd

CONTAINERD: Final = ("1.6", "2.4")
CRIO: Final = ("crio", "crio-crun")  # CRI-O with the cgroup layouts of runc and of crun
EVERY_RUNTIME: Final = (*CONTAINERD, *CRIO)
WITH_NRI: Final = ("2.4", *CRIO)


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a container runtime."""
    for item in items:
        if "containerd" in getattr(item, "fixturenames", ()):
            item.add_marker("runtime")


@pytest.fixture(scope="session", params=CONTAINERD)
def containerd_session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Containerd]:
    """Return a running runtime."""
    from tests.environments.node.containerd import (
        start_containerd,  # imported late, because gRPC is slow to import and most tests do not need it
    )
    from tests.environments.node.crio import start_crio

    version = request.param
    start = start_crio if version in CRIO else start_containerd
    with start(version, tmp_path_factory.mktemp(f"runtime-{version}-")) as runtime:
        yield runtime


@pytest.fixture
def containerd(containerd_session: Containerd) -> Iterator[Containerd]:
    """Return a containerd without pods; the test's pods are removed afterwards."""
    yield containerd_session
    containerd_session.remove_pods()
