"""Prepare and Unprepare calls that are repeated, concurrent, too large or cancelled."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.dra import dra_pb2 as dra
from agent.dra.cdi import CDIFiles
from agent.dra.plugin import FILES_AT_ONCE, MOST_CLAIMS
from apiserver.errors import Refused, Unavailable
from pinning.dra.claims import BadClaim, ClaimGrant, DeviceClaim
from tests.agent.dra.driver_node import Node, driver_at
from tests.agent.fakes import TURNS
from tests.environments.waiting import background
from tests.pinning.dra.claiming import document, result, uid_of

X = dra.Claim(namespace="test", uid=uid_of("x"), name="x")


async def prepare(node: Node, *claims: dra.Claim) -> Any:
    """Call Prepare for claims; return the answers by uid."""
    request = dra.NodePrepareResourcesRequest(claims=claims)
    answer = await node.calls().ask("NodePrepareResources", request, dra.NodePrepareResourcesResponse)
    return answer.claims


async def unprepare(node: Node, *claims: dra.Claim) -> Any:
    """Call Unprepare for claims; return the answers by uid."""
    request = dra.NodeUnprepareResourcesRequest(claims=claims)
    answer = await node.calls().ask("NodeUnprepareResources", request, dra.NodeUnprepareResourcesResponse)
    return answer.claims


async def test_claim_that_is_asked_for_many_times_is_prepared_once(tmp_path: Path) -> None:
    """A claim named twice in one call, and in concurrent calls, is prepared once and gets equal answers."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1, 1)
        answers = await asyncio.gather(*(prepare(node, X, X) for _ in range(4)))
        assert {answer[uid_of("x")].SerializeToString() for answer in answers} == {
            answers[0][uid_of("x")].SerializeToString()
        }
        assert (len(answers[0]), len(answers[0][uid_of("x")].devices)) == (1, 2)
        assert len(node.files()) == len(node.ledger.claims) == 1
        given_back = await asyncio.gather(*(unprepare(node, X, X) for _ in range(4)))
        assert {answer[uid_of("x")].error for answer in given_back} == {""}
        assert (node.files(), dict(node.ledger.claims)) == ({}, {})


async def test_every_claim_of_a_large_call_has_an_answer(tmp_path: Path) -> None:
    """Claims above the limit are refused.

    Without an answer for each claim the kubelet would take the whole call for failed.
    """
    async with driver_at(tmp_path) as node:
        claims = [
            dra.Claim(namespace="test", uid=uid_of(f"c{at:04}"), name=f"c{at:04}") for at in range(1000)
        ]
        plugin = node.driver.plugin  # our own client sends no request of this size
        answers = (await plugin._prepare(dra.NodePrepareResourcesRequest(claims=claims))).claims
        texts = [answers[claim.uid].error for claim in claims]
        assert all("does not exist" in text for text in texts[:MOST_CLAIMS])
        assert all("at most 256 claims" in text for text in texts[MOST_CLAIMS:])
        refused = {"reason": "TooMany"}
        name = "corepin_agent_claim_prepares_refused_total"
        assert node.registry.get_sample_value(name, refused) == 1000 - MOST_CLAIMS
        back = (await plugin._unprepare(dra.NodeUnprepareResourcesRequest(claims=claims))).claims
        assert [bool(back[claim.uid].error) for claim in claims] == [at >= MOST_CLAIMS for at in range(1000)]


@pytest.mark.parametrize("uid", ["", "../x", "x\0y", "u" * 5000, "A" + uid_of("x")[1:]])
async def test_uid_that_no_api_server_gives_is_refused(tmp_path: Path, uid: str) -> None:
    """Prepare of an invalid uid is refused, so that no path contains it; its Unprepare succeeds."""
    async with driver_at(tmp_path) as node:
        claim = dra.Claim(namespace="test", uid=uid, name="x")
        assert "is not a uid" in (await prepare(node, claim))[uid].error
        assert (await unprepare(node, claim))[uid].error == ""
        assert node.api.requests == []


class SlowFiles(CDIFiles):
    """CDI files whose writes wait until the test releases them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.begun, self.go_on = threading.Event(), threading.Event()

    def write(self, grant: ClaimGrant) -> bool:
        """Replace the file of a claim when the test releases the write."""
        self.begun.set()
        assert self.go_on.wait(30)
        return super().write(grant)


async def test_write_of_a_cancelled_prepare_does_not_bring_a_file_back(tmp_path: Path) -> None:
    """A write that is delayed by the disk until after Unprepare does not restore the claim's file."""
    async with driver_at(tmp_path) as node:
        node.add("x", 1)
        files = node.driver.plugin._files = SlowFiles(node.cdi)
        async with background(prepare(node, X)):
            await asyncio.to_thread(files.begun.wait, 30)
        giving_back = asyncio.create_task(unprepare(node, X))
        while node.ledger.claims:
            await asyncio.sleep(0)
        files.go_on.set()
        assert (await giving_back)[X.uid].error == ""
        assert node.files() == {}
        assert not node.driver.plugin._writing


