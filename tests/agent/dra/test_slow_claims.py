"""Claims for which the API server needs longer than the agent waits, beside claims that it answers at once."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from agent.dra.pod_claims import NO_ANSWER, PASS_SECONDS, PATIENCE_SECONDS, PodClaims
from agent.dra.read_limit import BURST_BYTES
from agent.dra.reader import ClaimReader
from apiserver.errors import Refused, Unavailable
from pinning.planning.observed import SeenPod
from tests.agent import virtual_time
from tests.agent.dra.driver_node import FakeApi, many, pod
from tests.agent.dra.reading_node import ReadingNode
from tests.environments.waiting import background
from tests.pinning.dra.claiming import NODE, document, result, uid_of

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.virtual_time


SLOW = replace(pod("slow", "slow"), namespace="noisy")
NAMES = [f"c{number}" for number in range(20)]


@dataclass
class SlowApi(FakeApi):
    """An API server that never answers for some claims within the agent's patience."""

    slow: set[str] = field(default_factory=lambda: {"slow"})

    async def get(self, path: str) -> bytes:
        """Return a claim."""
        if path.rpartition("/")[2] in self.slow:
            await asyncio.sleep(3 * PATIENCE_SECONDS)
        return await super().get(path)


Node = ReadingNode[SlowApi]


def slow() -> AbstractAsyncContextManager[Node]:
    """Read the claim of a pod again and again beside the block."""
    return slow_node().reading(SLOW)


def slow_node() -> Node:
    """Return a node whose API server has some claims that it answers at once."""
    return Node(SlowApi({name: document(result("2"), uid=uid_of(name)) for name in NAMES}))


async def test_claim_that_is_never_answered_delays_no_other_namespace() -> None:
    """Claims of pods in other namespaces are read at once, at any moment of a read that is not answered."""
    async with slow() as node:
        for name in NAMES:
            await asyncio.sleep(0.7)
            assert await node.delay(pod(name, name)) < 0.01


async def test_claim_that_is_never_answered_is_the_last_of_its_namespace() -> None:
    """Claims of the same namespace wait for the read that runs, and not for the next one."""
    async with slow() as node:
        for name in NAMES:
            await asyncio.sleep(0.7)
            assert await node.delay(replace(pod(name, name), namespace="noisy")) <= PATIENCE_SECONDS


async def test_claim_that_is_never_answered_holds_its_pod_up_once() -> None:
    """After the first timeout a pod counts as read, although the API server answers for others; its claim has a reason."""
    async with slow() as node:
        await asyncio.sleep(PATIENCE_SECONDS + 1)
        for name in NAMES:
            await node.delay(pod(name, name))
            assert ("noisy", "slow", "slow") in node.claims.read
            assert node.claims.problems == {("noisy", "slow"): NO_ANSWER}
        node.api.slow.clear()
        node.api.claims["slow"] = document(result("2"), uid=uid_of("slow"))
        await asyncio.sleep(3 * PATIENCE_SECONDS)
        assert node.claims.problems == {}


async def test_claims_count_as_read_after_silence_in_two_namespaces_that_have_pods() -> None:
    """An unread claim counts as read once reads in two namespaces were not answered; one whose pods ended does not count."""
    async with slow() as node:
        new, more = ("test", "c0", "a"), replace(pod("more", "more"), namespace="more")
        node.api.slow |= {"more", "c0"}
        await asyncio.sleep(PATIENCE_SECONDS + 1)
        node.pods.clear()
        node.show(more)
        await asyncio.sleep(PATIENCE_SECONDS + 1)
        node.show(pod("a", "c0"))
        assert new not in node.claims.read
        node.show(SLOW)
        while new not in node.claims.read:
            await asyncio.sleep(0.1)
        assert node.claims.problems == {
            (it.namespace, name): NO_ANSWER for it in node.pods for name in it.claim_names
        }


