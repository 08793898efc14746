"""The page of all nodes: order, sums and filters."""

from __future__ import annotations

import pytest

from dashboard.model.cluster import Cluster
from dashboard.view import nodes
from dashboard.view.filters import Filter
from dashboard.view.nodes import overview
from tests.dashboard.clusters import cluster
from tests.dashboard.documents import container, event, grid, node, owner, pod, pools, refused

MACHINE = grid(1, 1, 1, 8)


@pytest.fixture(scope="module")
def known() -> Cluster:
    """Return a cluster with a node in each state."""
    owners = {"default/web/main": owner("1,9", smt="require"), "team/db/main": owner("2,10", policy="share")}
    return cluster(
        node("n10", MACHINE, pools(MACHINE, owners)),
        node("n9", MACHINE),
        node("n2", MACHINE, pools(MACHINE, {"default/well/main": owner("1")})),
        pod("well", {"main": container("1")}),
        node("silent"),
        node("seeing", MACHINE, pools(MACHINE, observes=True)),
        node("broken", MACHINE, {"x": 1}),
        node("full", MACHINE, pools(MACHINE, observes=True)),
        node("drifting", MACHINE, pools(MACHINE, {"default/far/main": owner("3")})),
        pod("web", {"main": container("1,9")}),
        pod("far", {"main": container("3", drift=True), "side": container("4", intruders=["a/b/c"])}),
        pod("big", {"main": refused()}),
        event("big", "Unpinnable", "text", on="full"),
    )


def test_nodes_with_problems_are_first(known: Cluster) -> None:
    """Nodes are sorted by need: problems, waiting, not proven, observing, well, and without an agent."""
    rows = overview(known, Filter()).rows
    assert [(row.name, row.health) for row in rows] == [
        ("broken", "trouble"),
        ("drifting", "trouble"),
        ("full", "waiting"),
        ("n10", "pending"),
        ("seeing", "observes"),
        ("n2", "ok"),
        ("n9", "ok"),
        ("silent", "silent"),
    ]
    notes = {row.name: row.notes for row in rows}
    assert notes["drifting"] == ("2 containers outside of the assigned CPUs, or with other tasks there",)
    assert notes["full"] == ("1 pod waiting for CPUs", nodes.OBSERVES_WORDS)
    assert notes["n10"] == ("1 container not proven yet",)
    assert notes["silent"] == (nodes.SILENT_WORDS,)


def test_node_says_how_many_claims_the_scheduler_does_not_count() -> None:
    """A node counts its uncounted claims that hold CPUs; a refused claim is listed as waiting instead."""
    said = {"uncounted": "it requests 0 corepin.io/isolated-cores"}
    known = cluster(
        node("n", MACHINE, pools(MACHINE, {"default/web/main": owner("1"), "default/web/side": owner("2")})),
        pod("web", {"main": container("1") | said, "side": container("2"), "late": refused() | said}),
        pod("asks", annotations={"cpu-manager.corepin.io/pod": "exclusive"}),
    )
    (row,) = overview(known, Filter()).rows
    assert row.health == "trouble"
    assert row.notes == ("1 container whose cores the scheduler does not count", "1 pod waiting for CPUs")


def test_container_whose_tasks_are_not_all_looked_at_is_not_proven() -> None:
    """A container with unread tasks counts as not proven, although the kernel confirmed its cpuset."""
    said = container("1") | {"notProven": "too many cgroups"}
    home = node("n", MACHINE, pools(MACHINE, {"default/web/main": owner("1")}))
    (row,) = overview(cluster(home, pod("web", {"main": said})), Filter()).rows
    assert (row.health, row.notes) == ("pending", ("1 container not proven yet",))


def test_sums_are_those_of_the_rows(known: Cluster) -> None:
    """A filter changes the rows, but not the totals, which are the sums of all rows."""
    everything, some = overview(known, Filter()), overview(known, Filter(node="n1"))
    totals = everything.totals
    assert some.totals == totals
    assert totals.cpus == sum(row.cpus for row in everything.rows) == 6 * 16
    assert totals.free == sum(row.free for row in everything.rows)
    assert totals.owners == sum(row.owners for row in everything.rows) == 4
    assert (totals.nodes, totals.reporting, totals.waiting, totals.troubled) == (8, 6, 1, 2)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (Filter(node="n1"), ["n10"]),
        (Filter(namespace="team"), ["n10"]),
        (Filter(pod="big"), ["full"]),
        (Filter(pod="eb"), ["n10"]),
        (Filter(policy="require"), ["n10"]),
        (Filter(policy="share", namespace="default"), []),
        (Filter(policy="prefer", pod="far"), ["drifting"]),
    ],
)
def test_filter_leaves_the_nodes_that_have_such_containers(
    known: Cluster, wanted: Filter, names: list[str]
) -> None:
    """The filter combines the name of a node, a namespace, a pod and a policy."""
    assert [row.name for row in overview(known, wanted).rows] == names


def test_matching_containers_are_counted(known: Cluster) -> None:
    """The number includes containers that hold CPUs, and pods that wait for CPUs."""
    assert [row.matches for row in overview(known, Filter(namespace="default")).rows] == [1, 1, 1, 1]


def test_rows_have_an_end(known: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of nodes has a limit, with the number of the others."""
    monkeypatch.setattr(nodes, "MOST", 2)
    page = overview(known, Filter())
    assert (len(page.rows), page.more) == (2, 6)
