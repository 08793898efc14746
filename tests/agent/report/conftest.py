"""A node on a real kube-apiserver for each test that needs one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest

from tests.agent.report.real_cluster import Cluster
from tests.environments.server.apiserver import ApiServer

_numbers = count(1)


@pytest.fixture
def cluster(apiserver: ApiServer, namespace: str) -> Iterator[Cluster]:
    """Return a cluster with a node that has a label and a taint of another program."""
    name = f"report-{next(_numbers)}"
    taints = [
        {"key": "others", "value": "1", "effect": "NoSchedule"},
        {"key": "corepin.io/agent-not-ready", "effect": "NoSchedule"},
    ]
    metadata = {"name": name, "labels": {"other": "label"}, "annotations": {"other": "annotation"}}
    document = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}}
    apiserver.kubectl("create", "-f", "-", input=json.dumps(document))
    cluster = Cluster(apiserver, namespace, name)
    cluster.patch_status(
        capacity={"cpu": "8"},
        allocatable={"cpu": "7"},
        conditions=[{"type": "Ready", "status": "True", "reason": "x", "message": "y"}],
    )
    yield cluster
    apiserver.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force", check=False)
    apiserver.kubectl("delete", "node", name)
