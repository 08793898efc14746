"""An upgrade replaces every part while pods run and are created, without interruption."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.cluster.reviews import Reviews
from tests.environments.cluster.cluster import AGENT, SYSTEM
from tests.environments.cluster.pods import user_pod
from tests.environments.node.node import EXCLUSIVE
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.cluster.cluster import Cluster


def test_replaced_webhook_misses_no_review(cluster: Cluster) -> None:
    """During a rolling update of both replicas every review is answered."""
    with Reviews(cluster) as reviews:
        cluster.restart(SYSTEM, "deployment/corepin-webhook")
        until_equal("the old ones are gone", lambda: len(cluster.pods_of("webhook")), 2)
    assert reviews.missed == []


def is_complete(status: Any) -> bool:
    """Return whether a container is pinned, and its status has the unpinned time, which the agent adds last."""
    return bool(status and status["pinned"]) and status["applied"].get("windowSeconds") is not None


def test_replaced_agent_leaves_containers_where_they_are(cluster: Cluster) -> None:
    """After `kubectl rollout restart` the new agent reads the checkpoint on the node, and no container moves."""
    pinned, bystander = cluster.run(user_pod("pinned", EXCLUSIVE, cpu="1"), user_pod("bystander"))
    until("all is told", lambda: is_complete(cluster.status("pinned")))
    cpus, status = pinned.cpus, cluster.status("pinned")
    cluster.restart(AGENT, "daemonset/corepin-agent")
    cluster.settled({pinned: cpus, bystander: cluster.all - cpus})
    assert cluster.status("pinned") == status
    cluster.annotate("pinned", "none")
    cluster.settled({pinned: cluster.all, bystander: cluster.all})
