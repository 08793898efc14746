"""A whole rotation while pods are created: by the rotation's pod, the kubelet and the webhook's pods themselves."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

from tests.cluster.reviews import Reviews
from tests.environments.cluster.cluster import SYSTEM
from tests.environments.cluster.pods import isolated
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.cluster.cluster import Cluster

CONFIGURATIONS = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    for kind in ("mutating", "validating")
]


def bundles(cluster: Cluster) -> set[str]:
    """Return the different caBundles of all webhooks."""
    selector = "app.kubernetes.io/name=corepin"
    found = [cluster.plane.read(path, labelSelector=selector)["items"] for path in CONFIGURATIONS]
    return {
        entry["clientConfig"].get("caBundle", "")
        for items in found
        for it in items
        for entry in it["webhooks"]
    }


def replicas(cluster: Cluster) -> set[tuple[str, int]]:
    """Return the names of the webhook's pods with their restart counts."""
    return {
        (pod["metadata"]["uid"], status["restartCount"])
        for pod in cluster.pods_of("webhook")
        for status in pod["status"]["containerStatuses"]
    }


def test_rotation_of_the_authority(cluster: Cluster) -> None:
    """A new CA replaces the old one while reviews go on, and no process restarts."""
    before, same = cluster.secret(), replicas(cluster)
    with Reviews(cluster) as reviews:
        secret = "secret/corepin-webhook-tls"
        cluster.kubectl("-n", SYSTEM, "annotate", secret, "certs.corepin.io/rotate=ca")
        until("a new CA", lambda: cluster.secret().get("ca.crt") != before["ca.crt"])
        cluster.kubectl("apply", "-f", "-", input=json.dumps(isolated("meanwhile")))
        until_equal("only the new", lambda: bundles(cluster), {cluster.secret()["ca.crt"]}, 180)
        until("pinned", lambda: (cluster.status("meanwhile") or {}).get("pinned"))
    after = cluster.secret()
    assert after["tls.crt"] != before["tls.crt"]
    assert base64.b64decode(after["ca.crt"]).count(b"BEGIN CERTIFICATE") == 1
    assert (reviews.missed, replicas(cluster)) == ([], same)
