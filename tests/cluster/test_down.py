"""While no webhook answers the failure policy decides, and nothing unpinned is called pinned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.cluster.pods import ISOLATED, isolated, limits_of, user_pod
from tests.node.node import EXCLUSIVE
from tests.node.test_reports import events
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster


def test_pods_start_without_a_webhook(cluster: Cluster) -> None:
    """With `Ignore` a pod starts without what the webhook adds; what did not fit is told as not pinned."""
    cluster.apply_overlay("base", replicas=0)
    try:
        pinned, greedy = cluster.run(
            isolated("pinned"), user_pod("greedy", EXCLUSIVE, cpu=str(cluster.cores))
        )
        assert ISOLATED not in limits_of(cluster.pod("pinned"))
        until("pinned is told", lambda: (cluster.status("pinned") or {}).get("pinned"))
        until_equal("own CPU", lambda: len(pinned.cpus), 1)
        until("refusal is told", lambda: (cluster.status("greedy") or {}).get("refusal"))
        assert cluster.status("greedy")["pinned"] is False
        assert until("event", lambda: events(cluster, "greedy").get("Unpinnable"))
        cluster.settled({pinned: pinned.cpus, greedy: cluster.all - pinned.cpus})
    finally:
        cluster.apply_overlay("base")
    until("reviews are answered", cluster.is_reviewed)


def test_hardened_refuses_without_a_webhook(cluster: Cluster) -> None:
    """With `Fail` such pods are refused and others start; when the webhook is back, both do."""
    cluster.apply_overlay("hardened", replicas=0)
    try:
        done = cluster.plane.server.kubectl(
            "create", "-f", "-", input=json.dumps(isolated("one")), check=False
        )
        assert "failed calling webhook" in done.stderr
        cluster.run(user_pod("plain"))
    finally:
        cluster.apply_overlay("hardened")
    until("reviews are answered", cluster.is_reviewed)
    [one] = cluster.run(isolated("one"))
    until_equal("own CPU", lambda: len(one.cpus), 1)
    cluster.apply_overlay("base")
