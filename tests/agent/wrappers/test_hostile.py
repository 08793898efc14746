"""Hostile containers that forge, flood, hang or send garbage do not affect others."""

from __future__ import annotations

import asyncio
import errno
import random
import select
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from agent.node_state import NodeState
from agent.wrappers import passes, server, service
from agent.wrappers.bounds import AT_ONCE, Origin
from agent.wrappers.peer import CgroupIndex
from agent.wrappers.protocol import REQUEST_LIMIT, Want, read_want
from pinning.contract import CMK_SOCKET
from tests.agent.wrappers.scene import Forker, Scene, cmk_pod, isolate, plain_pod

Talk = Callable[[Scene, Forker], Awaitable[None]]


def played(folder: Path, talk: Talk) -> None:
    """Run a test with an agent and a container, where this process is another container."""

    async def play() -> None:
        scene = Scene(folder, cmk_pod(), plain_pod())
        async with scene.agent(), scene.container() as container:
            scene.run_pass()
            await talk(scene, container)

    asyncio.run(play())


async def connect(scene: Scene) -> socket.socket:
    """Connect from this process and let the agent accept, because its backlog is short."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(scene.folder / "install" / CMK_SOCKET))
    connection.setblocking(False)
    await asyncio.sleep(0)
    return connection


async def told(connection: socket.socket) -> bytes:
    """Return everything that is received on a connection."""
    loop, content = asyncio.get_running_loop(), b""
    try:
        while piece := await loop.sock_recv(connection, 65536):
            content += piece
    except ConnectionResetError:  # closed with unread data
        pass
    connection.close()
    return content


def test_rubbish_is_refused_and_hurts_nobody(tmp_path: Path) -> None:
    """Random bytes end their own connection, and the next request is answered."""
    chance = random.Random(13)  # noqa: S311 no secret
    pieces = [
        b"cmk 1 isolate\n",
        b"pool=exclusive\n",
        b"cores=",
        b"\n",
        b"\n\n",
        b"\x00",
        b"\xff\xfe",
        b"=",
        b"9" * 300,
    ]

    async def talk(scene: Scene, container: Forker) -> None:
        for _ in range(150):
            content = b"".join(chance.choices(pieces, k=chance.randrange(8))) + chance.randbytes(
                chance.randrange(40)
            )
            connection = await connect(scene)
            await asyncio.get_running_loop().sock_sendall(connection, content)
            connection.shutdown(socket.SHUT_WR)
            answer = await told(connection)
            assert answer == b"" or answer.startswith(b"error ")
        assert (await container.ask(isolate("exclusive"))).word == "ok"

    played(tmp_path, talk)


@pytest.mark.parametrize("content", [b"x" * (REQUEST_LIMIT + 1), b"cmk 1 describe\n\ncmk 1 describe\n\n"])
def test_a_request_above_the_size_limit_is_refused(tmp_path: Path, content: bytes) -> None:
    """A request that is too large, or followed by more data, is refused."""

    async def talk(scene: Scene, _: Forker) -> None:
        connection = await connect(scene)
        await asyncio.get_running_loop().sock_sendall(connection, content)
        assert b"a request has at most" in await told(connection)

    played(tmp_path, talk)


def test_who_sends_nothing_is_dropped_and_fills_his_own_room_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Idle connections count against their container's limit only, and are closed after a timeout."""

    async def talk(scene: Scene, container: Forker) -> None:
        monkeypatch.setattr(server, "SEND_SECONDS", 3600.0)
        idle = [await connect(scene) for _ in range(AT_ONCE)]
        assert b"too many wrappers ask at once" in await told(await connect(scene))
        assert (await container.ask(isolate("exclusive"))).word == "ok"
        for connection in idle:
            connection.close()
        monkeypatch.setattr(server, "SEND_SECONDS", 0.1)
        refused = b"error"
        while refused:  # the agent has not seen yet that they are closed
            refused = await told(await connect(scene))

    played(tmp_path, talk)


