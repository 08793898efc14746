"""Reading of pods' claims during outages of the API server, and beside tenants that name many."""

from __future__ import annotations

import asyncio

from agent.dra.pod_claims import PodClaims
from agent.dra.reader import ClaimReader
from apiserver.errors import Refused, Unavailable
from pinning.planning.observed import SeenPod
from tests.agent.dra.driver_node import FakeApi, many, pod
from tests.pinning.dra.claiming import NODE, document, result, uid_of


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
    working = asyncio.create_task(pods.run(late.set))
    while len(api.requests) < 8:
        await asyncio.sleep(0)
    assert late.is_set()
    api.problem = None
    for _ in range(1000):
        await asyncio.sleep(0)
    assert list(pods.known) == [uid_of("x")]
    working.cancel()
    await asyncio.wait([working])


async def test_last_answer_counts_while_a_claim_is_read_again_for_another_pod() -> None:
    """A second pod that names a claim does not make it unknown for the first."""
    api = FakeApi({"x": document(uid=uid_of("x"))})
    pods = PodClaims(ClaimReader(api, NODE))  # type: ignore[arg-type]
    pods.follow([pod("a", "x")])
    assert not pods.read
    passed = asyncio.Event()
    working = asyncio.create_task(pods.run(passed.set))
    await passed.wait()
    passed.clear()
    first, second = ("test", "x", "a"), ("test", "x", "b")
    pods.follow([pod("a", "x"), pod("b", "x")])
    assert pods.read == {first}
    await passed.wait()
    assert pods.read == {first, second}
    working.cancel()
    await asyncio.wait([working])


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
    working = asyncio.create_task(pods.run(lambda: passes.append(dict(pods.known))))
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
    working.cancel()
    await asyncio.wait([working])


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
    working = asyncio.create_task(pods.run(lambda: passes.append(len(api.requests))))
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
    working.cancel()
    await asyncio.wait([working])


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
    working = asyncio.create_task(pods.run(lambda: None))
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
    working.cancel()
    await asyncio.wait([working])
