"""Many or large claims of short-lived pods: reads are rate-limited for each namespace."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from agent.dra.book import WAIT_SECONDS, ClaimBook
from agent.dra.pod_claims import PodClaims
from agent.dra.read_limit import BURST_BYTES, BYTES_A_SECOND, ReadLimit
from agent.dra.reader import ClaimReader
from agent.dra.refusals import Cause, RefusedPrepare
from tests.agent import virtual_time
from tests.agent.dra.driver_node import FakeApi, pod
from tests.environments.waiting import background
from tests.pinning.dra.claiming import NODE, document, result, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.planning.observed import SeenPod

pytestmark = pytest.mark.virtual_time

PODS, EACH_SECONDS, LIFE_SECONDS, SIZE = 1000, 0.1, 2.0, 250_000


def claim_of(name: str, size: int) -> dict[str, Any]:
    """Return a claim of about this size that is not allocated."""
    claim = document(uid=uid_of(name), allocation=None, reservedFor=None)
    claim["metadata"]["annotations"] = {"filler": "x" * size}
    return claim


def large(name: str) -> dict[str, Any]:
    """Return a large claim that is not allocated."""
    return claim_of(name, SIZE)


def unserved(name: str) -> dict[str, Any]:
    """Return a large claim that is allocated as no Prepare serves it."""
    return large(name) | {"status": document(result("2", adminAccess=True), uid=uid_of(name))["status"]}


def noisy(name: str) -> SeenPod:
    """Return a pod of the noisy namespace, with a claim of the same name."""
    return replace(pod(name, name), namespace="noisy")


class Churn:
    """A node on which pods with large claims are created and deleted, in virtual time."""

    def __init__(self) -> None:
        self.api = FakeApi()
        reader = ClaimReader(self.api, NODE, clock=virtual_time.now)  # type: ignore[arg-type]
        self.claims = PodClaims(reader, clock=virtual_time.now)
        self.book = ClaimBook(reader)
        self.shown: list[SeenPod] = []

    def read_of(self, namespace: str) -> int:
        """Return the number of reads of a namespace's claims."""
        return sum(f"/namespaces/{namespace}/" in path for path in self.api.requests)

    def show(self, pods: list[SeenPod]) -> None:
        """Let the watch show these pods."""
        self.shown = pods
        self.claims.follow(pods)

    async def prepare(self, name: str, namespace: str = "noisy") -> RefusedPrepare:
        """Let the kubelet prepare a claim that is not served; return the refusal."""
        answer = await self.book.prepare(namespace, uid_of(name), name)
        assert isinstance(answer, RefusedPrepare)
        return answer

    async def come_and_go(self, each: Callable[[int], SeenPod]) -> None:
        """Create pods one after the other and delete each after its lifetime; pods of other namespaces stay."""
        for number in range(PODS):
            oldest = number - round(LIFE_SECONDS / EACH_SECONDS)
            others = [it for it in self.shown if it.namespace != "noisy"]
            self.show([*others, *(each(at) for at in range(max(0, oldest + 1), number + 1))])
            await asyncio.sleep(EACH_SECONDS)


@asynccontextmanager
async def churning() -> AsyncIterator[Churn]:
    """Run the claim reader beside the block."""
    node = Churn()
    async with background(node.claims.run(lambda: None)):
        yield node


def most_reads(seconds: float, size: int = SIZE) -> float:
    """Return the highest number of first and repeated reads of claims of a size in this time."""
    return (BURST_BYTES + 2 * BYTES_A_SECOND * seconds) / size + 1


async def test_pods_with_claims_of_their_own_are_read_at_the_limit() -> None:
    """Reads for 1,000 pods in 100 seconds, each with its own claim of 250 kB, stay within the rate limit."""
    async with churning() as node:
        node.api.claims = {f"n{number}": large(f"n{number}") for number in range(PODS)}
        await node.come_and_go(lambda number: noisy(f"n{number}"))
        assert 100 < node.read_of("noisy") <= most_reads(PODS * EACH_SECONDS)


