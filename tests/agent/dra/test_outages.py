"""Claims of pods, and what reads them, when the API server is away for a while."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from agent.dra.pod_claims import PodClaims
from agent.dra.reader import ClaimReader
from apiserver.errors import Refused, Unavailable
from pinning.planning.observed import SeenPod
from tests.pinning.dra.claiming import NODE, document, result, uid_of


class FakeApi:
    """An API server with claims by name."""

    def __init__(self, claims: dict[str, Any]) -> None:
        self.claims = claims
        self.problem: Exception | None = None
        self.requests = 0

    async def get(self, path: str) -> bytes:
        """Return a claim."""
        self.requests += 1
        await asyncio.sleep(0)
        if self.problem:
            raise self.problem
        return json.dumps(self.claims[path.rpartition("/")[2]]).encode()


def pod(uid: str, *names: str) -> SeenPod:
    """Return a pod that names claims."""
    return SeenPod(uid, "test", f"pod-{uid}", "", (), ("c0",), claim_names=frozenset(names))


class Clock:
    """Time that passes while callers sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.is_cut = False  # callers are cancelled in their sleep

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Sleep, or be cancelled by the caller's patience after a second."""
        if self.is_cut and seconds > 1:
            self.now += 1
            raise TimeoutError
        self.now += seconds
        await asyncio.sleep(0)


def test_claims_are_read_after_an_outage_by_callers_with_less_patience_than_the_delay() -> None:
    """Each try sleeps what the one before left of the delay."""

    async def run() -> None:
        api, clock = FakeApi({"x": document(result("2"), uid=uid_of("x"))}), Clock()
        reader = ClaimReader(api, NODE, clock.sleep, clock)  # type: ignore[arg-type]
        pods = PodClaims(reader)
        wanted: list[SeenPod] = [pod("a", "x")]
        api.problem, clock.is_cut = Unavailable("down"), True
        pods.follow(wanted)
        late = asyncio.Event()
        working = asyncio.create_task(pods.run(late.set))
        while api.requests < 8:
            await asyncio.sleep(0)
        assert late.is_set()
        api.problem = None
        for _ in range(1000):
            await asyncio.sleep(0)
        assert list(pods.known) == [uid_of("x")]
        working.cancel()
        await asyncio.wait([working])

    asyncio.run(run())


def test_reads_that_decide_nothing_are_repeated_ever_less_often() -> None:
    """A refusal, and a claim that is not reserved for one of its pods yet; then there are no more requests."""

    async def run() -> None:
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
        while len(slept) < 7:
            await asyncio.sleep(0)
        for _ in range(20):
            pods.follow(wanted)
            await asyncio.sleep(0)
        assert [sorted(claim.pods) for known in passes for claim in known.values()] == [["a"], ["a", "b"]]
        assert (api.requests, len(slept)) == (7, 7)
        assert slept[5] > slept[0]
        api.problem = Refused("401: unauthorized")
        pods.follow([*wanted, pod("c", "x")])
        while api.requests < 8:
            await asyncio.sleep(0)
        assert list(pods.known) == [uid_of("x")]
        working.cancel()
        await asyncio.wait([working])

    asyncio.run(run())
