"""Prepare and Unprepare that meet in the middle of a pass."""

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
        """Return it."""
        return claim("x", 2)


def granted(*cpus: int) -> Ledger:
    """Return a ledger in which the claim is prepared."""
    return Ledger().grant(ClaimGrant(claim("x", 2), (CPUSet(cpus),), is_prepared=True))


def test_prepare_does_not_take_what_a_pass_is_giving_back() -> None:
    """The CPUs may be another's after that pass: the answer, also to a second call, is of a pass that began later."""

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


def test_grants_that_no_pass_took_back_count_after_the_next_pass() -> None:
    """Unprepare and Prepare come between two passes: the claim keeps its CPUs."""

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
