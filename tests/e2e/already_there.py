"""Pods that were stored before corepin was installed, with values that it would refuse."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.environments.cluster.registered import pod_document
from tests.pods import CORES, DEDICATED, LAUNCHER, container

if TYPE_CHECKING:
    from tests.environments.server.apiserver import ApiServer

NAMESPACE = "before-corepin"
WRONG_WORD, NOT_INJECTED, LEAVING, NOT_GUARANTEED = "wrong-word", "not-injected", "leaving", "not-guaranteed"
CRANE = "qos.gocrane.io/cpu-manager"


def create(api: ApiServer) -> None:
    """Create the pods, before any webhook is registered."""
    leaving = pod_document(LEAVING, annotations={CRANE: "wrong"})
    leaving["metadata"]["finalizers"] = ["example.org/wait"]
    documents = [
        pod_document(WRONG_WORD, annotations={CRANE: "wrong"}),
        pod_document(NOT_INJECTED, container("main", {CORES: "1"})),
        pod_document(NOT_GUARANTEED, container("compute", "2"), labels=LAUNCHER, nodeSelector=DEDICATED),
        leaving,
    ]
    api.create_namespace(NAMESPACE)
    api.kubectl("create", "-n", NAMESPACE, "-f", "-", input="\n---\n".join(map(json.dumps, documents)))
