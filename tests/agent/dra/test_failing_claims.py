"""Claims at which the API server fails, such as one that it cannot decrypt, beside claims that it answers at once."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from agent.dra.pod_claims import PATIENCE_SECONDS
from agent.dra.reader import LONGEST_SECONDS
from agent.dra.refusals import RefusedPrepare
from apiserver.errors import Failed
from pinning.dra.claims import DeviceClaim
from tests.agent import virtual_time
from tests.agent.dra.driver_node import FakeApi, pod
from tests.agent.dra.reading_node import ReadingNode
from tests.pinning.dra.claiming import document, result, uid_of

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.virtual_time

REASON = "500: no matching prefix found"
NAMES = [f"c{number}" for number in range(20)]
BAD = [replace(pod(name, name), namespace=name) for name in ("bad-1", "bad-2")]


@dataclass
class FailingApi(FakeApi):
    """An API server that needs 5 ms for an answer, and fails at some claims."""

    bad: set[str] = field(default_factory=lambda: {"bad-1", "bad-2"})

    async def get(self, path: str) -> bytes:
        """Return a claim; raise Failed."""
        await asyncio.sleep(0.005)
        if path.rpartition("/")[2] in self.bad:
            self.requests.append(path)
            raise Failed(REASON)
        return await super().get(path)


Node = ReadingNode[FailingApi]


async def prepare(node: Node, name: str) -> DeviceClaim | RefusedPrepare | float:
    """Return the seconds until the claim of a Prepare is read, or why it is not."""
    begun = virtual_time.now()
    found = await node.book._read("test", uid_of(name), name)
    return virtual_time.now() - begun if isinstance(found, DeviceClaim) else found


def failing() -> AbstractAsyncContextManager[Node]:
    """Read claims of pods that fail beside the block."""
    return Node(FailingApi({name: document(result("2"), uid=uid_of(name)) for name in NAMES})).reading(*BAD)


async def test_claims_that_fail_delay_no_prepare() -> None:
    """A Prepare reads its claim at once, at any moment of the retries of other claims."""
    async with failing() as node:
        for name in NAMES * 3:
            await asyncio.sleep(1.7)
            found = await prepare(node, name)
            assert isinstance(found, float)
            assert found < 0.01


async def test_claims_that_fail_delay_no_first_read() -> None:
    """Claims of pods in other namespaces are read at once, at any moment of the retries in two namespaces."""
    async with failing() as node:
        for name in NAMES:
            await asyncio.sleep(0.7)
            assert await node.delay(pod(name, name)) < 0.01


async def test_claims_that_fail_delay_no_repeated_read() -> None:
    """A claim that is not reserved for its pod yet is read again in time, beside others whose repeated reads fail."""
    async with failing() as node:
        strangers = [replace(pod(f"stranger-{name}", name), namespace=name) for name in NAMES[1:]]
        node.show(*strangers)
        await asyncio.sleep(1)
        node.api.bad |= {*NAMES[1:]}
        await asyncio.sleep(120)
        node.api.claims["c0"] = document(uid=uid_of("c0"), reservedFor=[])
        node.show(pod("a", "c0"))
        await asyncio.sleep(0.5)
        node.api.claims["c0"] = document(result("2"), uid=uid_of("c0"))
        begun = virtual_time.now()
        while uid_of("c0") not in node.claims.known:
            await asyncio.sleep(0.01)
        assert virtual_time.now() - begun < 3


async def test_claims_that_fail_for_long_request_few_passes() -> None:
    """A claim that fails requests a pass when its pod stops to wait for it, and none for its retries."""
    async with failing() as node:
        more = [f"m{number}" for number in range(100)]
        node.api.bad |= {*more}
        node.show(*[replace(pod(name, name), namespace=name) for name in more])
        for name in NAMES:  # the API server answers now and then
            await asyncio.sleep(PATIENCE_SECONDS)
            await prepare(node, name)
        await asyncio.sleep(2 * PATIENCE_SECONDS)
        assert node.claims.problems.keys() == {(name, name) for name in node.api.bad}
        requests, passes = len(node.api.requests), len(node.passes)
        await asyncio.sleep(60)
        assert len(node.api.requests) - requests <= 15
        assert len(node.passes) == passes
        assert len(asyncio.all_tasks()) < 120
        assert await node.delay(pod("a", "c0")) < 0.01


async def test_claims_that_fail_are_read_once_they_are_repaired() -> None:
    """A claim that failed for minutes is known within the longest delay of a retry after the API server answers."""
    async with failing() as node:
        await asyncio.sleep(120)
        node.api.bad.clear()
        node.api.claims |= {name: document(result("2"), uid=uid_of(name)) for name in ("bad-1", "bad-2")}
        await asyncio.sleep(LONGEST_SECONDS + PATIENCE_SECONDS)
        assert node.claims.known.keys() == {uid_of("bad-1"), uid_of("bad-2")}


async def test_reason_is_shown_for_claims_that_fail_alone() -> None:
    """After the agent's patience a failing claim counts as read with its reason; other namespaces do not."""
    async with failing() as node:
        node.api.bad |= {"c0"}
        await asyncio.sleep(3 * PATIENCE_SECONDS)
        assert node.claims.problems == {(name, name): REASON for name in ("bad-1", "bad-2")}
        node.show(pod("a", "c0"))
        assert ("test", "c0", "a") not in node.claims.read


async def test_prepare_that_is_late_names_the_failure() -> None:
    """A Prepare whose claim fails until its timeout is refused with the failure, and not as if nothing answered."""
    async with failing() as node:
        node.api.bad |= {"c0"}
        preparing = asyncio.create_task(node.book.prepare("test", uid_of("c0"), "c0"))
        while not preparing.done():
            await asyncio.sleep(0.01)
            node.show()  # a pass; no pod that it shows names the claim
        refused = await preparing
        assert isinstance(refused, RefusedPrepare)
        assert refused.message == f"claim test/c0 cannot be read: {REASON}"


async def test_failures_of_all_claims_share_one_request_per_backoff() -> None:
    """If the API server fails at every claim, the retries of all claims together make one request per backoff."""
    async with failing() as node:
        node.api.bad |= {*NAMES}
        waiting = [asyncio.create_task(node.book.prepare("test", uid_of(name), name)) for name in NAMES]
        await asyncio.sleep(10)
        before = len(node.api.requests)
        await asyncio.sleep(20)
        assert 2 <= len(node.api.requests) - before <= 8
        await asyncio.wait(waiting)


async def test_first_reads_of_claims_that_all_fail_are_few() -> None:
    """If the API server fails at the claims of many namespaces and answers none, only a few are read at once."""
    async with failing() as node:
        names = [[f"p{pod}c{number}" for number in range(8)] for pod in range(60)]
        node.api.bad |= {name for listed in names for name in listed}
        node.show(*[replace(pod(listed[0], *listed), namespace=listed[0]) for listed in names])
        await asyncio.sleep(60)
        assert len(node.api.requests) <= 50
        assert len(node.passes) <= 50
