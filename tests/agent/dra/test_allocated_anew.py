"""Prepare of a claim that was reallocated, while the ledger has the CPUs of the earlier allocation.

A kubelet that lost its state calls no Unprepare; it calls Prepare again when another pod has the claim.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from apiserver.errors import Refused, Unavailable
from pinning.dra.claims import BadClaim, DeviceClaim
from tests.agent.dra.driver_node import Node, on
from tests.pinning.dra.claiming import document, result, uid_of

UID = uid_of("x")


def test_prepare_follows_the_present_allocation(tmp_path: Path) -> None:
    """The answer, the ledger and the CDI file have the requests and CPUs of the new allocation."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        assert len((await node.prepare("x"))["x"].devices) == 1
        node.add("x", 1, 1)
        assert [list(it.request_names) for it in (await node.prepare("x"))["x"].devices] == [["r0"], ["r1"]]
        assert [part.request for part in node.ledger.claims[UID].claim.parts] == ["r0", "r1"]
        (written,) = node.files().values()
        assert [device["name"] for device in written["devices"]] == [f"claim-{UID}-r0", f"claim-{UID}-r1"]

    on(tmp_path, use, leftover_seconds=60.0)


def test_prepare_of_another_share_names_it(tmp_path: Path) -> None:
    """The answer has the share id of the present allocation, with which the kubelet compares it."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        await node.prepare("x")
        node.api.claims["x"] = document(result("1", request="r0", shareID="s-2"), uid=UID)
        (device,) = (await node.prepare("x"))["x"].devices
        assert device.share_id == "s-2"

    on(tmp_path, use, leftover_seconds=60.0)


def deallocated(node: Node) -> None:
    """Remove the allocation."""
    node.add("x")


def elsewhere(node: Node) -> None:
    """Allocate CPUs of another node."""
    node.api.claims["x"] = document(result("1", pool="node-2"), uid=UID)


@pytest.mark.parametrize("change", [deallocated, elsewhere])
def test_claim_without_cpus_of_this_node_is_prepared_without_devices(
    tmp_path: Path, change: Callable[[Node], None]
) -> None:
    """A claim that is reallocated without CPUs of this node is prepared without devices, not with its earlier CPUs."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        await node.prepare("x")
        change(node)
        answer = (await node.prepare("x"))["x"]
        assert (len(answer.devices), answer.error) == (0, "")

    on(tmp_path, use, leftover_seconds=60.0)


@pytest.mark.parametrize(
    ("problem", "seconds", "reason"),
    [
        (Unavailable("down"), 0.05, "the API server does not answer"),
        # The read gets this answer, and no timeout if the machine is loaded.
        (Refused("403: forbidden"), 40.0, "cannot be read"),
    ],
)
def test_prepare_is_refused_while_the_allocation_is_not_known(
    tmp_path: Path, problem: Exception, seconds: float, reason: str
) -> None:
    """If the present allocation cannot be read, Prepare is refused, because the ledger's CPUs may be outdated."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        await node.prepare("x")
        node.api.problem = problem
        node.driver.book._wait_seconds = seconds
        answer = (await node.prepare("x"))["x"]
        assert len(answer.devices) == 0
        assert re.search(reason, answer.error)

    on(tmp_path, use, leftover_seconds=60.0)


class AnewDuringRead:
    """An API server that returns no claim on the first read, while the kubelet prepares its new allocation."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.reads = 0

    async def read(self, namespace: str, name: str) -> DeviceClaim | BadClaim | None:
        """Prepare the new allocation, and return None."""
        self.reads += 1
        if self.reads == 1:
            self._node.add("x", 1, 1)
            await self._node.prepare("x")
        return None


def test_claim_prepared_anew_during_the_look_at_leftovers_is_kept(tmp_path: Path) -> None:
    """A stale read of a claim that was prepared in the meantime does not release its CPUs."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        await node.prepare("x")
        looking = AnewDuringRead(node)
        node.driver._reader = looking  # type: ignore[assignment]
        await node.driver._look(node.ledger.claims[UID].claim)
        assert looking.reads >= 1
        assert node.driver.book.prepared(UID)

    on(tmp_path, use, leftover_seconds=60.0)


def test_prepare_waits_for_the_pods_of_the_allocation_before(tmp_path: Path) -> None:
    """While passes keep the CPUs for pods of the earlier allocation, Prepare is refused with their reason."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        await node.prepare("x")
        node.add("x", 1, 1)
        node.driver.book._wait_seconds = 0.2
        node.run_pass = lambda: node.driver.passed(node.ledger, {UID: "its pods run"}, observes=False)  # type: ignore[method-assign]
        error = "none yet"
        while error != "claim test/x: its pods run":  # beside load 0.2 s may end before the pass
            error = (await node.prepare("x"))["x"].error
            assert error
        await asyncio.sleep(0)
        assert len(node.ledger.claims[UID].claim.parts) == 1

    on(tmp_path, use, leftover_seconds=60.0)
