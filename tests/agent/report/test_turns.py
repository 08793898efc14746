"""Agents that start together write unchanged objects at different times."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from agent.report.turns import next_turn


def test_turns_of_nodes_that_start_together_are_spread() -> None:
    """Of 3,000 nodes that start together at most 2 % write in the same hundredth of the interval."""
    times = [next_turn(f"node-{number}.example", 1234.5, 300.0) for number in range(3000)]
    parts = Counter(int((time - 1234.5) / 3) for time in times)
    assert all(1235.5 <= time < 1535.5 for time in times)
    assert (len(parts) >= 100, max(parts.values()) <= 60) == (True, True)


def test_a_node_has_one_turn_in_each_interval() -> None:
    """A node has one fixed time in each interval, whenever its agent started or wrote."""
    first = next_turn("node-1", 7.0, 300.0)
    assert next_turn("node-1", first - 1.0, 300.0) == first
    times = [first]
    for _ in range(5):
        times.append(next_turn("node-1", times[-1], 300.0))
    assert {round(after - before, 6) for before, after in pairwise(times)} == {300.0}
