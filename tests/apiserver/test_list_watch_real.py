"""A watch misses no change of a real kube-apiserver that is restarted, compacted, slow or failing."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator

import pytest

from tests.apiserver.door import open_door
from tests.apiserver.following import Follower, add, aside, follow, remove, remove_all, watching
from tests.environments.server.control_plane import ControlPlane, start_control_plane

pytestmark = pytest.mark.server
JSON_BODY = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """Return an API server for this module alone."""
    with start_control_plane(tmp_path_factory.mktemp("restartable-")) as plane:
        yield plane


@pytest.fixture(autouse=True)
def _no_pod_is_left(servers: ControlPlane) -> Iterator[None]:
    yield
    remove_all(servers)


def test_every_change_arrives_by_one_watch(servers: ControlPlane) -> None:
    """One list and one watch show created, changed and deleted pods, and no pods outside of the selector."""

    async def act(follower: Follower) -> None:
        await aside(add, servers, "a", "b")
        await aside(add, servers, "far", node="node-2")
        await follower.until("a", "b")
        await aside(servers.server.kubectl, "annotate", "pod/a", "example.com/note=none")
        await aside(remove, servers, "b")
        await follower.until("a")
        [pod] = follower.source.items.values()
        assert pod["metadata"]["annotations"]["example.com/note"] == "none"
        assert (follower.api.requests, follower.source.failures) == (2, 0)

    follow(servers, act)


def test_pod_with_managed_fields_in_thousands_of_brackets_hides_no_other(servers: ControlPlane) -> None:
    """A pod with thousands of brackets in managedFields, which any user may create, hides no other pod."""
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    metadata = {"name": "deep", "managedFields": [{**entry, "fieldsV1": "FIELDS"}]}
    spec = {"nodeName": "node-1", "containers": [{"name": "main", "image": "x"}]}
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    body = text.replace('"FIELDS"', '{"f:a":' * 5000 + "{}" + "}" * 5000)

    async def act(follower: Follower) -> None:
        await aside(add, servers, "a")
        with servers.server.client() as admin:
            kept = admin.post("/api/v1/namespaces/default/pods", content=body, headers=JSON_BODY).text
        assert kept.count("f:a") == 5000
        await aside(add, servers, "b")
        await follower.until("a", "b", "deep")
        assert follower.source.failures == 0

    follow(servers, act)


@pytest.mark.parametrize("code", [500, 429])
def test_watch_backs_off_from_a_failing_server_and_catches_up(servers: ControlPlane, code: int) -> None:
    """While every request fails the watch backs off and pods stay known; afterwards it catches up."""

    async def act(follower: Follower) -> None:
        await aside(add, servers, "a", "b")
        await follower.until("a", "b")
        follower.faults.code = code
        await aside(servers.kill)
        await aside(servers.start)
        await follower.faults.count(code, 3)
        assert follower.names == {"a", "b"}
        await aside(add, servers, "c")
        await aside(remove, servers, "a")
        await follower.faults.count(code, 4)
        follower.faults.code = None
        await follower.until("b", "c")
        waits = [
            later - earlier
            for earlier, later in zip(follower.faults.times, follower.faults.times[1:], strict=False)
        ]
        assert all(wait >= 0.2 for wait in waits), waits
        assert max(waits) > 1.5
        assert follower.api.requests <= 10

    follow(servers, act)


def test_a_restarted_server_is_followed_again(servers: ControlPlane) -> None:
    """While the server is down for seconds the watch sends few requests; afterwards every change arrives."""

    async def act(follower: Follower) -> None:
        await aside(add, servers, "a")
        await follower.until("a")
        before = follower.api.requests
        await aside(servers.kill)
        await follower.faults.count(0, 2)
        await aside(servers.start)
        await aside(add, servers, "b")
        await follower.until("a", "b")
        assert follower.api.requests - before < 20

    follow(servers, act)


def test_token_that_is_no_longer_good_is_waited_out(servers: ControlPlane) -> None:
    """After 401, because the token's pod was deleted, retries are rare; with a new token missed changes arrive."""
    kubectl = servers.server.kubectl
    kubectl("create", "clusterrole", "watch", "--verb=list,watch", "--resource=pods")
    kubectl(
        "create", "clusterrolebinding", "watch", "--clusterrole=watch", "--serviceaccount=default:default"
    )

    def new_token(pod: str) -> str:
        add(servers, pod, node="node-2")
        bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod}")
        return kubectl("create", "token", "default", *bound).stdout.strip()

    async def act(follower: Follower) -> None:
        await aside(add, servers, "a", "b")
        await follower.until("a", "b")
        await aside(remove, servers, "holder")
        await aside(servers.kill)
        await aside(servers.start)
        await follower.faults.count(401, 3)
        await aside(remove, servers, "a")
        await aside(add, servers, "c")
        assert follower.names == {"a", "b"}
        asked = follower.api.requests
        follower.token.write_text(await asyncio.to_thread(new_token, "heir"))
        await follower.until("b", "c")
        assert follower.api.requests - asked <= 4
        assert asked <= 20

    follow(servers, act, new_token("holder"))