def test_who_does_not_read_its_answer_fills_its_own_room_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection with an unread answer counts against its container's limit until it is closed."""
    monkeypatch.setattr(server, "SEND_SECONDS", 3600.0)  # beside load, sending all requests takes seconds

    async def talk(scene: Scene, container: Forker) -> None:
        unread = [await connect(scene) for _ in range(AT_ONCE)]
        for connection in unread:
            connection.send(b"cmk 1 describe\n\n")
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(unread[-1], 3) == b"ok "
        assert b"too many wrappers ask at once" in await told(await connect(scene))
        assert (await container.ask(isolate("exclusive"))).word == "ok"
        for connection in unread:
            connection.close()
        answer = b""
        while not answer.startswith(b"ok "):  # the agent has not seen yet that they are closed
            another = await connect(scene)
            with suppress(OSError):
                another.send(b"cmk 1 describe\n\n")
            answer = await told(another)

    played(tmp_path, talk)


def test_a_flood_leaves_others_their_turns(tmp_path: Path) -> None:
    """While one container exceeds its rate limit, another container's requests are answered."""

    async def talk(scene: Scene, container: Forker) -> None:
        async with scene.container("q") as flooder:
            await flooder.cycle(isolate("infra"), 1)
            for _ in range(8):
                flooder.order({"cycle": [str(tmp_path / "install" / CMK_SOCKET), isolate("exclusive"), 400]})
            for _ in range(10):
                assert (await container.ask(isolate("infra"))).word == "ok"

    played(tmp_path, talk)


FLOODS = {
    "hangs up": (0, ""),
    "hoards": (300, ""),
    "asks and leaves": (0, isolate("shared")),
    "asks and reads nothing": (300, "cmk 1 describe\n\n"),
}


def test_each_process_gets_one_right_answer_while_floods_run(tmp_path: Path) -> None:
    """Of 40 processes that race for 2 cores 2 get one each and 38 the reason; 40 more get the pool."""

    async def talk(scene: Scene, container: Forker) -> None:
        async with scene.container("q") as flooder:
            for kept, request in FLOODS.values():
                for _ in range(2):
                    flooder.order({"flood": [str(tmp_path / "install" / CMK_SOCKET), kept, request]})
            await scene.until(lambda: scene.keeper._bounds.connections._total >= AT_ONCE)
            asked = await container.asks(isolate("exclusive"), 40)
            pooled = await container.asks(isolate("infra"), 40)
        won = sorted(each.environment["CMK_CPUS_ASSIGNED"] for each in asked if each.word == "ok")
        assert won == ["1,5", "2,6"]
        full = [each for each in asked if each.word == "error"]
        assert len(full) == 38
        assert all("1 wanted, 0 of the 2 that this container has are free" in each.text for each in full)
        assert [each.word for each in pooled] == ["ok"] * 40
        assert {each.environment["CMK_CPUS_ASSIGNED"] for each in pooled} == {"0,4,3,7"}
        assert len({each.pid for each in asked + pooled}) == 80

    played(tmp_path, talk)


def test_after_a_refusal_nobody_is_taken_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a refused connection the agent accepts none for a pause, which limits its CPU time."""
    monkeypatch.setattr(server, "REST", 1e12)

    async def talk(scene: Scene, _container: Forker) -> None:
        scene.peer_failures = [OSError(errno.ESRCH, "No such process")]
        assert await told(await connect(scene)) == b""
        later = await connect(scene)
        later.send(b"cmk 1 describe\n\n")
        for _ in range(100):
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            later.recv(1)
        later.close()

    played(tmp_path, talk)


def test_who_connects_has_a_turn_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a request costs a turn of the rate limit, as a request does."""
    turns: list[int] = []

    async def turn(_: object, __: Origin, count: int = 1) -> None:
        turns.append(count)

    monkeypatch.setattr(server.TurnQueue, "turn", turn)

    async def talk(scene: Scene, _: Forker) -> None:
        silent = await connect(scene)
        await scene.until(lambda: turns == [1])
        silent.shutdown(socket.SHUT_WR)
        assert await told(silent) == b""
        asking = await connect(scene)
        asking.send(b"cmk 1 describe\n\n")
        assert await told(asking) == b"ok 2\n0\n"
        assert turns == [1, 1, server.REPORT_TURNS - 1]

    played(tmp_path, talk)


