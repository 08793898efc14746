"""Claims that had no allocation or could not be read at first, and are read again until they have CPUs."""

from __future__ import annotations

import asyncio
import logging
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from agent.dra.pod_claims import EACH_SECONDS, PodClaims
from agent.dra.read_limit import BYTES_A_SECOND
from agent.dra.reader import UNREAD_BYTES, ClaimReader
from apiserver.errors import Unavailable
from tests.agent import virtual_time
from tests.agent.dra.driver_node import FakeApi, driver_at, many, pod
from tests.environments.waiting import background
from tests.pinning.dra.claiming import NODE, document, result, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UID = uid_of("x")
KEY = ("test", "x")


def allocated() -> dict[str, Any]:
    """Return the claim as it is once the scheduler has chosen this node."""
    return document(result("2"), uid=UID)


def unallocated() -> dict[str, Any]:
    """Return a claim without an allocation."""
    return document(uid=UID, allocation=None, reservedFor=None)


def of_another_node() -> dict[str, Any]:
    """Return a claim that is allocated on another node, for no pod."""
    return document(result("2", pool="node-2"), uid=UID, reservedFor=None)


def unserved() -> dict[str, Any]:
    """Return a claim whose allocation cannot be served."""
    return document(result("2", adminAccess=True), uid=UID)


def unreadable() -> Any:
    """Return an invalid claim."""
    return []


class Reads:
    """A node that reads the claims of its pods; the delays between repeated reads pass at once."""

    def __init__(self, first: Any = None, clock: Callable[[], float] = monotonic) -> None:
        self.api = FakeApi({} if first is None else {"x": first})
        self.slept: list[float] = []
        self.passes = 0
        self.go_on = asyncio.Event()
        reader = ClaimReader(self.api, NODE, clock=clock)  # type: ignore[arg-type]
        self.pods = PodClaims(reader, sleep=self._sleep, clock=clock)

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await self.go_on.wait()
        await asyncio.sleep(0)

    def passed(self) -> None:
        """Count a requested pass."""
        self.passes += 1

    async def until(self, condition: Callable[[], object]) -> None:
        """Run the reader until a condition holds."""
        while not condition():
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("first", "problem"),
    [
        (None, "it does not exist: delete the pod"),
        (unallocated(), ""),
        (of_another_node(), ""),
        (unserved(), "adminAccess is not served for CPUs: remove it from the request"),
        (unreadable(), "the ResourceClaim is not an object: []"),
    ],
    ids=["missing", "unallocated", "of another node", "unserved", "unreadable"],
)
async def test_claim_without_cpus_is_read_until_it_has_some(first: Any, problem: str) -> None:
    """A claim without CPUs is read until the scheduler has allocated some; then a pass is requested."""
    node = Reads(first)
    node.pods.follow([pod("a", "x")])
    async with background(node.pods.run(node.passed)):
        await node.until(lambda: node.slept)
        assert node.pods.read == {(*KEY, "a")}
        assert node.pods.problems == ({KEY: problem} if problem else {})
        before = node.passes
        node.api.claims["x"] = allocated()
        node.go_on.set()
        await node.until(lambda: node.pods.known)
        await node.until(lambda: node.passes > before)
        assert node.pods.problems == {}
        requests = len(node.api.requests)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(node.api.requests) == requests == 2


def test_reason_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """A repeated read logs a claim's problem only if its reason changed."""

    async def run() -> None:
        node = Reads(unserved())
        node.pods.follow([pod("a", "x")])
        node.go_on.set()
        async with background(node.pods.run(node.passed)):
            await node.until(lambda: len(node.api.requests) >= 6)
            node.api.claims["x"] = unreadable()
            await node.until(lambda: len(node.api.requests) >= 12)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    reasons = [record.facts["reason"] for record in caplog.records]  # type: ignore[attr-defined]
    assert reasons == [
        "adminAccess is not served for CPUs: remove it from the request",
        "the ResourceClaim is not an object: []",
    ]


async def test_many_claims_that_stay_unknown_are_read_a_few_at_a_time() -> None:
    """A namespace whose pods name claims that do not exist causes at most five repeated reads a second."""
    node = Reads()
    pods = many("noisy", 20)
    node.pods.follow(pods)
    async with background(node.pods.run(node.passed)):
        await node.until(lambda: len(node.slept) == 640)
        assert max(node.slept) == pytest.approx(640 * (EACH_SECONDS + UNREAD_BYTES / BYTES_A_SECOND))
        assert min(node.slept) >= 0.5


