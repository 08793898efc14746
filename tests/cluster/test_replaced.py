"""An upgrade replaces every part while pods run and are created, without interruption."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.reviews import Reviews
from tests.environments.cluster.cluster import AGENT, SYSTEM
from tests.environments.cluster.pods import user_pod
from tests.environments.node.node import EXCLUSIVE
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.cluster.cluster import Cluster


def test_replaced_webhook_misses_no_review(cluster: Cluster) -> None:
    """While both replicas are replaced one after the other, every review is answered."""
    with Reviews(cluster) as reviews:
        cluster.restart(SYSTEM, "deployment/corepin-webhook")
        until_equal("the old ones are gone", lambda: len(cluster.pods_of("webhook")), 2)
    assert reviews.missed == []


def test_replaced_agent_leaves_containers_where_they_are(cluster: Cluster) -> None:
    """`kubectl rollout restart` gives the node another agent, which goes on from the checkpoint on the node."""
    pinned, bystander = cluster.run(user_pod("pinned", EXCLUSIVE, cpu="1"), user_pod("bystander"))
    until("told", lambda: (cluster.status("pinned") or {}).get("pinned"))
    cpus, status = pinned.cpus, cluster.status("pinned")
    cluster.restart(AGENT, "daemonset/corepin-agent")
    cluster.settled({pinned: cpus, bystander: cluster.all - cpus})
    assert cluster.status("pinned") == status
    cluster.annotate("pinned", "none")
    cluster.settled({pinned: cluster.all, bystander: cluster.all})