def test_slow_server_is_waited_for(servers: ControlPlane) -> None:
    """A list that arrives more slowly than any timeout is no failure: one list and one watch bring every object."""
    names = [f"p{number}" for number in range(8)]
    add(servers, *names, note="x" * 6000)

    async def main() -> None:
        async with (
            open_door(servers.port, piece=512, pause=0.15) as door,  # 60 kB in 18 s
            watching(Follower(servers.server, door.port)) as follower,
        ):
            await follower.until(*names)
            await aside(remove, servers, names[0])
            await follower.until(*names[1:])
            assert (follower.api.requests, follower.source.failures) == (2, 0)

    asyncio.run(main())


def test_silent_server_is_given_up_and_asked_again(
    servers: ControlPlane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server stalls on open connections, pods stay known, requests are few, and later no change is missed."""
    monkeypatch.setattr("apiserver.watch.SILENCE_SECONDS", 2.0)

    async def main() -> None:
        async with open_door(servers.port) as door, watching(Follower(servers.server, door.port)) as follower:
            await aside(add, servers, "a", "b")
            await follower.until("a", "b")
            door.opened.clear()
            failed, asked = follower.source.failures, follower.api.requests
            await aside(add, servers, "c")
            await aside(remove, servers, "a")
            await follower.fail(failed + 3)
            assert follower.names == {"a", "b"}
            assert follower.api.requests - asked <= 4
            door.opened.set()
            await follower.until("b", "c")

    asyncio.run(main())


def test_compacted_history_means_a_new_list(servers: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    """After an outage in which the history was compacted, 410 leads to one new list with exactly the present pods."""
    caplog.set_level(logging.INFO)

    async def act(follower: Follower) -> None:
        await aside(add, servers, "a", "b")
        await follower.until("a", "b")
        follower.faults.is_cut = True
        await aside(servers.kill)
        await aside(servers.start)
        await aside(remove, servers, "a")
        await aside(add, servers, "c")
        await aside(servers.compact)
        await aside(servers.kill)
        await aside(servers.start)
        await follower.faults.count(0, 1)
        assert follower.names == {"a", "b"}
        follower.faults.is_cut = False
        await follower.until("b", "c")
        assert caplog.messages.count("watch expired") == 1
        await aside(add, servers, "d")
        await follower.until("b", "c", "d")

    follow(servers, act)


def test_a_long_list_comes_in_pages(servers: ControlPlane) -> None:
    """More pods than one page holds are all known from the first change on."""
    names = [f"p{number}" for number in range(7)]
    add(servers, *names)

    async def act(follower: Follower) -> None:
        await follower.until(*names)
        assert follower.changes == 1
        assert follower.api.requests in {3, 4}  # the watch may have begun

    follow(servers, act, page=3)