class CountingThreads(ThreadPoolExecutor):
    """Threads that count the calls that have not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        """Count a call, and run it in a thread."""
        self.running += 1
        future = super().submit(*arguments, **options)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: Future[Any]) -> None:
        self.running -= 1


async def test_few_files_are_written_at_once(tmp_path: Path) -> None:
    """A pod with many claims does not start many threads, each of which would keep memory."""
    async with driver_at(tmp_path, cpus=3 * FILES_AT_ONCE) as node:
        names = [f"c{number}" for number in range(3 * FILES_AT_ONCE)]
        for name in names:
            node.add(name, 1)
        files = node.driver.plugin._files = SlowFiles(node.cdi)
        threads = CountingThreads()
        asyncio.get_running_loop().set_default_executor(threads)
        preparing = asyncio.create_task(node.prepare(*names))
        while len(node.driver.plugin._writing) < len(names):
            await asyncio.sleep(0)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert threads.running == FILES_AT_ONCE
        files.go_on.set()
        assert {len(it.devices) for it in (await preparing).values()} == {1}


UID = uid_of("x")


async def test_prepare_follows_the_present_allocation(tmp_path: Path) -> None:
    """The answer, the ledger and the CDI file have the requests and CPUs of the new allocation."""
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        node.add("x", 1)
        assert len((await node.prepare("x"))["x"].devices) == 1
        node.add("x", 1, 1)
        assert [list(it.request_names) for it in (await node.prepare("x"))["x"].devices] == [["r0"], ["r1"]]
        assert [part.request for part in node.ledger.claims[UID].claim.parts] == ["r0", "r1"]
        (written,) = node.files().values()
        assert [device["name"] for device in written["devices"]] == [f"claim-{UID}-r0", f"claim-{UID}-r1"]


async def test_prepare_of_another_share_names_it(tmp_path: Path) -> None:
    """The answer has the share id of the present allocation, with which the kubelet compares it."""
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        node.api.claims["x"] = document(result("1", request="r0", shareID="s-2"), uid=UID)
        (device,) = (await node.prepare("x"))["x"].devices
        assert device.share_id == "s-2"


async def test_claim_without_cpus_is_prepared_without_devices(tmp_path: Path) -> None:
    """A claim that is reallocated without CPUs is prepared without devices, not with its earlier CPUs."""
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        node.add("x")
        answer = (await node.prepare("x"))["x"]
        assert (len(answer.devices), answer.error) == (0, "")


@pytest.mark.parametrize("was_here", [True, False])
async def test_claim_with_cpus_of_another_node_is_refused(tmp_path: Path, *, was_here: bool) -> None:
    """A pod with `spec.nodeName` may share a claim of another node, and must not start here without CPUs.

    The controller of claims reserves such a claim for it, and the kubelet does not compare the nodes.
    """
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        if was_here:
            await node.add_prepared("x", 1)
        node.api.claims["x"] = document(result("1", pool="node-2"), uid=UID)
        answer = (await node.prepare("x"))["x"]
        assert len(answer.devices) == 0
        assert answer.error == (
            "claim test/x has CPUs of node node-2 alone: delete the pod, and let the scheduler choose its node"
        )
        assert await node.unprepare("x") == ""


@pytest.mark.parametrize(
    ("problem", "seconds", "reason"),
    [
        (Unavailable("down"), 0.05, "the API server does not answer"),
        # The read gets this answer, and no timeout if the machine is loaded.
        (Refused("403: forbidden"), 40.0, "cannot be read"),
    ],
)
async def test_prepare_is_refused_while_the_allocation_is_not_known(
    tmp_path: Path, problem: Exception, seconds: float, reason: str
) -> None:
    """If the present allocation cannot be read, Prepare is refused, because the ledger's CPUs may be outdated."""
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        node.api.problem = problem
        node.driver.book._wait_seconds = seconds
        answer = (await node.prepare("x"))["x"]
        assert len(answer.devices) == 0
        assert re.search(reason, answer.error)


class AnewDuringRead:
    """An API server that returns no claim on the first read, while the kubelet prepares its new allocation."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.reads = 0

    async def read(self, namespace: str, name: str) -> DeviceClaim | BadClaim | None:
        """Prepare the new allocation, and return None."""
        self.reads += 1
        if self.reads == 1:
            await self._node.add_prepared("x", 1, 1)
        return None


async def test_claim_prepared_anew_during_the_look_at_leftovers_is_kept(tmp_path: Path) -> None:
    """A stale read of a claim that was prepared in the meantime does not release its CPUs."""
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        looking = AnewDuringRead(node)
        node.driver._reader = looking  # type: ignore[assignment]
        await node.driver._look(node.ledger.claims[UID].claim)
        assert looking.reads >= 1
        assert node.driver.book.prepared(UID)


async def test_prepare_waits_for_the_pods_of_the_allocation_before(tmp_path: Path) -> None:
    """While passes keep the CPUs for pods of the earlier allocation, Prepare is refused with their reason."""
    async with driver_at(tmp_path, leftover_seconds=60.0) as node:
        await node.add_prepared("x", 1)
        node.add("x", 1, 1)
        node.driver.book._wait_seconds = 0.2
        node.run_pass = lambda: node.driver.passed(node.ledger, {UID: "its pods run"}, observes=False)  # type: ignore[method-assign]
        error = "none yet"
        while error != "claim test/x: its pods run":  # beside load 0.2 s may end before the pass
            error = (await node.prepare("x"))["x"].error
            assert error
        await asyncio.sleep(0)
        assert len(node.ledger.claims[UID].claim.parts) == 1
