"""The pods of a node from the API server: only this node's, and only the fields that are read."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from agent.errors import Refused, Unavailable
from agent.pod_watch import PodWatch
from apiserver.access import Access
from apiserver.client import Api
from tests.apiserver.scripted import URL, Server, document, event, listed, streamed
from tests.environments.waiting import background

UNFINISHED = "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed"
EXCLUSIVE = {"qos.gocrane.io/cpu-manager": "exclusive"}


async def test_pods_are_listed_then_followed() -> None:
    """List and watch select this node's unfinished pods, and unread fields are dropped."""
    changed = event("ADDED", document("b", "11", note="1", **EXCLUSIVE))
    server = Server(listed(document("a", "9")), streamed(changed, stays=True))
    api = Api(Access(URL), "tests", httpx.MockTransport(server))
    source, seen = PodWatch(api, "node-1"), asyncio.Event()
    async with background(source.watch(lambda: seen.set() if "b" in source.pods() else None)):
        await asyncio.wait_for(seen.wait(), 60)
    await api.close()
    assert source.complete
    assert source.pods().keys() == {"a", "b"}
    assert (source.pods()["b"]["metadata"] or {})["annotations"] == EXCLUSIVE
    assert [request.url.params["fieldSelector"] for request in server.asked] == [UNFINISHED] * 2


def looked_up(server: Server, namespace: str = "team", name: str = "web") -> Any:
    """Look up one pod of node-1."""

    async def ask() -> Any:
        api = Api(Access(URL), "tests", httpx.MockTransport(server))
        try:
            return await PodWatch(api, "node-1").look_up(namespace, name)
        finally:
            await api.close()

    return asyncio.run(ask())


def test_lookup_selects_by_name_and_node() -> None:
    """The server selects by name and node, and the result is the pod or None."""
    server = Server(listed(document("a", "1")), listed())

    assert looked_up(server)["metadata"]["uid"] == "a"
    assert looked_up(server) is None
    assert server.asked[0].url.path == "/api/v1/namespaces/team/pods"
    assert server.asked[0].url.params["fieldSelector"] == "metadata.name=web,spec.nodeName=node-1"


def test_lookup_escapes_the_namespace() -> None:
    """A forged namespace of a container stays one component of the path."""
    server = Server(listed())
    looked_up(server, namespace="../nodes?x")

    assert server.asked[0].url.raw_path.startswith(b"/api/v1/namespaces/..%2Fnodes%3Fx/pods?")


def test_lookup_raises_unavailable_on_an_outage() -> None:
    """During an outage it is unknown whether the pod exists."""
    with pytest.raises(Unavailable):
        looked_up(Server(httpx.Response(503)))


def test_lookup_reports_refusal_and_retry_after() -> None:
    """A 403 raises Refused, and a 503 has the server's Retry-After."""
    with pytest.raises(Refused, match="403"):
        looked_up(Server(httpx.Response(403)))
    with pytest.raises(Unavailable) as caught:
        looked_up(Server(httpx.Response(503, headers={"retry-after": "7"})))
    assert caught.value.retry_seconds == 7