def show_together(node: Node) -> float:
    """Show two pods whose claims are read at once, then three that the API server does not answer; return the time."""
    names = ["c0", "c1", "x", "y", "z"]
    node.api.slow |= {"x", "y", "z"}
    node.show(*[replace(pod(name, name), namespace=f"n{at}") for at, name in enumerate(names)])
    return virtual_time.now()


async def test_pass_for_a_complete_pod_waits_for_no_other_claim() -> None:
    """A pass is requested for a complete pod within PASS_SECONDS, also if both readers wait for an answer by then."""
    async with slow_node().reading() as node:
        await asyncio.sleep(1)
        begun = show_together(node)
        await asyncio.sleep(PATIENCE_SECONDS / 2)
        requested, known = node.passes[-1]
        assert known == {uid_of("c0"), uid_of("c1")}
        assert requested - begun < PASS_SECONDS + 0.01


async def test_pass_for_a_pod_with_a_late_claim_waits_for_no_limited_namespace() -> None:
    """A pod whose other claims are read gets a pass at once, though claims of a rate-limited namespace are queued."""
    async with slow() as node:
        await asyncio.sleep(PATIENCE_SECONDS + 1)
        node.claims._limit.charge("limited", 100 * BURST_BYTES)
        node.show(replace(pod("limited", "c1"), namespace="limited"))
        node.show(replace(pod("a", "slow", "c0"), namespace="noisy"))
        while uid_of("c0") not in node.claims.known:
            await asyncio.sleep(0.001)
        known = virtual_time.now()
        await asyncio.sleep(PASS_SECONDS)
        requested, claims = node.passes[-1]
        assert claims == {uid_of("c0")}
        assert requested - known < 0.01


async def test_stopped_reader_requests_no_pass() -> None:
    """No pass is requested after the end of the reads, also if one was due soon."""
    node = slow_node()
    async with background(node.claims.run(node.request_pass)):
        await asyncio.sleep(1)
        show_together(node)
        await asyncio.sleep(PASS_SECONDS / 2)
        passes = len(node.passes)
    await asyncio.sleep(1)
    assert len(node.passes) == passes == 1


async def test_prepare_of_a_slow_claim_delays_no_other_pod() -> None:
    """While a claim is read for its pod and for a Prepare, claims of other pods are read at once."""
    async with slow() as node, background(node.book.prepare("noisy", uid_of("slow"), "slow")):
        await asyncio.sleep(0.7)
        assert await node.delay(pod("a", NAMES[0])) < 0.01


class Clock:
    """A clock that advances while callers sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_cut = False  # sleeping callers are cancelled

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep; if `is_cut`, raise TimeoutError after a second as the caller does."""
        if self.is_cut and seconds > 1:
            self.now += 1
            raise TimeoutError
        self.now += seconds
        await asyncio.sleep(0)


async def test_claims_are_read_after_an_outage_despite_cancelled_waits() -> None:
    """After an outage claims are read, although callers have cancelled their waits for the backoff."""
    api, clock = FakeApi({"x": document(result("2"), uid=uid_of("x"))}), Clock()
    reader = ClaimReader(api, NODE, clock.sleep, clock)  # type: ignore[arg-type]
    pods = PodClaims(reader)
    wanted: list[SeenPod] = [pod("a", "x")]
    api.problem, clock.is_cut = Unavailable("down"), True
    pods.follow(wanted)
    late = asyncio.Event()
    async with background(pods.run(late.set)):
        while len(api.requests) < 8:
            await asyncio.sleep(0)
        assert late.is_set()
        api.problem = None
        for _ in range(1000):
            await asyncio.sleep(0)
        assert list(pods.known) == [uid_of("x")]


