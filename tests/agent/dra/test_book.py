"""Prepare and Unprepare during a pass."""

from __future__ import annotations

import asyncio

from agent.dra.book import ClaimBook
from pinning.dra.claims import ClaimGrant, DeviceClaim
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from tests.pinning.dra.claiming import claim, uid_of

UID = uid_of("x")


class Reader:
    """An API server with one claim."""

    async def read(self, *_: str) -> DeviceClaim:
        """Return the claim."""
        return claim("x", 2)


def granted(*cpus: int) -> Ledger:
    """Return a ledger with the claim prepared."""
    return Ledger().grant(ClaimGrant(claim("x", 2), (CPUSet(cpus),), is_prepared=True))


def test_prepare_waits_for_a_pass_after_the_release() -> None:
    """CPUs that a running pass releases are not the answer; both calls wait for a later pass."""

    async def run() -> None:
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

    asyncio.run(run())


def test_prepare_after_unprepare_keeps_the_cpus() -> None:
    """If no pass ran between Unprepare and Prepare, the claim keeps its CPUs."""

    async def run() -> None:
        book = ClaimBook(Reader())  # type: ignore[arg-type]
        book.begin(())
        book.passed(granted(1, 2), {})
        book.release(UID)
        asking = asyncio.create_task(book.prepare("test", UID, "x"))
        await asyncio.sleep(0.001)
        assert book.begin(()) == frozenset()
        book.passed(granted(1, 2), {})
        assert isinstance(await asking, ClaimGrant)

    asyncio.run(run())