@pytest.mark.virtual_time
async def test_large_claims_that_stay_unknown_are_read_rarely() -> None:
    """Parsing 1.2 MiB takes the agent up to 21 ms: large claims of a namespace are read again at 256 KiB a second."""
    node = Reads(clock=virtual_time.now)
    pods = many("noisy", 1)
    for name in pods[0].claim_names:
        claim = unallocated()
        claim["metadata"]["annotations"] = {"filler": "x" * 2**20}
        node.api.claims[name] = claim
    node.pods.follow(pods)
    async with background(node.pods.run(node.passed)):
        while len(node.slept) < 32:
            await asyncio.sleep(1)
        assert max(node.slept) == pytest.approx(32 * (EACH_SECONDS + 2**20 / BYTES_A_SECOND), rel=0.01)


async def test_size_of_a_claim_is_that_of_its_last_read() -> None:
    """A claim's size is that of its last read; a claim that was not read, or was deleted, counts as a usual one."""
    node = Reads(unallocated())
    reader = ClaimReader(node.api, NODE)  # type: ignore[arg-type]
    assert reader.size("test", "x") == UNREAD_BYTES
    await reader.read("test", "x")
    assert 0 < reader.size("test", "x") < UNREAD_BYTES
    node.api.claims["x"]["metadata"]["annotations"] = {"filler": "x" * 10_000}
    await reader.read("test", "x")
    assert reader.size("test", "x") > 10_000
    assert reader.size("other", "x") == UNREAD_BYTES
    del node.api.claims["x"]
    await reader.read("test", "x")
    assert reader.size("test", "x") == UNREAD_BYTES
    assert not reader._sizes


async def test_sizes_of_all_claims_of_a_full_node_are_known() -> None:
    """The size of a large claim stays known after reads for 250 pods with 32 claims each, and until no pod names it."""
    node = Reads()
    pods = [pod("a", "x"), *many("noisy", 250)]
    node.api.claims = {name: unallocated() for it in pods for name in it.claim_names}
    node.api.claims["x"]["metadata"]["annotations"] = {"filler": "x" * 10_000}
    reader = ClaimReader(node.api, NODE)  # type: ignore[arg-type]
    claims = PodClaims(reader)
    claims.follow(pods)
    for it in pods:
        for name in it.claim_names:
            await reader.read(it.namespace, name)
    claims.follow(pods)
    assert (len(reader._sizes), reader.size("test", "x") > 10_000) == (8001, True)
    claims.follow(pods[1:2])
    assert len(reader._sizes) == 32
    assert reader.size("test", "x") == UNREAD_BYTES


async def test_pod_joins_a_prepared_claim_while_the_driver_is_not_registered(tmp_path: Path) -> None:
    """An unregistered driver reads reservations of prepared claims, because their new pods get no Prepare."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        node.add("y", 1)
        node.pods = [pod("a", "x")]
        await node.register()
        assert (await node.prepare("x"))["x"].devices
        await node.register(ok=False)
        reserved = node.api.claims["x"]["status"]["reservedFor"]
        reserved.append({"resource": "pods", "name": "b", "uid": "b"})
        node.pods = [pod("a", "x"), pod("b", "x", "y")]
        node.run_pass()
        while len(node.driver.seen(node.pods, ()).read) < 3:
            await asyncio.sleep(0)
        known = node.driver.seen(node.pods, ()).known
        assert {uid: sorted(it.pods) for uid, it in known.items()} == {UID: ["a", "b"]}


async def test_reason_of_an_api_server_that_does_not_answer_reaches_passes(tmp_path: Path) -> None:
    """If the API server does not answer, passes get this reason for the unknown claims."""
    async with driver_at(tmp_path) as node:
        node.driver._pods._patience = 0.01
        node.api.problem = Unavailable("down")
        node.pods = [pod("a", "x")]
        while not (found := node.driver.seen(node.pods, ()).problems):
            await asyncio.sleep(0.001)
        assert found == {KEY: "the API server does not answer"}
