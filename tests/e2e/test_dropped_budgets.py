"""API servers that drop `spec.resources`: one of 1.37 whose feature gate is off, and one that does not know the field."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from pinning.contract import ISOLATED_CORES, POD_BUDGET
from tests.e2e.conftest import MESHED
from tests.environments.cluster.neighbours import add_sidecar, serve_neighbours
from tests.environments.cluster.registered import Cluster, Registered, pod_document, wait_until
from tests.environments.cluster.registration import MAIN, Instance, neighbour, register
from tests.environments.process.webhook_process import WebhookProcess
from tests.environments.server.catalog import NEWEST, OLDEST
from tests.environments.server.start import start_servers
from tests.pods import CPU_MANAGER, SMT, container

# The feature gate, and the gates that depend on it.
GATES = (
    "PodLevelResources",
    "InPlacePodLevelResourcesVerticalScaling",
    "PodLevelResourcesFixDefaulting",
    "PodLevelResourcesFixKubeletQOSClass",
)


def budgeted(**annotations: str) -> dict[str, Any]:
    """Return a pod with a budget of 4 CPUs and a container with a limit of 2."""
    pod = pod_document("it", container("main", "2"), container("log"), annotations=annotations)
    pod["spec"]["resources"] = {kind: {"cpu": "4"} for kind in ("limits", "requests")}
    return pod


@contextmanager
def without_the_gate(webhook: WebhookProcess) -> Iterator[Registered]:
    """Run an API server without PodLevelResources, with corepin registered."""
    gates = ",".join(f"{gate}=false" for gate in GATES)
    with (
        serve_neighbours({"/sidecar": add_sidecar}) as mesh,
        start_servers(NEWEST, extra_flags=[f"--feature-gates={gates}"]) as api,
    ):
        sidecar = neighbour("zzz-sidecar", f"{mesh.url}/sidecar", mesh.ca_bundle, MESHED)
        register(api, [sidecar, *Instance(MAIN, webhook.url, webhook.ca_bundle).documents()])
        registered = Registered(api, webhook)
        probe = registered.namespace()
        wrong = pod_document("probe", annotations={CPU_MANAGER: "wrong"})
        wait_until("pods are validated", lambda: probe.create(wrong, "--dry-run=server").is_refused)
        counted = pod_document("probe", container(limits="2"), annotations={SMT: "isolate"})
        wait_until(
            "pods are mutated",
            lambda: ISOLATED_CORES in probe.create(counted, "--dry-run=server", "-o=json").stdout,
        )
        yield registered


def judge(cluster: Cluster) -> None:
    """Check warning, stored budget and refusal of pods whose budget the API server drops."""
    outcome = cluster.create(budgeted(**{CPU_MANAGER: "exclusive"}))
    assert not outcome.is_refused, outcome.stderr
    assert "spec.resources" in outcome.warned_fields, outcome.stderr
    stored = cluster.stored("pod", "it")
    assert "resources" not in stored["spec"]
    assert stored["metadata"]["annotations"][POD_BUDGET] == "4"
    outcome = cluster.create(budgeted(**{SMT: "isolate"}))
    assert outcome.fields == ["spec.containers[1].resources.requests[corepin.io/isolated-cores]"], (
        outcome.stderr
    )
    assert "PodLevelResources is off" in outcome.stderr


@pytest.mark.server
def test_a_budget_that_the_api_server_drops_is_reported(webhooks: dict[str, WebhookProcess]) -> None:
    """A dropped budget is a warning, also if a webhook adds a sidecar and corepin is called twice."""
    with without_the_gate(webhooks[MAIN]) as registered:
        judge(registered.namespace())
        judge(registered.namespace({MESHED: ""}))


@pytest.mark.parametrize("apiserver", [OLDEST], indirect=True)
def test_a_server_that_does_not_know_the_field_shows_it_to_no_webhook(cluster: Cluster) -> None:
    """Kubernetes 1.30 reports the unknown field itself and shows webhooks no budget, so corepin does not warn."""
    pod = budgeted(**{CPU_MANAGER: "exclusive"})
    outcome = cluster.create(pod)
    assert outcome.is_refused
    assert 'unknown field "spec.resources"' in outcome.stderr
    outcome = cluster.create(pod, "--validate=warn")
    assert not outcome.is_refused
    assert 'unknown field "spec.resources"' in outcome.stderr
    assert "spec.resources" not in outcome.warned_fields
    assert POD_BUDGET not in cluster.stored("pod", "it")["metadata"]["annotations"]
