"""The pytest plugin of the test servers: builds them before the first test that needs them, starts them once.

Tests that use its fixtures get the marker `server` automatically; those that call `start_servers` carry it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import count

import pytest

from tests.environments.server.apiserver import ApiServer
from tests.environments.server.build import BuildFailed, GoMissing, build_missing
from tests.environments.server.catalog import API_SERVERS, KUBERNETES, NODE_SERVERS
from tests.environments.server.start import start_servers

_SERVERS_OF = {
    "server": API_SERVERS,
    "runtime": NODE_SERVERS,
    "smt": NODE_SERVERS,
}  # servers that tests of each marker need
_SERVER_FIXTURES = {"apiserver", "apiserver_of"}
_namespace_numbers = count(1)


@pytest.hookimpl(tryfirst=True)  # must run before pytest applies `-m`
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a server, so that `-m "not server"` leaves none."""
    for item in items:
        if not _SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("server")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build missing servers while output is still shown; without Go the tests are skipped with the reason."""
    wanted = [
        server for marker, servers in _SERVERS_OF.items() if _uses(session, marker) for server in servers
    ]
    if not wanted or session.config.option.collectonly:
        return
    try:
        with suppress(GoMissing):
            build_missing(sys.stderr, wanted)
    except BuildFailed as failed:
        pytest.exit(str(failed), returncode=pytest.ExitCode.INTERNAL_ERROR)


def _uses(session: pytest.Session, marker: str) -> bool:
    return any(item.get_closest_marker(marker) for item in session.items)


@pytest.fixture(scope="session")
def apiserver_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ApiServer]]:
    """Return the API server of a version, started at the first request and shared by the whole run."""
    started: dict[str, ApiServer] = {}
    with ExitStack() as stack:

        def start(version: str) -> ApiServer:
            if version not in started:
                directory = tmp_path_factory.mktemp(f"servers-{version}-")
                started[version] = stack.enter_context(start_servers(version, directory=directory))
            return started[version]

        yield start


@pytest.fixture(scope="session", params=list(KUBERNETES))
def apiserver(request: pytest.FixtureRequest, apiserver_of: Callable[[str], ApiServer]) -> ApiServer:
    """Return a running API server, of every version unless the test parametrizes `apiserver` indirectly."""
    return apiserver_of(request.param)


@pytest.fixture
def namespace(apiserver: ApiServer) -> str:
    """Return a new namespace with its service account `default`."""
    return apiserver.create_namespace(f"test-{next(_namespace_numbers)}")
