"""The configuration with which an agent starts: the label's, remembered, waited for; never another group's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from agent.group_start import LOOKS, ConfigFiles, GroupMemory, GroupStart, ask_label
from agent.report.waiting import write_waiting
from apiserver.access import Access
from apiserver.client import Api
from corepin.errors import CommandFailed
from corepin.node_file import read_node_file
from pinning.machine.cpuset import CPUSet
from pinning.planning.cpu_groups import Waiting
from pinning.planning.node_config import DEFAULT
from tests.agent.report.node.server import Server, run

NODE = "/api/v1/nodes/node-1"
NO_KEY = Waiting("NoGroupConfiguration", "no key config.big.yaml")


@pytest.fixture
def files(tmp_path: Path) -> ConfigFiles:
    """Return the mounted ConfigMap: the default, a group, and a group whose file cannot be read."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "config.yaml").write_text("reserved: 0")
    (folder / "config.big.yaml").write_text("reserved: 0-3")
    (folder / "config.broken.yaml").write_text("reserved: [")
    return ConfigFiles(folder / "config.yaml", lambda path: read_node_file(str(path)))


def starting(files: ConfigFiles, *labels: str | None) -> tuple[GroupStart, GroupMemory, list[str | None]]:
    """Return a start that reads these labels one after the other, its memory, and what is still to be read."""
    left = list(labels)

    async def ask() -> str | None:
        return left.pop(0)

    memory = GroupMemory(files.default.parent.parent / "state", "node-1")
    return GroupStart(files, memory, ask), memory, left


def test_each_node_reads_its_own_file(files: ConfigFiles) -> None:
    """A file that cannot be read stops the agents of its own group with the reason, and no others."""
    assert files.groups() == {"big", "broken"}
    assert (files.load("").reserved, files.load("big").reserved) == (CPUSet([0]), CPUSet([0, 1, 2, 3]))
    with pytest.raises(CommandFailed, match=r"config\.broken\.yaml:1"):
        files.load("broken")


def test_without_any_file_a_node_has_the_defaults(tmp_path: Path) -> None:
    """As before there were groups; a file that a flag names has to be there."""
    none = ConfigFiles(tmp_path / "none" / "config.yaml", lambda path: read_node_file(str(path)))
    assert (none.groups(), none.load("")) == (frozenset(), DEFAULT)
    named = ConfigFiles(none.default, none.read, is_named=True)
    with pytest.raises(CommandFailed, match="none"):
        named.load("")


def test_the_choice_is_remembered_for_a_start_without_the_api_server(files: ConfigFiles) -> None:
    """Also that a node is in no group; the memory of another node and a damaged file count as none."""
    for label in ("big", "", "big"):
        start, memory, _ = starting(files, label)
        assert asyncio.run(start.choose()) == label
        assert memory.recall() == label
    start, memory, _ = starting(files, None)
    assert asyncio.run(start.choose()) == "big"
    folder = files.default.parent.parent / "state"
    assert (GroupMemory(folder, "node-2").recall(), GroupMemory(folder).recall()) == (None, "big")
    for damaged in ("", "[]", "{", '{"node": "node-1", "group": 3}', "[" * 100_000):
        (folder / "cpu-group").write_text(damaged)
        assert memory.recall() is None
    start, *_ = starting(files, None)
    assert isinstance(asyncio.run(start.choose()), Waiting)
    memory.forget()
    memory.forget()
    assert list(folder.iterdir()) == []


def test_a_missing_key_is_waited_for(files: ConfigFiles) -> None:
    """The files are looked at often, the API server is asked rarely; the first file that appears ends the wait.

    5000 nodes with a wrong label ask 83 times a second together, not 1000 times.
    """
    start, memory, left = starting(files, "late", "late", "big")
    written: list[Waiting] = []
    sleeps: list[float] = []

    async def tell(waiting: Waiting) -> None:
        written.append(waiting)

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        assert start.waiting is not None
        if len(sleeps) == LOOKS + 3:
            (files.default.parent / "config.late.yaml").write_text("")

    assert asyncio.run(start.wait(tell, sleep)) == "late"
    assert (len(sleeps), left, start.waiting, memory.recall()) == (LOOKS + 3, ["big"], None, "late")
    assert [waiting.reason for waiting in written] == ["NoGroupConfiguration"] * 2


def test_a_corrected_label_ends_the_wait_too(files: ConfigFiles) -> None:
    """It is read again after a minute of looks."""
    start, _, left = starting(files, "bgi", "big")
    sleeps: list[float] = []

    async def tell(_: Waiting) -> None:
        pass

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    assert asyncio.run(start.wait(tell, sleep)) == "big"
    assert (sum(sleeps), left) == (60.0, [])


def test_a_silent_api_server_is_asked_sooner(files: ConfigFiles) -> None:
    """At the first start of a node nothing is remembered; where there are no groups nothing is waited for."""
    start, memory, left = starting(files, None, "")
    sleeps: list[float] = []

    async def tell(waiting: Waiting) -> None:
        assert waiting.reason == "GroupNotKnown"

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    assert asyncio.run(start.wait(tell, sleep)) == ""
    assert (sum(sleeps), left, memory.recall()) == (15.0, [], "")
    memory.forget()
    for group in files.groups():
        (files.default.parent / f"config.{group}.yaml").unlink()
    start, memory, _ = starting(files, None)
    assert asyncio.run(start.choose()) == ""
    assert memory.recall() is None


def test_the_label_is_read_off_the_node() -> None:
    """No label is no group; a server that does not answer, refuses or knows no such node says nothing."""
    nested = b'{"metadata":{"labels":{"corepin.io/cpu-group":"big"},"managedFields":[%s]}}'
    answers: list[tuple[int, bytes, str | None]] = [
        (200, b'{"metadata":{"labels":{"corepin.io/cpu-group":"big","a":"b"}}}', "big"),
        (200, nested % (b'{"a":' * 5000 + b"1" + b"}" * 5000), "big"),
        (200, b'{"metadata":{"labels":{"a":"b"}}}', ""),
        (200, b'{"metadata":{}}', ""),
        (200, b"<html>", None),
        (403, b"{}", None),
        (404, b"{}", None),
        (503, b"{}", None),
    ]
    for status, body, expected in answers:
        api = Api(
            Access("https://api.test"),
            "tests",
            httpx.MockTransport(lambda _, status=status, body=body: httpx.Response(status, content=body)),
        )
        assert asyncio.run(ask_label(api, NODE)) == expected


def test_the_node_says_for_what_its_agent_waits() -> None:
    """It is written once for the same reason; nothing else of the node is touched, and a server that fails ends nothing."""

    async def act(server: Server, api: Api) -> None:
        await write_waiting(api, "node-1", NO_KEY)
        await write_waiting(api, "node-1", NO_KEY)
        (condition,) = server.node["status"]["conditions"]
        assert (condition["type"], condition["reason"]) == ("CorepinDegraded", "NoGroupConfiguration")
        assert "the agent allocates no CPUs: no key config.big.yaml" in condition["message"]
        assert server.patched == [f"{NODE}/status"]
        server.failures = [503]
        await write_waiting(api, "node-1", NO_KEY._replace(message="another"))

    run(act)
