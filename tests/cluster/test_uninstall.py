"""The end, as the operator guide says: nothing of corepin stays on the node, and pods run on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.pods import isolated, user_pod
from tests.manifests.guide import section, shell
from tests.node.node import EXCLUSIVE
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

KINDS = ("namespaces", "clusterroles", "clusterrolebindings", "validatingadmissionpolicies")


def ours(cluster: Cluster) -> list[str]:
    """Return what the node and its pods still tell of corepin."""
    documents = [cluster.document(), *cluster.pods()]
    metadata = [
        f"{part}: {key}"
        for document in documents
        for part in ("annotations", "labels")
        for key in document["metadata"].get(part) or ()
        if key.startswith(("status.corepin.io/", "cmk.intel.com/")) or key.endswith("cpumanager")
    ]
    status = documents[0]["status"]
    amounts = [
        name for part in ("capacity", "allocatable") for name, held in status[part].items() if held != "0"
    ]
    conditions = [condition["type"] for condition in status["conditions"]]
    return metadata + [name for name in (*amounts, *conditions) if "corepin" in name.lower() or "cmk" in name]


def test_uninstalled_as_the_guide_says(cluster: Cluster, tmp_path: Path) -> None:
    """Its commands leave no annotation, label, resource or object; containers have every CPU and were not restarted."""
    pinned, bystander = cluster.run(isolated("pinned"), user_pod("bystander"))
    until("told", lambda: (cluster.status("pinned") or {}).get("pinned"))
    assert ours(cluster)
    cluster.applied = None
    terminal = shell(cluster.plane.server, tmp_path)
    outputs = [
        terminal.run(block) for block in re.findall(r"```\w+\n(.*?)```", section("Uninstall"), re.DOTALL)
    ]
    assert any("successfully rolled out" in text for text in outputs)
    assert ours(cluster) == []
    cluster.settled({pinned: cluster.all, bystander: cluster.all})
    assert (cluster.running("pinned"), cluster.running("bystander")) == (pinned, bystander)
    selector = "--selector=app.kubernetes.io/name=corepin"
    until_equal("objects", lambda: cluster.kubectl("get", ",".join(KINDS), selector), "")
    [late] = cluster.run(user_pod("late", EXCLUSIVE, cpu="1"))
    assert late.cpus == cluster.all
