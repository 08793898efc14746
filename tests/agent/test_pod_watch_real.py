"""The pods of a node from a real kube-apiserver."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from agent.config import USER_AGENT
from agent.pod_watch import PodWatch
from apiserver.client import Api
from pinning.contract import CRANE_CPU_MANAGER
from tests.apiserver.following import NODE, SECONDS, add, aside, remove, remove_all
from tests.environments.server.control_plane import ControlPlane, start_control_plane

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return an API server for this module."""
    with start_control_plane(tmp_path_factory.mktemp("restartable-")) as plane:
        yield plane


class Seen:
    """The pods that a watch shows."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.source = PodWatch(api, NODE)
        self.changed = asyncio.Event()

    async def until(self, *names: str) -> None:
        """Wait until exactly these pods are shown."""
        async with asyncio.timeout(SECONDS):
            while {(pod["metadata"] or {})["name"] for pod in self.source.pods().values()} != set(names):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def watching(servers: ControlPlane) -> AsyncIterator[Seen]:
    """Watch the pods until the block ends."""
    seen = Seen(servers.server.api(USER_AGENT))
    task = asyncio.create_task(seen.source.watch(seen.changed.set))
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])
        await seen.api.close()


@pytest.fixture(autouse=True)
def _no_pod_is_left(servers: ControlPlane) -> Iterator[None]:
    yield
    remove_all(servers)


async def test_pods_of_this_node_are_watched(servers: ControlPlane) -> None:
    """Created, changed and deleted pods of this node are seen with two requests, others are not."""
    async with watching(servers) as seen:
        await aside(add, servers, "a", "b", note="x")
        await aside(add, servers, "far", node="node-2")
        await seen.until("a", "b")
        await aside(servers.server.kubectl, "annotate", "pod/a", f"{CRANE_CPU_MANAGER}=none")
        await aside(remove, servers, "b")
        await seen.until("a")
        [pod] = seen.source.pods().values()
        assert (pod["metadata"] or {})["annotations"] == {CRANE_CPU_MANAGER: "none"}
        assert (seen.api.requests, seen.source.failures) == (2, 0)


async def test_one_pod_is_looked_up_by_its_name(servers: ControlPlane) -> None:
    """Only this node's pods are found; a missing pod or namespace gives None."""
    async with watching(servers) as seen:
        await aside(add, servers, "a")
        await aside(add, servers, "far", node="node-2")
        await seen.until("a")
        assert await seen.source.look_up("default", "a") in seen.source.pods().values()
        for namespace, name in (("default", "far"), ("default", "b"), ("nowhere", "a")):
            assert await seen.source.look_up(namespace, name) is None


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_finished_pod_leaves_the_watch(servers: ControlPlane, phase: str) -> None:
    """A finished pod leaves the watch and later lists, and a lookup by name shows its phase."""

    def finish(name: str) -> None:
        body = json.dumps({"status": {"phase": phase}})
        servers.server.kubectl("patch", f"pod/{name}", "--subresource=status", "--type=merge", "-p", body)

    async with watching(servers) as seen:
        await aside(add, servers, "a", "b")
        await seen.until("a", "b")
        await aside(finish, "a")
        await seen.until("b")
        found = await seen.source.look_up("default", "a")
        assert found is not None
        assert found["status"] == {"phase": phase}
        assert (seen.source.failures, seen.api.requests) == (0, 3)
        async with watching(servers) as another:
            await another.until("b")
