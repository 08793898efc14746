"""Without a running webhook the failure policy decides, and no unpinned pod is reported as pinned."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.environments.cluster.pods import ISOLATED, isolated, limits_of, user_pod
from tests.environments.node.events import events
from tests.environments.node.node import EXCLUSIVE
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.cluster.cluster import Cluster


CORES_NUMBER = "CMK_NUM_CORES"  # variable that the webhook adds to such a pod


def test_pods_start_without_a_webhook(any_cluster: Cluster) -> None:
    """With `Ignore` a pod starts without the webhook's additions; a claim that does not fit is not pinned."""
    cluster = any_cluster
    cluster.install(replicas=0)
    cluster.wait_for_cores()
    [pinned] = cluster.run(user_pod("pinned", cores=cluster.cores))
    assert CORES_NUMBER not in str(cluster.pod("pinned"))
    until("pinned is told", lambda: (cluster.status("pinned") or {}).get("pinned"))
    [late] = cluster.run(user_pod("late", EXCLUSIVE, cpu="1"))
    until("refusal is told", lambda: (cluster.status("late") or {}).get("refusal"))
    assert cluster.status("late")["pinned"] is False
    assert until("event", lambda: events(cluster, "late").get("Unpinnable"))
    cluster.settled({pinned: pinned.cpus, late: cluster.all - pinned.cpus})


def test_hardened_refuses_without_a_webhook(any_cluster: Cluster) -> None:
    """With `Fail` pods that ask for CPUs are refused, and others start."""
    cluster = any_cluster
    cluster.install("hardened", replicas=0)
    refused = cluster.plane.server.kubectl(
        "create", "-f", "-", input=json.dumps(isolated("one")), check=False
    )
    assert "failed calling webhook" in refused.stderr
    cluster.run(user_pod("plain"))


def test_hardened_works_with_a_webhook(any_cluster: Cluster) -> None:
    """As soon as the webhook is there, pods that ask for CPUs are created, completed and pinned."""
    cluster = any_cluster
    cluster.install("hardened")
    cluster.wait_for_cores()
    [container] = cluster.run(isolated("one"))
    assert ISOLATED in limits_of(cluster.pod("one"))
    until_equal("own CPU", lambda: len(container.cpus), 1)