async def test_many_small_claims_are_read_at_the_limit() -> None:
    """Reads for 1,000 pods that come and go, each with 16 claims of 60 kB, stay within the rate limit in bytes."""
    names = [f"n{number}" for number in range(16)]
    async with churning() as node:
        node.api.claims = {name: claim_of(name, 60_000) for name in names}
        await node.come_and_go(
            lambda number: replace(noisy("n0"), uid=f"n{number}", claim_names=frozenset(names))
        )
        assert 100 < node.read_of("noisy") <= most_reads(PODS * EACH_SECONDS, 60_000)


async def test_pods_of_one_claim_are_read_at_the_limit() -> None:
    """Reads of one claim, one for each pod that names it, stay within the rate limit."""
    async with churning() as node:
        node.api.claims = {"x": large("x")}
        await node.come_and_go(lambda number: replace(noisy("x"), uid=f"n{number}"))
        assert 100 < node.read_of("noisy") <= most_reads(PODS * EACH_SECONDS)


async def test_claims_of_others_are_read_at_once() -> None:
    """While one namespace is rate-limited, the claims of a pod in another one are read at once."""
    async with churning() as node:
        names = [f"n{number}" for number in range(100)]
        node.api.claims = {name: large(name) for name in names} | {
            "y": document(result("2"), uid=uid_of("y"))
        }
        node.show([noisy(name) for name in names])
        await asyncio.sleep(1)
        assert 0 < node.read_of("noisy") < 100
        node.show([*node.shown, pod("a", "y")])
        before = virtual_time.now()
        while ("test", "y", "a") not in node.claims.read:
            await asyncio.sleep(0)
        assert virtual_time.now() - before < 0.01


async def test_pods_that_stay_are_all_read() -> None:
    """Claims of a namespace beyond the burst are read later, at 256 KiB a second."""
    async with churning() as node:
        names = [f"n{number}" for number in range(100)]
        node.api.claims = {name: large(name) for name in names}
        node.show([noisy(name) for name in names])
        while len(node.claims.read) < len(names):
            await asyncio.sleep(0.1)
        wanted = (len(names) * SIZE - BURST_BYTES) / BYTES_A_SECOND
        assert wanted - 2 < virtual_time.now() < wanted + 2


