"""The node of each pod, found by events and owners because the dashboard lists only metadata of pods."""

from __future__ import annotations

from typing import Any

from dashboard.model.cluster import homes_of
from tests.dashboard.clusters import a_pod, an_event, cluster
from tests.dashboard.documents import Document, event, grid, node, owner, pod, pools, refused

MACHINE = grid(1, 1, 1, 4)
EARLY, LATE = "2026-11-22T10:00:00Z", "2026-11-22T10:30:00Z"


def web(uid: str = "new") -> Document:
    """Return a waiting pod `web-0` with a uid; a StatefulSet reuses the name."""
    document = pod("web-0", {"main": refused()})
    return {**document, "metadata": {**document["metadata"], "uid": uid}}


def seen(on: str, uid: str = "", time: str = EARLY) -> Document:
    """Return an event about `web-0` from a node's agent."""
    document = event("web-0", "Unpinnable", "no room", on=on)
    involved = {**document["involvedObject"], **({"uid": uid} if uid else {})}
    return {**document, "involvedObject": involved, "lastTimestamp": time}


def home(*events: Document, known: Any = None, before: Document | None = None) -> str | None:
    """Return the node of `web-0` according to events, known nodes and the pod's earlier version."""
    pods, older = {"default/web-0": a_pod(web())}, {"default/web-0": a_pod(before)} if before else {}
    return homes_of(pods, map(an_event, events), known or {}, older).get("default/web-0")


def test_events_of_another_pod_of_the_name_tell_nothing() -> None:
    """Events of a deleted pod, which last for an hour, do not apply to a new pod of its name."""
    assert home(seen("new", "new", EARLY), seen("old", "old", LATE)) == "new"
    assert home(seen("old", "old", LATE)) is None


def test_newest_event_tells_in_whatever_order_they_are_listed() -> None:
    """Among events without the uid of their pod the newest one decides, whatever their order in a list."""
    assert home(seen("new", time=LATE), seen("old", time=EARLY)) == "new"
    assert home(seen("old", time=EARLY), seen("new", time=LATE)) == "new"
    assert home(seen("")) is None


def test_home_outlives_its_events_and_not_its_pod() -> None:
    """The node stays known after its events have expired, until a pod with another uid replaces the pod."""
    known = {"default/web-0": "n", "default/gone": "n"}
    assert home(known=known, before=web()) == "n"
    assert home(known=known, before=web("old")) is None
    assert home(known=known) is None


def test_owners_that_a_dead_node_keeps_do_not_claim_the_pod() -> None:
    """If two nodes publish an owner with the same name, the pod is on the node that its events name."""
    sets = pools(MACHINE, {"default/web-0/main": owner("1")})
    nodes = [node("a", MACHINE, sets), node("b", MACHINE, sets), node("c")]
    for there in "ab":
        assert cluster(*nodes, web(), seen(there, "new")).node_of == {"default/web-0": there}
    assert cluster(*nodes, web(), seen("c", "new")).node_of == {"default/web-0": "a"}
    assert cluster(*nodes, web()).node_of == {"default/web-0": "a"}
