"""The dashboard against a real kube-apiserver, with only the rights of its component."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import httpx
import pytest

from tests.dashboard.documents import container, event, grid, node, owner, pod, pools, refused
from tests.dashboard.running import ACCOUNT, Dashboard, dashboard, install_account
from tests.environments import plain_http
from tests.environments.server.start import start_servers
from tests.environments.waiting import until, until_equal
from tests.manifests.rendered import SYSTEM

pytestmark = pytest.mark.server

MACHINE = grid(1, 1, 1, 4)
WHO = f"--as=system:serviceaccount:{SYSTEM}:{ACCOUNT}"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """Return a dashboard with an API server for this module alone."""
    with start_servers(directory=tmp_path_factory.mktemp("dashboard-")) as server:
        kubeconfig = install_account(server)
        with dashboard(server, kubeconfig) as found:
            yield found


def ask(found: Dashboard, path: str) -> httpx.Response:
    """Return an answer of the dashboard."""
    return plain_http.get(f"{found.url.rstrip('/')}{path}")


def test_what_changes_in_the_cluster_is_shown(shown: Dashboard) -> None:
    """The page shows a node, its owners and a waiting pod, follows their changes, and shows their deletion."""
    sets = pools(MACHINE, {"default/web/main": owner("1")})
    first = [node("n1", MACHINE, sets), pod("web", {"main": container("1")}), pod("big", {"main": refused()})]
    shown.apply(*first, event("big", "Unpinnable", "NotEnoughCPUs: text", on="n1", kind="Warning"))

    def row() -> tuple[str, int, int]:
        rows = ask(shown, "/api/nodes").json()["rows"]
        found = [(it["health"], it["owners"], it["waiting"]) for it in rows if it["name"] == "n1"]
        return found[0] if found else ("gone", 0, 0)

    until_equal("the node is shown", row, ("waiting", 1, 1))
    assert ask(shown, "/api/pods/default/big").json()["node"] == "n1"
    shown.apply(node("n1", MACHINE, pools(MACHINE, {"default/web/main": owner("2")})))
    shown.remove(first[2])
    until_equal("the pod waits no more", row, ("ok", 1, 0))

    def history() -> list[str]:
        return [entry["text"] for entry in ask(shown, "/api/changes").json()["history"]]

    until("the move is told", lambda: "default/web/main moved from CPUs 1 to 2" in history())
    until("the event is told", lambda: "NotEnoughCPUs: text" in history())  # events have their own watch
    shown.remove(*first[:2])
    until_equal("the node is gone", row, ("gone", 0, 0))


def test_it_may_read_three_kinds_and_write_nothing(shown: Dashboard) -> None:
    """The component's account may get, list and watch nodes, pods and events, and nothing else."""

    def may(verb: str, resource: str, *more: str) -> bool:
        done = shown.server.kubectl(
            "auth", "can-i", verb, resource, WHO, "--all-namespaces", *more, check=False
        )
        return done.stdout.strip() == "yes"

    kinds = ("nodes", "pods", "events")
    assert all(may(verb, kind) for verb in ("get", "list", "watch") for kind in kinds)
    assert not any(may(verb, kind) for verb in ("create", "patch", "delete") for kind in kinds)
    assert not any(may("get", kind) for kind in ("secrets", "configmaps"))
    assert not may("get", "nodes", "--subresource=proxy")
    assert not may("get", "pods", "--subresource=log")


def test_missing_rights_are_shown(shown: Dashboard) -> None:
    """Without the right to list the page shows the reason, and /healthz fails."""
    shown.server.kubectl("create", "serviceaccount", "nobody")
    token = shown.server.kubectl("create", "token", "nobody").stdout.strip()
    kubeconfig = shown.server.write_kubeconfig("nobody", {"token": token})
    with dashboard(shown.server, kubeconfig, "nobody", is_healthy=False) as found:

        def troubles() -> str:
            return "\n".join(ask(found, "/api/nodes").json()["troubles"])

        until("the trouble with nodes", lambda: "nodes is forbidden" in troubles())
        assert ask(found, "/healthz").status_code == httpx.codes.SERVICE_UNAVAILABLE


def test_streams_end_with_it(shown: Dashboard) -> None:
    """SIGTERM ends open streams, and the exit code is 0."""
    kubeconfig = shown.server.kubeconfig(ACCOUNT)
    with (
        dashboard(shown.server, kubeconfig, "ending") as found,
        httpx.stream(
            "GET", f"{found.url}api/nodes", headers={"accept": "text/event-stream"}, timeout=60
        ) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines) == "event: view"
        assert "rows" in json.loads(next(lines).removeprefix("data: "))
        found.daemon.process.send_signal(signal.SIGTERM)
        assert list(lines) == [""]
        assert found.daemon.process.wait(60) == 0
