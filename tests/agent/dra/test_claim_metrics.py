"""Metrics of the driver."""

from __future__ import annotations

from pathlib import Path

from apiserver.errors import Refused
from tests.agent.dra.driver_node import Node, on
from tests.pinning.dra.claiming import document, result, uid_of

NAMES = {
    "prepares": "claim_prepare_seconds_count",
    "held": "resource_claims",
    "waiting": "resource_claims_waiting",
    "longest": "resource_claims_longest_wait_seconds",
}


def shown(node: Node) -> dict[str, float | None]:
    """Return the values of the metrics."""
    found = {key: node.registry.get_sample_value(f"corepin_agent_{name}") for key, name in NAMES.items()}
    return {**found, "refused": sum(refused(node).values())}


def refused(node: Node) -> dict[str, float]:
    """Return the refused Prepares by reason, without those that are 0."""
    return {
        sample.labels["reason"]: sample.value
        for metric in node.registry.collect()
        for sample in metric.samples
        if sample.name == "corepin_agent_claim_prepares_refused_total" and sample.value
    }


def test_prepares_and_claims_are_counted(tmp_path: Path) -> None:
    """Refused Prepares are counted by reason; a Prepare that waited for free CPUs is refused at its timeout."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        node.add("y", 1)
        await node.prepare("x", "gone")
        assert shown(node) == {"prepares": 2, "refused": 1, "held": 1, "waiting": 0, "longest": 0}
        node.driver.book._wait_seconds = 0.05
        assert (await node.prepare("y"))["y"].error
        assert (shown(node)["prepares"], shown(node)["refused"]) == (3, 2)
        node.api.claims["old"] = document(result("1"), uid=uid_of("other"))
        node.api.claims["gate"] = document(result("1", consumedCapacity=None), uid=uid_of("gate"))
        await node.prepare("old", "gate")
        node.api.problem = Refused("403: forbidden")
        await node.prepare("z")
        assert refused(node) == {"Gone": 2, "NoRoom": 1, "Invalid": 1, "Unreadable": 1}
        await node.unprepare("x")
        assert shown(node)["held"] == 0

    on(tmp_path, use, cpus=1)


def test_longest_wait_is_that_of_the_oldest_claim(tmp_path: Path) -> None:
    """The metric shows the wait of the oldest claim until that claim has CPUs, even if another one begins to wait."""
    node = Node(tmp_path)
    for now, waiting in ((0.0, {"a": ""}), (100.0, {"a": "", "b": ""}), (130.0, {"b": ""})):
        node.now = now
        node.driver.passed(node.ledger, waiting, observes=False)
    assert (shown(node)["waiting"], shown(node)["longest"]) == (1, 30)
    node.now = 300.0
    assert shown(node)["longest"] == 200
    node.driver.passed(node.ledger, {}, observes=False)
    assert (shown(node)["waiting"], shown(node)["longest"]) == (0, 0)
