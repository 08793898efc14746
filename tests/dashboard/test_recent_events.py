"""Recent events: the agents' events and observed changes, in one order."""

from __future__ import annotations

import pytest

from dashboard.model.history import Change
from dashboard.view.filters import Filter
from dashboard.view.recent_events import history
from tests.dashboard.clusters import cluster
from tests.dashboard.documents import event

SEEN = (
    Change("2026-11-22T11:00:00Z", "n2", "team/db", "team/db/main got CPUs 1 (exclusive)"),
    Change("2026-11-22T09:30:00Z", "n1", "", "the node is new"),
)
KNOWN = cluster(event("web", "Pinned", "text", on="n1"), changes=SEEN)


@pytest.mark.parametrize(
    ("wanted", "nodes"),
    [
        (Filter(), ["n2", "n1", "n1"]),
        (Filter(node="n1"), ["n1", "n1"]),
        (Filter(namespace="team"), ["n2"]),
        (Filter(pod="web"), ["n1"]),
        (Filter(pod="x"), []),
    ],
)
def test_newest_stands_above(wanted: Filter, nodes: list[str]) -> None:
    """Events of agents and changes that the page saw are one list, filtered by node and pod."""
    page = history(KNOWN, wanted)
    assert [entry.node for entry in page.history] == nodes
    assert page.since == "2026-11-22T09:00:00Z"


def test_events_have_a_reason_and_what_was_seen_has_none() -> None:
    """Events of agents have a reason; changes that the page saw have none."""
    assert [(entry.reason, entry.namespace, entry.pod) for entry in history(KNOWN, Filter()).history] == [
        ("", "team", "db"),
        ("Pinned", "default", "web"),
        ("", "", ""),
    ]
