"""Metrics of the driver."""

from __future__ import annotations

from pathlib import Path

from tests.agent.dra.driver_node import Node, on

NAMES = {
    "prepares": "claim_prepare_seconds_count",
    "refused": "claim_prepares_refused_total",
    "held": "resource_claims",
    "waiting": "resource_claims_waiting",
    "longest": "resource_claims_longest_wait_seconds",
}


def shown(node: Node) -> dict[str, float | None]:
    """Return the values of the metrics."""
    return {key: node.registry.get_sample_value(f"corepin_agent_{name}") for key, name in NAMES.items()}


def test_prepares_and_claims_are_counted(tmp_path: Path) -> None:
    """Refused Prepares count too; one that waited for room is refused at its timeout."""

    async def use(node: Node) -> None:
        node.add("x", 1)
        node.add("y", 1)
        await node.prepare("x", "gone")
        assert shown(node) == {"prepares": 2, "refused": 1, "held": 1, "waiting": 0, "longest": 0}
        node.driver.book._wait_seconds = 0.05
        assert (await node.prepare("y"))["y"].error
        assert (shown(node)["prepares"], shown(node)["refused"]) == (3, 2)
        await node.unprepare("x")
        assert shown(node)["held"] == 0

    on(tmp_path, use, cpus=1)


def test_longest_wait_is_that_of_the_oldest_claim(tmp_path: Path) -> None:
    """It ends with the claim's own wait, and not when another one waits."""
    node = Node(tmp_path)
    for now, waiting in ((0.0, {"a": ""}), (100.0, {"a": "", "b": ""}), (130.0, {"b": ""})):
        node.now = now
        node.driver.passed(node.ledger, waiting, observes=False)
    assert (shown(node)["waiting"], shown(node)["longest"]) == (1, 30)
    node.now = 300.0
    assert shown(node)["longest"] == 200
    node.driver.passed(node.ledger, {}, observes=False)
    assert (shown(node)["waiting"], shown(node)["longest"]) == (0, 0)