async def test_pods_that_come_while_a_namespace_waits_are_read_without_a_pass() -> None:
    """A pod that appears after all earlier claims were read is read without waiting for a pass."""
    async with churning() as node:
        names = [f"n{number}" for number in range(BURST_BYTES // SIZE + 2)]
        node.api.claims = {name: large(name) for name in names}
        node.show([noisy(name) for name in names[:-1]])
        await asyncio.sleep(0.1)
        assert len(node.claims.read) == len(names) - 1
        node.show([noisy(name) for name in names])
        await asyncio.sleep(2)
        assert len(node.claims.read) == len(names)


async def test_waiting_namespaces_cause_no_passes() -> None:
    """Pods of a rate-limited namespace request no endless passes, though each pass lists them again."""
    passes = []
    node = Churn()
    names = [f"n{number}" for number in range(100)]
    node.api.claims = {name: large(name) for name in names}

    def request_pass() -> None:
        passes.append(virtual_time.now())
        asyncio.get_running_loop().call_soon(node.claims.follow, node.shown)

    async with background(node.claims.run(request_pass)):
        node.show([noisy(name) for name in names])
        await asyncio.sleep(20)
    assert 0 < len(passes) < 200


async def test_small_claims_above_the_burst_share_passes() -> None:
    """Reads of 1,000 small claims that wait for the rate limit request a pass for each complete pod, not for each claim."""
    passes = []
    node = Churn()
    node.api.claims = {f"n{number}": claim_of(f"n{number}", 2**13) for number in range(1000)}
    names = sorted(node.api.claims)

    def request_pass() -> None:
        passes.append(virtual_time.now())
        asyncio.get_running_loop().call_soon(node.claims.follow, node.shown)

    async with background(node.claims.run(request_pass)):
        node.show(
            [replace(noisy("n0"), uid=f"p{at}", claim_names=frozenset(names[at::250])) for at in range(250)]
        )
        while len(node.claims.read) < len(names):
            await asyncio.sleep(0.1)
    assert len(passes) < 150


async def test_prepares_that_fail_again_and_again_are_read_at_the_limit() -> None:
    """Reads for Prepares that fail once a second for each of 20 pods stay within the rate limit, as users may change pods."""
    async with churning() as node:
        node.api.claims = {f"n{number}": unserved(f"n{number}") for number in range(20)}
        for _ in range(60):
            for name in node.api.claims:
                asyncio.create_task(node.prepare(name))  # noqa: RUF006 - as the kubelet, it waits for none of them
            await asyncio.sleep(1)
        first_reads = 20 * SIZE  # their sizes are not known before
        assert 50 < node.read_of("noisy") <= most_reads(60) + first_reads / SIZE


async def test_prepare_says_that_its_namespace_is_limited() -> None:
    """A Prepare that waits for the rate limit of its namespace fails with this reason; one of another is read at once."""
    async with churning() as node:
        node.api.claims = {"x": unserved("x")}
        node.book._reader.prepare_limit.charge(
            "noisy", BURST_BYTES + 2 * round(WAIT_SECONDS) * BYTES_A_SECOND
        )
        assert (await node.prepare("x", "test")).cause is Cause.INVALID
        assert virtual_time.now() < 1
        refused = await node.prepare("x")
        assert virtual_time.now() > WAIT_SECONDS - 1
        assert refused.cause is Cause.UNREADABLE
        assert "are read at 256 KiB a second" in refused.message
        assert node.read_of("noisy") == 0


async def test_first_prepares_above_the_burst_are_read_at_the_limit() -> None:
    """Prepares of claims that were not read before count as claims of 4 KiB, so that few of them are read at one moment."""
    async with churning() as node:
        node.api.claims = {f"n{number}": unserved(f"n{number}") for number in range(100)}
        node.book._reader.prepare_limit.charge("noisy", BURST_BYTES)
        calls = [asyncio.create_task(node.prepare(name)) for name in node.api.claims]
        await asyncio.sleep(0.1)
        assert 0 < node.read_of("noisy") < 10
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@pytest.mark.parametrize(("claims", "size"), [(2048, 2**12), (30, 1_400_000)], ids=["small", "large"])
async def test_prepares_wait_for_no_claims_of_other_pods(claims: int, size: int) -> None:
    """While megabytes of claims that a namespace's pods name are read, as after a restart, Prepares of a pod do not wait."""
    names, prepared = [f"n{number}" for number in range(claims)], [f"p{number}" for number in range(32)]
    async with churning() as node:
        node.api.claims = {name: claim_of(name, size) for name in names}
        node.api.claims |= {name: claim_of(name, 2**12) for name in prepared}
        for name in prepared:
            node.api.claims[name]["status"] = unserved(name)["status"]
        node.show([noisy(name) for name in names])
        for _ in range(5):
            await asyncio.sleep(1.3)
            before = virtual_time.now()
            assert {it.cause for it in await asyncio.gather(*map(node.prepare, prepared))} == {Cause.INVALID}
            assert virtual_time.now() - before < 0.01
        assert len(node.claims.read) < claims


async def test_waiting_prepares_do_not_all_wake_for_each_read() -> None:
    """Of 500 Prepares that wait for the limit of a namespace only the next one sleeps until it may read, in order."""
    slept = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(seconds)

    async with churning() as node:
        reader = node.book._reader
        reader._sleep = sleep
        reader.prepare_limit.charge("noisy", BURST_BYTES)
        names = [f"n{number}" for number in range(500)]
        calls = [asyncio.create_task(node.prepare(name)) for name in names]
        await asyncio.sleep(1)
        assert 60 < len(slept) < 70
        assert [path.rpartition("/")[2] for path in node.api.requests] == names[: len(node.api.requests)]
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        del call, calls
        gc.collect()
        assert not reader._order


def test_limit_keeps_only_namespaces_that_wait() -> None:
    """The limit forgets a namespace once its budget is restored."""
    now = [0.0]
    limit = ReadLimit(lambda: now[0])
    for number in range(3):
        limit.charge(f"n{number}", SIZE)
    limit.charge("small", 0)
    assert limit.wait("n0") <= 0
    limit.charge("n0", 2 * BURST_BYTES)
    assert limit.wait("n0") > BURST_BYTES / BYTES_A_SECOND
    assert set(limit.buckets) == {"n0", "n1", "n2"}
    now[0] = 1000.0
    limit.charge("n3", SIZE)
    assert set(limit.buckets) == {"n3"}
