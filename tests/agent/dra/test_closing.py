"""The driver while corepin is removed: its answers to the kubelet, and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.dra.cdi import CDIFiles
from agent.dra.closing import ClosingDriver
from agent.dra.reader import ClaimReader
from apiserver.errors import Refused, Unavailable
from pinning.dra.claims import ClaimGrant
from pinning.machine.cpuset import CPUSet
from tests.agent.dra.driver_node import FakeApi, Node
from tests.pinning.dra.claiming import NODE, claim, document, result, uid_of


class Closing(Node):
    """A node with CDI files of claims, from which corepin is being removed."""

    def __init__(
        self, folder: Path, *names: str, look_seconds: float = 60, api: FakeApi | None = None
    ) -> None:
        super().__init__(folder)
        for at, name in enumerate(names):
            grant = ClaimGrant(claim(name, 1), (CPUSet([at]),), is_prepared=True)
            CDIFiles(self.cdi).write(grant)
        self.api = api or FakeApi()
        reader = ClaimReader(self.api, NODE)  # type: ignore[arg-type]
        self.closing = ClosingDriver(reader, NODE, self.root, self.cdi, look_seconds, self.settle)
        self.is_reset = asyncio.Event()
        self.is_answered = asyncio.Event()

    async def settle(self, _seconds: float) -> None:
        """Wait until the kubelet has received the last answer."""
        if not self.closing.book.left:
            await self.is_answered.wait()

    async def reset(self) -> None:
        """Stand for the other work of the reset."""
        self.is_reset.set()


def messages(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    """Return the log records about claims that are left."""
    return [vars(it)["facts"] for it in caplog.records if it.message == "claims left"]


async def test_reset_ends_when_the_last_claim_is_given_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reset waits for held claims and for refused ones whose pods remain, and logs which claims are left."""
    node = Closing(tmp_path, "x")
    resetting = asyncio.create_task(node.closing.serve_during(node.reset()))
    await node.is_reset.wait()
    refused = (await node.prepare("y"))["y"]
    assert refused.error.startswith("claim test/y: corepin is being removed from this node: delete the pod")
    assert await node.unprepare("x") == ""
    assert node.files() == {}
    assert not resetting.done()
    assert await node.unprepare("y") == ""
    node.is_answered.set()
    await resetting
    assert messages(caplog)[0] == {"claims": 1, "of": "test/x", "remedy": "delete the pods that name them"}


def test_reset_without_claims_waits_for_nothing(tmp_path: Path) -> None:
    """A reset without claims does not wait."""
    node = Closing(tmp_path)
    asyncio.run(node.closing.serve_during(node.reset()))
    assert node.is_reset.is_set()


async def test_claims_whose_pods_ended_without_the_driver_are_not_waited_for(tmp_path: Path) -> None:
    """A claim that was deleted, or replaced by one of the same name, is not waited for; an existing one is."""
    node = Closing(tmp_path, "deleted", "anew", "kept", look_seconds=0.01)
    node.api.claims["anew"] = document(result("1"), uid=uid_of("other"))
    node.api.claims["kept"] = document(result("1"), uid=uid_of("kept"))
    resetting = asyncio.create_task(node.closing.serve_during(node.reset()))
    while len(node.closing.book.left) > 1:
        await asyncio.sleep(0.001)
    while len(node.files()) > 1:
        await asyncio.sleep(0.001)
    assert list(node.closing.book.left) == [uid_of("kept")]
    node.api.problem = Unavailable("down")
    requests = len(node.api.requests)
    while len(node.api.requests) == requests:
        await asyncio.sleep(0.001)
    assert list(node.closing.book.left) == [uid_of("kept")]
    await node.unprepare("kept")
    node.is_answered.set()
    await resetting


class GivenBackMeanwhile(FakeApi):
    """An API server that fails once and is silent then, while the kubelet gives claims back."""

    node: Closing

    async def get(self, path: str) -> bytes:
        """Give back y during the first request, and the others during the second."""
        self.requests.append(path.rpartition("/")[2])
        book = self.node.closing.book
        if len(self.requests) == 1:
            self.node.closing.look_seconds = 3600
            await book.unprepare(uid_of("y"))
            raise Refused("500: broken")
        for uid in tuple(book.left):
            await book.unprepare(uid)
        await asyncio.Event().wait()
        raise AssertionError


async def test_reset_does_not_wait_for_a_silent_api_server_when_all_claims_are_given_back(
    tmp_path: Path,
) -> None:
    """The API server gets no request for claims that were given back, and a request without an answer is cancelled."""
    api = GivenBackMeanwhile()
    node = api.node = Closing(tmp_path, "x", "y", "z", api=api, look_seconds=0.01)
    node.is_answered.set()
    async with asyncio.timeout(60):
        await node.closing.serve_during(node.reset())
    assert api.requests == ["x", "z"]


async def test_file_that_cannot_be_deleted_does_not_end_the_reset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names the claim, and the reset continues with the others."""

    def remove(_: CDIFiles, uid: str) -> None:
        raise PermissionError(uid)

    monkeypatch.setattr(CDIFiles, "remove", remove)
    node = Closing(tmp_path, "x", "y", look_seconds=0.01)
    node.is_answered.set()
    await node.closing.serve_during(node.reset())
    failed = [vars(it)["facts"] for it in caplog.records if it.message == "CDI file not deleted"]
    assert failed == [{"claim": f"test/{name}", "reason": uid_of(name)} for name in ("x", "y")]


def test_reset_is_done_where_the_kubelet_has_no_sockets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Uninstalling does not depend on the driver; the claims that are left are named."""
    node = Closing(tmp_path, "x")
    (node.root / "plugins_registry").rmdir()
    asyncio.run(node.closing.serve_during(node.reset()))
    assert node.is_reset.is_set()
    assert messages(caplog)[0]["of"] == "test/x"
