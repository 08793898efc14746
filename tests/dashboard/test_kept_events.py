"""Eviction of events beyond the limits per node and in total."""

from __future__ import annotations

from collections import Counter

import pytest

from dashboard.model import kept_events
from dashboard.model.kept_events import IN_ALL, PER_NODE, SLACK, KeptEvents, newest
from dashboard.model.records import Event
from tests.dashboard.clusters import an_event
from tests.dashboard.documents import event


def told(node: str, second: int, namespace: str = "default", pod: str = "web") -> Event:
    """Return an event of a node's agent about a pod, with a time in seconds."""
    time = f"2026-11-22T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}Z"
    return Event("uid", f"{namespace}/{pod}", node, "Pinned", "text", is_warning=False, time=time, count=1)


def numbered(*events: Event) -> dict[str, Event]:
    """Return events by generated uids."""
    return {f"{number:06}": event for number, event in enumerate(events)}


def nodes_of(events: dict[str, Event]) -> Counter[str]:
    """Return the number of events of each node."""
    return Counter(event.node for event in events.values())


def test_newest_of_a_node_are_kept() -> None:
    """The newest events of a node are kept, in whatever order they arrive."""
    flapping = [told("flapping", second) for second in range(3 * PER_NODE)]
    kept = newest(numbered(*flapping[::2], *flapping[1::2], told("calm", 0)))
    assert nodes_of(kept) == {"flapping": PER_NODE, "calm": 1}
    assert {event.time for event in kept.values() if event.node == "flapping"} == {
        event.time for event in flapping[-PER_NODE:]
    }


def test_there_is_a_limit_for_all_nodes_together() -> None:
    """Nodes with equally many events keep equally many."""
    many = [told(f"n{node}", second) for node in range(100) for second in range(PER_NODE // 5)]
    kept = newest(numbered(*many))
    assert set(nodes_of(kept).values()) == {IN_ALL // 100}
    assert min(event.time for event in kept.values()) == many[PER_NODE // 5 - IN_ALL // 100].time


@pytest.mark.parametrize("forged", ["n", "made up"])
def test_flood_of_one_namespace_hides_no_other(forged: str) -> None:
    """Forged events, even newer ones of any node, displace no event of another namespace."""
    ours = [told("n", second) for second in range(200)]
    flood = [
        told("n" if forged == "n" else f"{forged} {number}", 5000 + number, "evil", f"p{number}")
        for number in range(2 * IN_ALL)
    ]
    kept = newest(numbered(*ours, *flood))
    assert set(map(id, ours)) <= set(map(id, kept.values()))
    assert len(kept) == (PER_NODE if forged == "n" else IN_ALL)


def test_memory_has_a_limit_at_every_moment() -> None:
    """Memory is bounded also while an endless list is read."""
    kept, most = KeptEvents(), 0
    for number in range(4 * IN_ALL):
        kept[f"{number:06}"] = told(f"n{number % 50}", number)
        most = max(most, len(kept))
    assert IN_ALL < most <= IN_ALL + SLACK
    assert f"{4 * IN_ALL - 1:06}" in kept
    last, before = dict(kept), len(kept)
    for uid in last:
        kept[uid] = told("n0", 0)
    assert len(kept) == before


def test_few_events_are_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eviction runs once for every SLACK new events, because it walks all of them."""
    looks: list[int] = []

    def look(events: dict[str, Event]) -> dict[str, Event]:
        looks.append(len(events))
        return dict(events)

    monkeypatch.setattr(kept_events, "newest", look)
    kept = KeptEvents()
    for number in range(10 * (SLACK + 1)):
        kept[str(number)] = told("n", 0)
    assert len(looks) == 10


def test_names_in_events_are_cut() -> None:
    """Long names in events are truncated, because the API server sets no limit to them."""
    long = an_event(event("x" * 2**20, "Drift", "text", on="y" * 2**20, namespace="z" * 2**20))
    assert len(long.pod) + len(long.node) < 1000
