"""Prepare and Unprepare calls that are repeated, concurrent, too large or cancelled."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.dra import dra_pb2 as dra
from agent.dra.cdi import CDIFiles
from agent.dra.plugin import FILES_AT_ONCE, MOST_CLAIMS
from pinning.dra.claims import ClaimGrant
from tests.agent.dra.driver_node import Node, on
from tests.agent.fakes import TURNS
from tests.pinning.dra.claiming import uid_of

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


def test_claim_that_is_asked_for_many_times_is_prepared_once(tmp_path: Path) -> None:
    """A claim named twice in one call, and in concurrent calls, is prepared once and gets equal answers."""

    async def use(node: Node) -> None:
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

    on(tmp_path, use)


def test_every_claim_of_a_large_call_has_an_answer(tmp_path: Path) -> None:
    """Claims above the limit are refused.

    Without an answer for each claim the kubelet would take the whole call for failed.
    """

    async def use(node: Node) -> None:
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

    on(tmp_path, use)


@pytest.mark.parametrize("uid", ["", "../x", "x\0y", "u" * 5000, "A" + uid_of("x")[1:]])
def test_uid_that_no_api_server_gives_is_refused(tmp_path: Path, uid: str) -> None:
    """Prepare of an invalid uid is refused, so that no path contains it; its Unprepare succeeds."""

    async def use(node: Node) -> None:
        claim = dra.Claim(namespace="test", uid=uid, name="x")
        assert "is not a uid" in (await prepare(node, claim))[uid].error
        assert (await unprepare(node, claim))[uid].error == ""
        assert node.api.requests == []

    on(tmp_path, use)


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


def test_write_of_a_cancelled_prepare_does_not_bring_a_file_back(tmp_path: Path) -> None:
    """A write that is delayed by the disk until after Unprepare does not restore the claim's file."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        files = node.driver.plugin._files = SlowFiles(node.cdi)
        preparing = asyncio.create_task(prepare(node, X))
        await asyncio.to_thread(files.begun.wait, 30)
        preparing.cancel()
        await asyncio.wait([preparing])
        giving_back = asyncio.create_task(unprepare(node, X))
        while node.ledger.claims:
            await asyncio.sleep(0)
        files.go_on.set()
        assert (await giving_back)[X.uid].error == ""
        assert node.files() == {}
        assert not node.driver.plugin._writing

    on(tmp_path, use)


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


def test_few_files_are_written_at_once(tmp_path: Path) -> None:
    """A pod with many claims does not start many threads, each of which would keep memory."""

    async def use(node: Node) -> None:
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

    on(tmp_path, use, cpus=3 * FILES_AT_ONCE)
