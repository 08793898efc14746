"""The end, as the operator guide says: nothing of corepin stays on the node, and pods run on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cluster.removal import ours, uninstall
from tests.environments.cluster.pods import isolated, user_pod
from tests.environments.node.node import EXCLUSIVE
from tests.environments.waiting import until, until_equal
from tests.manifests.guide import shell

if TYPE_CHECKING:
    from pathlib import Path

    from tests.environments.cluster.cluster import Cluster

KINDS = ("namespaces", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies")


def test_uninstalled_as_the_guide_says(cluster: Cluster, tmp_path: Path) -> None:
    """The guide's commands leave no annotation, label, resource or object; containers get every CPU, not restarted."""
    pinned, bystander = cluster.run(isolated("pinned"), user_pod("bystander"))
    until("told", lambda: (cluster.status("pinned") or {}).get("pinned"))
    assert ours(cluster.document(), cluster.pods())
    outputs = uninstall(cluster, shell(cluster.plane.server, tmp_path))
    assert any("successfully rolled out" in text for text in outputs)
    assert ours(cluster.document(), cluster.pods()) == []
    cluster.settled({pinned: cluster.all, bystander: cluster.all})
    assert (cluster.running("pinned"), cluster.running("bystander")) == (pinned, bystander)
    selector = "--selector=app.kubernetes.io/name=corepin"
    until_equal("objects", lambda: cluster.kubectl("get", ",".join(KINDS), selector), "")
    [late] = cluster.run(user_pod("late", EXCLUSIVE, cpu="1"))
    assert late.cpus == cluster.all