async def test_last_answer_counts_while_a_claim_is_read_again_for_another_pod() -> None:
    """A second pod that names a claim does not make it unknown for the first."""
    api = FakeApi({"x": document(uid=uid_of("x"))})
    pods = PodClaims(ClaimReader(api, NODE))  # type: ignore[arg-type]
    pods.follow([pod("a", "x")])
    assert not pods.read
    passed = asyncio.Event()
    async with background(pods.run(passed.set)):
        await passed.wait()
        passed.clear()
        first, second = ("test", "x", "a"), ("test", "x", "b")
        pods.follow([pod("a", "x"), pod("b", "x")])
        assert pods.read == {first}
        await passed.wait()
        assert pods.read == {first, second}


async def test_inconclusive_reads_are_repeated_with_backoff() -> None:
    """A refused read and a claim without the pod's reservation are retried, a conclusive one is not."""
    given = document(result("2"), uid=uid_of("x"))
    api, slept = FakeApi({"x": given}), []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            api.problem = None
        if len(slept) == 6:
            given["status"]["reservedFor"].append({"resource": "pods", "name": "b", "uid": "b"})
        await asyncio.sleep(0)

    api.problem = Refused("401: unauthorized")
    pods = PodClaims(ClaimReader(api, NODE), sleep=sleep)  # type: ignore[arg-type]
    wanted = [pod("a", "x"), pod("b", "x")]
    pods.follow(wanted)
    passes = []
    async with background(pods.run(lambda: passes.append(dict(pods.known)))):
        while len(slept) < 6:
            await asyncio.sleep(0)
        for _ in range(20):
            pods.follow(wanted)
            await asyncio.sleep(0)
        assert [sorted(claim.pods) for known in passes for claim in known.values()] == [["a"], ["a", "b"]]
        assert (len(api.requests), len(slept)) == (7, 6)
        assert slept[5] > slept[0]
        api.problem = Refused("401: unauthorized")
        pods.follow([*wanted, pod("c", "x")])
        while len(api.requests) < 8:
            await asyncio.sleep(0)
        assert list(pods.known) == [uid_of("x")]


async def sleep_on(_seconds: float) -> None:
    """Sleep until the test ends."""
    await asyncio.Event().wait()


async def test_claims_of_one_namespace_delay_no_other() -> None:
    """A pod whose namespace names one claim waits for a few reads, and not for those of thousands of others."""
    api = FakeApi({"x": document(result("2"), uid=uid_of("x"))})
    reader = ClaimReader(api, NODE)  # type: ignore[arg-type]
    pods = PodClaims(reader, pass_seconds=0.0, sleep=sleep_on)
    noisy = many("noisy", 20)
    pods.follow(noisy)
    passes: list[int] = []
    async with background(pods.run(lambda: passes.append(len(api.requests)))):
        while len(api.requests) < 40:
            await asyncio.sleep(0)
        pods.follow([*noisy, pod("a", "x")])
        while ("test", "x", "a") not in pods.read:
            await asyncio.sleep(0)
        assert len(api.requests) < 50
        while len(pods.read) < 641:
            await asyncio.sleep(0)
        assert len(api.requests) == 641
        assert any(40 <= at < 50 for at in passes)


async def test_claim_that_stays_in_doubt_delays_no_other() -> None:
    """Each claim has its own delay, so that one that is never reserved for its pod does not delay others."""
    api = FakeApi({name: document(result("2"), uid=uid_of(name)) for name in ("x", "y")})
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) >= 20:
            await asyncio.Event().wait()

    pods = PodClaims(ClaimReader(api, NODE), sleep=sleep)  # type: ignore[arg-type]
    pods.follow([pod("stranger", "x")])
    async with background(pods.run(lambda: None)):
        while len(slept) < 20:
            await asyncio.sleep(0)
        assert slept[-1] > 20
        pods.follow([pod("stranger", "x"), pod("other", "y")])
        while len(slept) < 21:
            await asyncio.sleep(0)
        assert slept[-1] <= 1
        assert len(pods._repeats) == 2
        pods.follow([])
        assert not pods._repeats
