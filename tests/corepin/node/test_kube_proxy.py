"""Commands use `proxy-url` and `tls-server-name` of their kubeconfig with a real API server."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from corepin.cli import kubectl, main
from corepin.node.kube_access import cluster_access
from tests.corepin.node.connect_proxy import ConnectProxy, connect_proxy
from tests.dashboard.running import dashboard, install_account
from tests.environments import plain_http
from tests.environments.server.apiserver import ApiServer
from tests.environments.server.catalog import NEWEST

# A name that no resolver knows, so that only the proxy reaches it.
AWAY = "https://cluster.corepin.invalid:6443"
ASKED = ("CONNECT cluster.corepin.invalid:6443", "")


@pytest.fixture
def api(apiserver_of: Callable[[str], ApiServer]) -> ApiServer:
    """Return the newest API server of the run."""
    return apiserver_of(NEWEST)


@pytest.fixture
def proxy(api: ApiServer) -> Iterator[ConnectProxy]:
    """Return a proxy whose tunnels end at the API server."""
    with connect_proxy(httpx.URL(api.url).port or 0) as running:
        yield running


@pytest.fixture
def point(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Return a function that changes cluster fields of the admin's kubeconfig and sets KUBECONFIG to the result."""

    def write(kubeconfig: Path | None = None, **cluster: str) -> Path:
        content = json.loads((kubeconfig or api.kubeconfig()).read_text())
        content["clusters"][0]["cluster"] |= {key.replace("_", "-"): value for key, value in cluster.items()}
        path = tmp_path / "config"
        path.write_text(json.dumps(content))
        monkeypatch.setenv("KUBECONFIG", str(path))
        return path

    return write


def create_pod(api: ApiServer) -> str:
    """Create a pod in a new namespace, and return it as NAMESPACE/NAME."""
    space = api.create_namespace("proxied")
    spec = {"containers": [{"name": "main", "image": "x"}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": space}, "spec": spec}
    api.kubectl("create", "-f", "-", input=json.dumps(pod))
    return f"{space}/web"


def test_commands_go_through_the_proxy_by_the_server_name(
    api: ApiServer, proxy: ConnectProxy, point: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """`why` and `cmk discover` use the tunnel, and verify the certificate against `tls-server-name`."""
    pod = create_pod(api)
    point(server=AWAY, proxy_url=proxy.url, tls_server_name="localhost")

    assert kubectl(["why", pod]) == 0
    assert capsys.readouterr().out.startswith(f"pod {pod}, Pending")
    assert main(["cmk", "discover", "--node", "missing"]) == 2
    assert 'nodes "missing" not found' in capsys.readouterr().err
    assert set(proxy.asked) == {ASKED}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param({}, id="that of the address"),
        pytest.param({"tls_server_name": "other.test"}, id="another one"),
    ],
)
def test_certificate_of_another_name_is_refused(
    proxy: ConnectProxy, point: Callable[..., Path], capsys: pytest.CaptureFixture[str], name: dict[str, str]
) -> None:
    """A certificate without the expected name, from the address or `tls-server-name`, fails the connection."""
    point(server=AWAY, proxy_url=proxy.url, **name)

    assert kubectl(["why", "default/web"]) == 2
    assert "certificate verify failed" in capsys.readouterr().err


def test_server_name_counts_without_a_proxy(
    point: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A direct connection checks `tls-server-name` too: the address is in the certificate, the name is not."""
    point(tls_server_name="other.test")
    assert kubectl(["why", "default/web"]) == 2
    assert "certificate verify failed" in capsys.readouterr().err
    point(tls_server_name="kubernetes.default.svc")
    assert kubectl(["why", "default/missing-here"]) == 2
    assert "the API server answered 404" in capsys.readouterr().err


def test_dashboard_watches_through_the_proxy(
    api: ApiServer, proxy: ConnectProxy, point: Callable[..., Path]
) -> None:
    """The page lists and watches through the same tunnel, with the proxy's user and password."""
    url = proxy.url.replace("http://", "http://me:secret@")
    config = point(install_account(api), server=AWAY, proxy_url=url, tls_server_name="localhost")
    with dashboard(api, config, "proxied") as found:
        assert plain_http.get(f"{found.url}healthz").text == "ok\n"
    assert set(proxy.asked) == {(ASKED[0], "Basic bWU6c2VjcmV0")}


def test_proxy_that_does_not_answer_is_named_as_the_cause(
    point: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """If the proxy refuses connections, commands fail and do not connect directly."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    point(proxy_url=f"http://127.0.0.1:{port}")

    assert kubectl(["why", "default/web"]) == 2
    assert "the API server is out of reach: " in capsys.readouterr().err


def test_proxy_of_another_kind_is_refused(
    point: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """`socks5://`, which kubectl knows, is a failure with the remedy and never a direct connection."""
    point(proxy_url="socks5://127.0.0.1:1")

    assert kubectl(["why", "default/web"]) == 2
    problem = "proxy-url: 'socks5' is not supported: name a proxy with http:// or https://"
    assert problem in capsys.readouterr().err


def test_environment_names_a_proxy_too(point: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTPS_PROXY counts as for kubectl, unless NO_PROXY lists the address or the kubeconfig names another proxy."""
    monkeypatch.setenv("HTTPS_PROXY", "http://env.test:1")

    def used(**cluster: Any) -> str | None:
        point(**cluster)
        return cluster_access().proxy

    assert used() == "http://env.test:1"
    assert used(proxy_url="http://own.test:1") == "http://own.test:1"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert used() is None
