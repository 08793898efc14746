"""A whole rotation while pods are created: by the rotation's pod, the kubelet and the webhook's pods themselves."""

from __future__ import annotations

import base64
import json
import threading
from typing import TYPE_CHECKING, Any

import httpx

from tests.cluster.cluster import SYSTEM
from tests.cluster.pods import ISOLATED, isolated, limits_of
from tests.node.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

CONFIGURATIONS = "mutatingwebhookconfiguration,validatingwebhookconfiguration"


def bundles(cluster: Cluster) -> set[str]:
    """Return the different caBundles of all webhooks."""
    items = cluster.get(CONFIGURATIONS, "--selector=app.kubernetes.io/name=corepin")["items"]
    return {entry["clientConfig"].get("caBundle", "") for it in items for entry in it["webhooks"]}


def replicas(cluster: Cluster) -> set[tuple[str, int]]:
    """Return who the webhook's pods are, and how often each was restarted."""
    return {
        (one["metadata"]["uid"], status["restartCount"])
        for one in cluster.pods_of("webhook")
        for status in one["status"]["containerStatuses"]
    }


class Reviews(threading.Thread):
    """Has a pod reviewed again and again, and counts how often the webhook did not complete it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(daemon=True)
        self.cluster = cluster
        self.done = 0
        self.missed: list[Any] = []
        self.ended = threading.Event()

    def run(self) -> None:
        """Ask five times a second, without making anything."""
        with self.cluster.plane.server.client() as client:
            while not self.ended.wait(0.2):
                path = "/api/v1/namespaces/default/pods?dryRun=All"
                try:
                    answer = client.post(path, json=isolated("reviewed"), timeout=60).raise_for_status()
                    if ISOLATED not in limits_of(answer.json()):
                        self.missed.append(answer.text)
                except httpx.HTTPError as error:
                    self.missed.append(error)
                self.done += 1


def test_rotation_of_the_authority(cluster: Cluster) -> None:
    """A new CA comes, serves and is the only one at last; every review meanwhile is answered; nobody is restarted."""
    before, same = cluster.secret(), replicas(cluster)
    reviews = Reviews(cluster)
    reviews.start()
    try:
        secret = "secret/corepin-webhook-tls"
        cluster.kubectl("-n", SYSTEM, "annotate", secret, "certs.corepin.io/rotate=ca")
        until("a new CA", lambda: cluster.secret().get("ca.crt") != before["ca.crt"])
        cluster.kubectl("apply", "-f", "-", input=json.dumps(isolated("meanwhile")))
        assert bundles(cluster).isdisjoint({before["ca.crt"], cluster.secret()["ca.crt"]})  # both are in each
        until_equal("only the new", lambda: bundles(cluster), {cluster.secret()["ca.crt"]}, 180)
        until("pinned", lambda: (cluster.status("meanwhile") or {}).get("pinned"))
    finally:
        reviews.ended.set()
        reviews.join()
    after = cluster.secret()
    assert after["tls.crt"] != before["tls.crt"]
    assert base64.b64decode(after["ca.crt"]).count(b"BEGIN CERTIFICATE") == 1
    assert (reviews.missed, replicas(cluster)) == ([], same)
    assert reviews.done > 20
