"""Prepare and Unprepare during a pass."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.absent import NoDeviceClaims
from agent.dra.book import ClaimBook
from agent.process import Agent
from agent.reconcile.checkpoint import Saved, StateDir
from pinning.dra.claims import ClaimGrant, DeviceClaim
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from tests.agent.fakes import FakeNode
from tests.pinning.dra.claiming import claim, uid_of
from tests.pinning.world import EXCLUSIVE

UID = uid_of("x")


class Reader:
    """An API server with one claim."""

    async def read_limited(self, *_: str) -> DeviceClaim:
        """Return the claim."""
        return claim("x", 2)


class SlowReader:
    """An API server with a hundred claims; it answers for each when the test sets its event."""

    def __init__(self) -> None:
        self.answers = {f"c{at}": asyncio.Event() for at in range(100)}

    async def read_limited(self, _namespace: str, name: str) -> DeviceClaim:
        """Return a claim."""
        await self.answers[name].wait()
        return claim(name, 1)


def granted(*cpus: int) -> Ledger:
    """Return a ledger with the claim prepared."""
    return Ledger().grant(ClaimGrant(claim("x", 2), (CPUSet(cpus),), is_prepared=True))


async def test_prepare_waits_for_a_pass_after_the_release() -> None:
    """CPUs that a running pass releases are not the answer; both calls wait for a later pass."""
    book = ClaimBook(Reader())  # type: ignore[arg-type]
    book.passed(granted(1, 2), {})
    leaving = asyncio.create_task(book.unprepare(UID))
    await asyncio.sleep(0)
    assert book.begin(()) == {UID}
    leaving.cancel()
    asking = [asyncio.create_task(book.prepare("test", UID, "x")) for _ in range(2)]
    await asyncio.sleep(0.001)
    assert not any(task.done() for task in asking)
    book.passed(Ledger(), {})
    assert book.begin(()) == frozenset()
    assert list(book.asked) == [UID]
    book.passed(granted(3, 4), {})
    for task in asking:
        answer = await task
        assert isinstance(answer, ClaimGrant)
        assert str(answer.footprint) == "3-4"


async def test_prepare_after_unprepare_keeps_the_cpus() -> None:
    """If no pass ran between Unprepare and Prepare, the claim keeps its CPUs."""
    book = ClaimBook(Reader())  # type: ignore[arg-type]
    book.begin(())
    book.passed(granted(1, 2), {})
    book.release(UID)
    asking = asyncio.create_task(book.prepare("test", UID, "x"))
    await asyncio.sleep(0.001)
    assert book.begin(()) == frozenset()
    book.passed(granted(1, 2), {})
    assert isinstance(await asking, ClaimGrant)


async def test_unprepare_is_answered_while_containers_keep_the_cpus() -> None:
    """Unprepare is answered by the next pass although containers keep the CPUs; a later pass releases them."""
    book = ClaimBook(Reader())  # type: ignore[arg-type]
    book.begin(())
    leaving = asyncio.create_task(book.unprepare(UID))
    await asyncio.sleep(0)
    book.passed(granted(1, 2), {})  # began before
    await asyncio.sleep(0.001)
    assert not leaving.done()
    book.begin(())
    book.passed(granted(1, 2), {})  # kept it
    assert await leaving == ""
    assert (book.prepared(UID), book.served(UID)) == (None, granted(1, 2).claims[UID])
    assert book.begin(()) == {UID}
    book.passed(Ledger(), {})
    assert book.served(UID) is None
    assert book.begin(()) == frozenset()


async def test_prepare_of_a_claim_that_containers_kept_is_answered_with_their_cpus() -> None:
    """Prepare of a claim whose CPUs containers kept returns these CPUs, and no later pass releases them."""
    book = ClaimBook(Reader())  # type: ignore[arg-type]
    book.passed(granted(1, 2), {})
    book.release(UID)
    book.begin(())
    book.passed(granted(1, 2), {})
    asking = asyncio.create_task(book.prepare("test", UID, "x"))
    await asyncio.sleep(0.001)
    assert book.begin(()) == frozenset()
    book.passed(granted(1, 2), {})
    answer = await asking
    assert isinstance(answer, ClaimGrant)
    assert (str(answer.footprint), book.prepared(UID)) == ("1-2", answer)


async def test_claims_that_are_read_together_share_a_pass() -> None:
    """A hundred concurrent Prepare calls request one pass, after the last claim was read."""
    passes: list[int] = []
    reader = SlowReader()
    book = ClaimBook(reader)  # type: ignore[arg-type]
    book.request_pass = lambda: passes.append(len(book.asked))
    asking = [asyncio.create_task(book.prepare("test", uid_of(name), name)) for name in reader.answers]
    await asyncio.sleep(0)
    for answer in reader.answers.values():
        answer.set()
    while len(book.asked) < 100:
        await asyncio.sleep(0)
    assert passes == [100]
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


async def test_a_claim_that_cannot_be_read_holds_back_no_other() -> None:
    """A claim that the API server does not return does not delay the pass for other claims."""
    asked = asyncio.Event()
    reader = SlowReader()
    book = ClaimBook(reader)  # type: ignore[arg-type]
    book.request_pass = asked.set
    reader.answers["c1"].set()
    asking = [asyncio.create_task(book.prepare("test", uid_of(name), name)) for name in ("c0", "c1")]
    async with asyncio.timeout(30):
        await asked.wait()
    assert list(book.asked) == [uid_of("c1")]
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)


class NotingDisk(StateDir):
    """A state directory that notes what is done, and whose writes can fail."""

    def __init__(self, folder: Path, events: list[str]) -> None:
        super().__init__(folder)
        self.events = events
        self.is_full = False

    def save(self, saved: Saved) -> None:
        """Replace the checkpoint."""
        if self.is_full:
            raise OSError("no space left")
        self.events.append("saved")
        super().save(saved)

    def settle(self) -> None:
        """Flush the checkpoint."""
        self.events.append("flushed")
        super().settle()


class NotingDriver(NoDeviceClaims):
    """A driver that notes the passes."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def passed(self, ledger: Ledger, waiting: Mapping[str, str], *, observes: bool) -> None:
        """Note a pass."""
        self.events.append("answered")


def test_kubelet_is_answered_after_the_save_and_before_the_flush(tmp_path: Path) -> None:
    """The kubelet is answered after the checkpoint is saved and before it is flushed to disk."""
    node, events = FakeNode(tmp_path), list[str]()
    node.claims = NotingDriver(events)
    node.state_dir.close()
    disk = node.state_dir = NotingDisk(tmp_path, events)
    node.agent = Agent(node.parts())
    node.add("a", EXCLUSIVE)
    node.run()
    assert events[:3] == ["saved", "answered", "flushed"]
    events.clear()
    disk.is_full = True
    node.add("b", EXCLUSIVE)
    with pytest.raises(OSError, match="no space left"):
        node.run()
    assert events == []
    node.close()
