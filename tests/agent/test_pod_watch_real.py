"""The watch of pods against a real kube-apiserver that is stopped, compacted and disturbed: nothing is missed."""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
import pytest

from agent.pod_watch import PodWatch
from apiserver.client import Access, Api
from pinning.contract import CRANE_CPU_MANAGER
from tests.agent.door import open_door
from tests.servers.apiserver import ApiServer
from tests.servers.control_plane import ControlPlane, start_control_plane

pytestmark = pytest.mark.server
NODE = "node-1"
SECONDS = 60.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return an API server of this module's own."""
    with start_control_plane(tmp_path_factory.mktemp("restartable-")) as plane:
        yield plane


def add(servers: ControlPlane, *names: str, node: str = NODE, note: str = "") -> None:
    """Create pods on a node."""
    documents = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {"note": note}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "x"}]},
        }
        for name in names
    ]
    servers.server.kubectl("create", "-f", "-", input="\n---\n".join(map(json.dumps, documents)))


def remove(servers: ControlPlane, *names: str) -> None:
    """Delete pods at once."""
    servers.server.kubectl("delete", "pods", *names, "--grace-period=0", "--force")


def remove_all(servers: ControlPlane) -> None:
    """Delete every pod at once."""
    servers.server.kubectl("delete", "pods", "--all", "--grace-period=0", "--force")


