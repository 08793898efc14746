"""API servers for these tests alone, because policies and webhooks affect all clients of a server."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import httpx
import pytest

from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import KUBERNETES
from tests.environments.server.start import start_servers
from tests.manifests.installed import HERE, Installed, install


@pytest.fixture(scope="session", params=list(KUBERNETES))
def installed(request: pytest.FixtureRequest) -> Iterator[Installed]:
    """Return an API server of each version with `manifests/base` applied and its policies in effect."""
    with start_servers(request.param) as api, client_of(api) as client:
        api.kubectl("create", "-f", str(HERE / "crds.yaml"))
        yield install(api, client)


def client_of(api: ApiServer) -> httpx.Client:
    """Return a client without credentials."""
    context = ssl.create_default_context(cafile=str(api.ca_file))
    return httpx.Client(base_url=api.url, verify=context, trust_env=False, timeout=30)
