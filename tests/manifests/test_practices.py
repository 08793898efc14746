"""Availability of admission during rollouts, drains and upgrades."""

from __future__ import annotations

import pytest

from pinning.contract import CMK_TAINT_KEY, NOT_READY_TAINT_KEY, OVERCOMMIT_TAINT_KEY
from tests.manifests.rendered import INSTALLS, Object, manifest, objects
from webhook.server.listener import Limits

pytestmark = pytest.mark.server  # kubectl renders the manifests

# API servers keep using open connections until they see that the endpoint was removed (kubernetes #127335).
LEAVING_SECONDS = 10


def webhook(name: str) -> Object:
    """Return the specification of the webhook's Deployment."""
    spec: Object = manifest(name, "Deployment", "corepin-webhook")["spec"]
    return spec


@pytest.mark.parametrize("name", INSTALLS)
def test_replicas_are_drained_before_they_are_killed(name: str) -> None:
    """A preStop sleep keeps a replica serving until API servers see its removal; the grace period covers the drain."""
    pod = webhook(name)["template"]["spec"]
    sleep = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    limits = Limits()
    assert sleep >= LEAVING_SECONDS
    draining = limits.linger_seconds + limits.grace_seconds + limits.tls_close_seconds
    assert pod["terminationGracePeriodSeconds"] > sleep + draining


@pytest.mark.parametrize("name", INSTALLS)
def test_a_replica_is_always_there(name: str) -> None:
    """Rollouts and drains leave at least one replica."""
    spec = webhook(name)
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert manifest(name, "PodDisruptionBudget", "corepin-webhook")["spec"]["minAvailable"] < spec["replicas"]


@pytest.mark.parametrize("name", INSTALLS)
def test_replicas_come_up_anywhere(name: str) -> None:
    """Replicas tolerate corepin's taints, have priority, and are spread over nodes where possible."""
    pod = webhook(name)["template"]["spec"]
    tolerated = {it["key"] for it in pod["tolerations"] if it["operator"] == "Exists" and "effect" not in it}
    assert {CMK_TAINT_KEY, NOT_READY_TAINT_KEY, OVERCOMMIT_TAINT_KEY} <= tolerated
    spread = {it["topologyKey"]: it["whenUnsatisfiable"] for it in pod["topologySpreadConstraints"]}
    anyway = "ScheduleAnyway"
    assert spread == {"kubernetes.io/hostname": anyway, "topology.kubernetes.io/zone": anyway}
    assert pod["priorityClassName"] == "system-cluster-critical"


@pytest.mark.parametrize("name", INSTALLS)
def test_nothing_is_placed_on_windows(name: str) -> None:
    """Every workload selects Linux nodes, since pods on Windows nodes would fail."""
    workloads = [it for it in objects(name) if it["kind"] in {"Deployment", "DaemonSet"}]
    assert len(workloads) >= 2
    for it in workloads:
        assert it["spec"]["template"]["spec"]["nodeSelector"] == {"kubernetes.io/os": "linux"}


@pytest.mark.parametrize("name", INSTALLS)
def test_admission_is_asked_last(name: str) -> None:
    """The webhook configurations are applied last, so that the webhook runs before it is called."""
    kinds = [it["kind"] for it in objects(name)]
    assert kinds[-2:] == ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"]


@pytest.mark.parametrize("name", INSTALLS)
def test_other_versions_of_an_api_are_seen(name: str) -> None:
    """Requests by another version of an API are matched too (matchPolicy Equivalent)."""
    for kind in ("Mutating", "Validating"):
        for entry in manifest(name, f"{kind}WebhookConfiguration", "zz-corepin")["webhooks"]:
            assert entry.get("matchPolicy", "Equivalent") == "Equivalent"