@dataclass
class Faults(httpx.AsyncBaseTransport):
    """Stands between client and server; gives what it is told to in place of the server's answers."""

    inner: httpx.AsyncBaseTransport
    code: int | None = None  # None: the server answers
    is_cut: bool = False  # no connection
    answered: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)  # of requests that failed
    told: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer, or pass on."""
        try:
            response = await self._answer(request)
        except httpx.TransportError:
            self._note(0)
            raise
        self._note(response.status_code)
        return response

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_cut:
            raise httpx.ConnectError("cut")
        if self.code:
            return httpx.Response(self.code, json={"message": "told to"}, request=request)
        return await self.inner.handle_async_request(request)

    def _note(self, code: int) -> None:
        self.answered[code] += 1
        if code != httpx.codes.OK:
            self.times.append(asyncio.get_running_loop().time())
        self.told.set()

    async def count(self, code: int, number: int) -> None:
        """Wait until so many requests ended so."""
        async with asyncio.timeout(SECONDS):
            while self.answered[code] < number:
                self.told.clear()
                await self.told.wait()

    async def aclose(self) -> None:
        """Close the connections."""
        await self.inner.aclose()


class Follower:
    """A watch with its faults, and a way to wait for what it sees."""

    def __init__(self, server: ApiServer, port: int | None = None, token: str | None = None) -> None:
        context = ssl.create_default_context(cafile=str(server.ca_file))
        self.faults = Faults(httpx.AsyncHTTPTransport(verify=context))
        self.token = server.directory / "watch.token"
        self.token.write_text(token or server.admin_token)
        url = f"https://127.0.0.1:{port}" if port else server.url
        self.api = Api(Access(url, None, self.token), self.faults)
        self.source = PodWatch(self.api, NODE)
        self.changed = asyncio.Event()
        self.changes = 0

    def note(self) -> None:
        """Be told of a change."""
        self.changes += 1
        self.changed.set()

    @property
    def names(self) -> set[str]:
        """The names of the pods that are known."""
        return {(pod["metadata"] or {})["name"] or "" for pod in self.source.pods().values()}

    async def fail(self, number: int) -> None:
        """Wait until so many requests have failed; nobody tells of it."""
        async with asyncio.timeout(SECONDS):
            while self.source.failures < number:
                await asyncio.sleep(0.05)

    async def until(self, *names: str) -> None:
        """Wait until exactly these pods are known."""
        async with asyncio.timeout(SECONDS):
            while self.names != set(names):
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def watching(follower: Follower) -> AsyncIterator[Follower]:
    """Let a follower watch until the block ends."""
    task = asyncio.create_task(follower.source.watch(follower.note))
    try:
        yield follower
    finally:
        task.cancel()
        await asyncio.wait([task])
        await follower.api.close()


def follow(
    servers: ControlPlane, act: Callable[[Follower], Awaitable[None]], token: str | None = None
) -> None:
    """Run a coroutine beside a watch, and leave no pod behind."""

    async def main() -> None:
        async with watching(Follower(servers.server, token=token)) as one:
            await act(one)

    asyncio.run(main())
    remove_all(servers)


async def aside(act: Callable[..., object], *args: object, **more: str) -> None:
    """Do something that blocks while the watch goes on."""
    await asyncio.to_thread(act, *args, **more)


def test_every_change_of_this_node_arrives_by_one_watch(servers: ControlPlane) -> None:
    """Created, changed and deleted pods are seen, those of other nodes are not, and two requests are all it takes."""

    async def act(one: Follower) -> None:
        await aside(add, servers, "a", "b")
        await aside(add, servers, "far", node="node-2")
        await one.until("a", "b")
        await aside(servers.server.kubectl, "annotate", "pod/a", f"{CRANE_CPU_MANAGER}=none")
        await aside(remove, servers, "b")
        await one.until("a")
        [pod] = one.source.pods().values()
        assert (pod["metadata"] or {})["annotations"] == {CRANE_CPU_MANAGER: "none"}
        assert (one.api.requests, one.source.failures) == (2, 0)

    follow(servers, act)


def test_one_pod_is_found_by_its_name(servers: ControlPlane) -> None:
    """Of this node only; one that is not there, or whose namespace is not, is none."""

    async def act(one: Follower) -> None:
        await aside(add, servers, "a")
        await aside(add, servers, "far", node="node-2")
        await one.until("a")
        assert await one.source.look_up("default", "a") in one.source.pods().values()
        for namespace, name in (("default", "far"), ("default", "b"), ("nowhere", "a")):
            assert await one.source.look_up(namespace, name) is None

    follow(servers, act)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pod_that_is_over_is_shown_no_more(servers: ControlPlane, phase: str) -> None:
    """It leaves the watch as a deleted one does and no list brings it back; asked for by name it tells its phase."""

    def finish(name: str) -> None:
        body = json.dumps({"status": {"phase": phase}})
        servers.server.kubectl("patch", f"pod/{name}", "--subresource=status", "--type=merge", "-p", body)

    async def act(one: Follower) -> None:
        await aside(add, servers, "a", "b")
        await one.until("a", "b")
        await aside(finish, "a")
        await one.until("b")
        found = await one.source.look_up("default", "a")
        assert found is not None
        assert found["status"] == {"phase": phase}
        assert (one.source.failures, one.api.requests) == (0, 3)
        async with watching(Follower(servers.server)) as another:
            await another.until("b")

    follow(servers, act)


@pytest.mark.parametrize("code", [500, 429])
def test_a_server_that_fails_is_asked_seldom_and_missed_by_nothing(servers: ControlPlane, code: int) -> None:
    """While every request fails, waits grow and pods stay known; afterwards what happened meanwhile is there."""

    async def act(one: Follower) -> None:
        await aside(add, servers, "a", "b")
        await one.until("a", "b")
        one.faults.code = code
        await aside(servers.kill)
        await aside(servers.start)
        await one.faults.count(code, 3)
        assert one.names == {"a", "b"}
        await aside(add, servers, "c")
        await aside(remove, servers, "a")
        await one.faults.count(code, 4)
        one.faults.code = None
        await one.until("b", "c")
        waits = [
            later - earlier for earlier, later in zip(one.faults.times, one.faults.times[1:], strict=False)
        ]
        assert all(wait >= 0.2 for wait in waits), waits
        assert max(waits) > 1.5
        assert one.api.requests <= 10

    follow(servers, act)


def test_a_restarted_server_is_followed_again(servers: ControlPlane) -> None:
    """Connections break and are refused for seconds: a handful of requests, then every change arrives again."""

    async def act(one: Follower) -> None:
        await aside(add, servers, "a")
        await one.until("a")
        before = one.api.requests
        await aside(servers.kill)
        await one.faults.count(0, 2)
        await aside(servers.start)
        await aside(add, servers, "b")
        await one.until("a", "b")
        assert one.api.requests - before < 20

    follow(servers, act)


def test_token_that_is_no_longer_good_is_waited_out(servers: ControlPlane) -> None:
    """The pod that a token is bound to is deleted: 401, asked again seldom; a new token brings all that happened."""
    kubectl = servers.server.kubectl
    kubectl("create", "clusterrole", "watch", "--verb=list,watch", "--resource=pods")
    kubectl(
        "create", "clusterrolebinding", "watch", "--clusterrole=watch", "--serviceaccount=default:default"
    )

    def new_token(pod: str) -> str:
        add(servers, pod, node="node-2")
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        return kubectl("create", "token", "default", *bound).stdout.strip()

    async def act(one: Follower) -> None:
        await aside(add, servers, "a", "b")
        await one.until("a", "b")
        await aside(remove, servers, "holder")
        await aside(servers.kill)
        await aside(servers.start)
        await one.faults.count(401, 3)
        await aside(remove, servers, "a")
        await aside(add, servers, "c")
        assert one.names == {"a", "b"}
        asked = one.api.requests
        one.token.write_text(await asyncio.to_thread(new_token, "heir"))
        await one.until("b", "c")
        assert one.api.requests - asked <= 4
        assert asked <= 20

    follow(servers, act, new_token("holder"))


def test_slow_server_is_waited_for(servers: ControlPlane) -> None:
    """A list that trickles in for longer than any time-out is no failure: one list and one watch bring everything."""
    names = [f"p{number}" for number in range(8)]
    add(servers, *names, note="x" * 6000)

    async def main() -> None:
        async with (
            open_door(servers.port, piece=512, pause=0.15) as door,  # 60 kB in 18 s
            watching(Follower(servers.server, door.port)) as one,
        ):
            await one.until(*names)
            await aside(remove, servers, names[0])
            await one.until(*names[1:])
            assert (one.api.requests, one.source.failures) == (2, 0)

    asyncio.run(main())
    remove_all(servers)


def test_silent_server_is_given_up_and_asked_again(
    servers: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections stay open and nothing comes: pods stay known, few requests are made, and then nothing was missed."""
    monkeypatch.setattr("apiserver.list_watch.SILENCE_SECONDS", 2.0)

    async def main() -> None:
        async with open_door(servers.port) as door, watching(Follower(servers.server, door.port)) as one:
            await aside(add, servers, "a", "b")
            await one.until("a", "b")
            door.opened.clear()
            failed, asked = one.source.failures, one.api.requests
            await aside(add, servers, "c")
            await aside(remove, servers, "a")
            await one.fail(failed + 3)
            assert one.names == {"a", "b"}
            assert one.api.requests - asked <= 4
            door.opened.set()
            await one.until("b", "c")

    asyncio.run(main())
    remove_all(servers)


def test_compacted_history_means_a_new_list(servers: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    """The node was cut off while pods came and went and the history was dropped: 410, one list, and all is right."""
    caplog.set_level(logging.INFO)

    async def act(one: Follower) -> None:
        await aside(add, servers, "a", "b")
        await one.until("a", "b")
        one.faults.is_cut = True
        await aside(servers.kill)
        await aside(servers.start)
        await aside(remove, servers, "a")
        await aside(add, servers, "c")
        await aside(servers.compact)
        await aside(servers.kill)
        await aside(servers.start)
        await one.faults.count(0, 1)
        assert one.names == {"a", "b"}
        one.faults.is_cut = False
        await one.until("b", "c")
        assert caplog.messages.count("watch expired") == 1
        await aside(add, servers, "d")
        await one.until("b", "c", "d")

    follow(servers, act)


def test_a_long_list_comes_in_pages(servers: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """More pods than one page holds are all known from the first change on."""
    names = [f"p{number}" for number in range(7)]
    add(servers, *names)
    monkeypatch.setattr("apiserver.pages.PAGE", 3)

    async def act(one: Follower) -> None:
        await one.until(*names)
        assert one.changes == 1
        assert one.api.requests in {3, 4}  # the watch may have begun

    follow(servers, act)