def test_processes_of_a_container_that_is_not_listed_share_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred requests of an unlisted container share one pass and one lookup."""
    looks: list[str] = []
    candidates = CgroupIndex.candidates

    def looked(index: CgroupIndex, path: str) -> Iterator[tuple[str, str]]:
        looks.append(path)
        return candidates(index, path)

    asked: list[Mapping[str, str]] = []

    def read(values: Mapping[str, str]) -> Want:
        asked.append(values)
        return read_want(values)

    monkeypatch.setattr(service, "read_want", read)
    monkeypatch.setattr(service, "UNKNOWN_SECONDS", 3600.0)
    monkeypatch.setattr(passes, "AGAIN_SECONDS", 3600.0)

    async def talk(scene: Scene, _container: Forker) -> None:
        async with scene.container("late") as unknown:
            before = scene.passes
            for _ in range(100):
                unknown.begin(isolate("infra"))
            await scene.until(lambda: len(asked) == 100)
            await asyncio.sleep(0)
            assert scene.passes - before <= 1
            monkeypatch.setattr(CgroupIndex, "candidates", looked)
            for _ in range(10):
                scene.run_pass()
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert len(looks) == 10
            scene.pods = (*scene.pods, plain_pod("late"))
            scene.run_pass()
            assert {(await unknown.answer()).word for _ in range(100)} == {"ok"}

    played(tmp_path, talk)


def test_a_report_is_made_once_for_each_state(tmp_path: Path) -> None:
    """The text of a report is computed once for each state, because it takes the agent milliseconds."""
    made: list[NodeState] = []

    def describe(state: NodeState) -> str:
        made.append(state)
        return f"{len(state.tasks)}\n"

    async def talk(scene: Scene, container: Forker) -> None:
        scene.texts["describe"] = describe
        asked = await container.asks("cmk 1 describe\n\n", 20)
        assert {each.text for each in asked} == {"0\n"}
        assert len(made) == 1
        await container.ask(isolate("exclusive"))
        assert (await container.ask("cmk 1 describe\n\n")).text == "1\n"

    played(tmp_path, talk)


def test_little_of_an_answer_waits_for_who_does_not_read(tmp_path: Path) -> None:
    """The unread part of an answer in the kernel's send buffer is limited."""

    async def talk(scene: Scene, _: Forker) -> None:
        scene.texts["describe"] = lambda _: "x" * 1_000_000
        connection = await connect(scene)
        connection.send(b"cmk 1 describe\n\n")
        poll = select.poll()
        poll.register(connection, select.POLLRDHUP)
        while not poll.poll(0):
            await asyncio.sleep(0.01)
        assert 0 < len(await told(connection)) < 100_000

    played(tmp_path, talk)


def test_a_socket_by_another_name_is_the_same_socket(tmp_path: Path) -> None:
    """The container is found by the peer's credentials, so a symlink to the socket changes nothing."""

    async def talk(scene: Scene, container: Forker) -> None:
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "install" / CMK_SOCKET)
        async with scene.container("q") as other:
            other.order({"ask": [str(link), isolate("exclusive")]})
            assert "this container has none" in (await other.answer()).text
        assert (await container.ask(isolate("exclusive", cores="2"))).word == "ok"

    played(tmp_path, talk)


def test_process_that_exits_during_a_request_frees_its_cores(tmp_path: Path) -> None:
    """The cores of a process that exits while its request waits for a pass are freed."""

    async def talk(scene: Scene, container: Forker) -> None:
        scene.is_right = False
        container.begin(isolate("exclusive", cores="2"))
        await scene.until(lambda: bool(scene.tasks))
        (pid,) = scene.tasks
        container.order({"kill": pid})
        await container.told()
        await scene.until(lambda: not scene.tasks)
        scene.is_right = True
        assert (await container.ask(isolate("exclusive", cores="2"))).word == "ok"

    played(tmp_path, talk)
