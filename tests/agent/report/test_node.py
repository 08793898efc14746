"""The writer of the node: it reads again on conflict, mends what others change, and goes on after failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from agent.config import NodeOptions
from agent.report.node import TRIES, NodeReport
from apiserver.access import Access
from apiserver.client import Api
from apiserver.errors import Gone, Unavailable
from pinning.planning.node_config import NodeConfig
from tests.agent.states import bound, source, state_of
from tests.pods import CORES, container

SECONDS = 60.0


class Watch(httpx.AsyncByteStream):
    """The events of a watch, as they are put in."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield each line when it comes."""
        while True:
            yield await self.lines.get()


def merged(document: Any, patch: Any) -> Any:
    """Return a document after a merge patch (RFC 7396)."""
    if not isinstance(patch, dict):
        return patch
    old = document if isinstance(document, dict) else {}
    kept = {name: value for name, value in old.items() if name not in patch}
    return kept | {name: merged(old.get(name), value) for name, value in patch.items() if value is not None}


class Server:
    """One node; patches are merged, those for another version are a conflict."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {"metadata": {"name": "node-1", "uid": "u", "resourceVersion": "10"}}
        self.failures: list[int] = []
        self.conflicts = 0
        self.patched: list[str] = []
        self.watch = Watch()
        self.written = asyncio.Event()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer a list, a watch, a GET or a PATCH."""
        if "watch" in request.url.params:
            return httpx.Response(200, stream=self.watch)
        if request.url.path == "/api/v1/nodes":
            return httpx.Response(200, json={"metadata": {"resourceVersion": "10"}, "items": [self.node]})
        if request.method == "GET":
            return httpx.Response(200, json=self.node)
        return self._patch(request.url.path, json.loads(request.content))

    def _patch(self, path: str, body: dict[str, Any]) -> httpx.Response:
        if self.failures:
            return httpx.Response(self.failures.pop(0), json={"message": "no"})
        if "spec" in body and self.conflicts:
            self.conflicts -= 1
            self.change(spec={"taints": [{"key": f"late-{self.conflicts}", "effect": "NoSchedule"}]})
            return httpx.Response(409, json={"message": "changed"})
        body.get("metadata", {}).pop("resourceVersion", None)
        if conditions := body.get("status", {}).get("conditions"):
            body["status"]["conditions"] = self._conditions(conditions)
        self.change(**body)
        self.patched.append(path)
        self.written.set()
        return httpx.Response(200, json=self.node)

    def _conditions(self, patched: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Merge conditions by type, as a strategic merge patch does."""
        there = {
            condition["type"]: condition for condition in self.node.get("status", {}).get("conditions", [])
        }
        there |= {condition["type"]: condition for condition in patched}
        return [condition for condition in there.values() if "$patch" not in condition]

    def change(self, **parts: dict[str, Any]) -> None:
        """Merge parts into the node, and give it a new version."""
        self.node = merged(self.node, parts)
        meta = self.node["metadata"]
        self.node["metadata"] = {**meta, "resourceVersion": str(int(meta["resourceVersion"]) + 1)}

    def tell(self) -> None:
        """Send the node to the watch."""
        self.watch.lines.put_nowait(json.dumps({"type": "MODIFIED", "object": self.node}).encode() + b"\n")


def run(act: Callable[[Server, Api], Awaitable[None]]) -> None:
    """Run a coroutine with a server and its client."""

    async def main() -> None:
        server = Server()
        api = Api(Access("https://api.test"), "tests", httpx.MockTransport(server))
        async with asyncio.timeout(SECONDS):
            await act(server, api)
        await api.close()

    asyncio.run(main())


def report_of(api: Api, **more: Any) -> NodeReport:
    """Return a writer that puts CMK's taint on the node."""
    return NodeReport(api, "node-1", source(), NodeOptions(cmk_taint=True), interval_seconds=0, **more)


def test_a_node_that_changed_meanwhile_is_read_again() -> None:
    """Each conflict costs one GET, and the taint that came between stays."""

    async def act(server: Server, api: Api) -> None:
        server.conflicts = 2
        report = report_of(api)
        await report.publish(state_of())
        assert [taint["key"] for taint in server.node["spec"]["taints"]] == ["late-0", "cmk"]
        await report.reset()
        assert [taint["key"] for taint in server.node["spec"]["taints"]] == ["late-0"]

    run(act)


def test_a_node_that_never_holds_still_is_left_for_later() -> None:
    """After some tries the report fails, to be tried again with backoff."""

    async def act(server: Server, api: Api) -> None:
        server.conflicts = TRIES
        report = report_of(api)
        with pytest.raises(Unavailable, match="others changed node node-1"):
            await report.publish(state_of())
        await report.publish(state_of())
        assert server.node["spec"]["taints"][-1]["key"] == "cmk"
        await report.reset()

    run(act)


def test_what_the_kubelet_zeroes_comes_back_although_the_server_fails_first() -> None:
    """The watch shows the zeroes; mending them is tried again until it works; nothing else asks for it."""

    async def act(server: Server, api: Api) -> None:
        report = report_of(api)
        await report.publish(state_of())
        server.written.clear()
        server.failures = [503, 500]
        server.change(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["capacity"][CORES] == "3"
        assert server.patched[-1] == "/api/v1/nodes/node-1/status"
        await report.reset()

    run(act)


def test_a_number_that_the_kubelet_zeroes_comes_back_while_observing() -> None:
    """What bound pods claim is kept from a kubelet that restarts, though nothing rises."""
    pods = [bound("a", container("main", {CORES: 2}))]

    async def act(server: Server, api: Api) -> None:
        report = NodeReport(api, "node-1", source(*pods), interval_seconds=0)
        await report.publish(state_of(*pods))
        assert server.node["status"]["allocatable"][CORES] == "3"
        await report.publish(state_of(*pods, config=NodeConfig(observe=True)))
        assert server.node["status"]["allocatable"][CORES] == "2"
        server.written.clear()
        server.change(status={"capacity": {}, "allocatable": {CORES: "0"}})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["allocatable"][CORES] == "2"
        await report.reset()

    run(act)


def test_numbers_are_kept_while_the_runtime_is_away() -> None:
    """Nothing is told of a node that is half known, but zeroes of the kubelet are mended with the last numbers."""

    async def act(server: Server, api: Api) -> None:
        report = report_of(api)
        await report.publish(state_of(complete=False))
        assert api.requests == 0
        await report.publish(state_of())
        await report.publish(state_of(complete=False))
        server.written.clear()
        server.change(status={"capacity": {CORES: "0"}, "allocatable": {CORES: "0"}})
        server.tell()
        await server.written.wait()
        assert server.node["status"]["allocatable"][CORES] == "3"
        await report.reset()

    run(act)


def test_a_node_that_is_gone_is_an_error_that_is_tried_again() -> None:
    """The reporter says so; the agent's publisher waits."""

    async def act(server: Server, api: Api) -> None:
        server.failures = [404]
        report = report_of(api)
        with pytest.raises(Gone):
            await report.publish(state_of())
        await report.publish(state_of())
        assert report.writes == 2
        await report.reset()

    run(act)


def test_reset_before_anything_was_told_reads_the_node_and_leaves() -> None:
    """`corepin agent --reset` needs no state."""

    async def act(server: Server, api: Api) -> None:
        server.change(metadata={"labels": {"cmk.intel.com/cmk-node": "true"}})
        await report_of(api).reset()
        assert server.node["metadata"]["labels"] == {}
        assert api.requests == 2

    run(act)
