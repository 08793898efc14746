"""The webhook is unreachable, or requires a client certificate: failurePolicy decides about pods."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import httpx
import pytest
import trustme

from tests.e2e.conftest import DOWN, DOWN_OPEN, DOWN_SHUT, GUARDED, MUTE
from tests.environments.cluster.registered import Cluster, Registered, pod_document, wait_until
from tests.environments.cluster.registration import INSTANCE, MAIN, Instance, register
from tests.environments.process.webhook_process import WebhookProcess, corepin_webhook
from tests.environments.server.catalog import NEWEST
from tests.environments.server.start import start_servers
from tests.pods import CORES, CPU_MANAGER, container

POD = pod_document("it", container("main", {CORES: "1"}))
PLAIN = pod_document("plain")


def test_webhook_is_down_and_ignored(registered: Registered) -> None:
    """With failurePolicy Ignore a pod is stored without its injection, and without a warning."""
    cluster = registered.namespace({INSTANCE: DOWN_OPEN})
    stored = cluster.created(POD)
    assert "annotations" not in stored["metadata"]
    assert all("hostPath" not in volume for volume in stored["spec"]["volumes"])


def test_webhook_is_down_and_validation_must_be(registered: Registered) -> None:
    """With failurePolicy Fail for validation, pods that ask for CPUs are refused; others and workloads are stored."""
    cluster = registered.namespace({INSTANCE: DOWN})
    outcome = cluster.create(POD)
    assert 'failed calling webhook "pods.validate.corepin.io"' in outcome.stderr
    assert "connection refused" in outcome.stderr
    cluster.created(PLAIN)
    template = {"metadata": {"labels": {"app": "it"}}, "spec": POD["spec"]}
    spec = {"selector": {"matchLabels": {"app": "it"}}, "template": template}
    cluster.created({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "it"}, "spec": spec})


def test_webhook_is_down_and_everything_must_be(registered: Registered) -> None:
    """With failurePolicy Fail for both webhooks, as in `hardened`, pods that ask for CPUs are refused, others stored."""
    cluster = registered.namespace({INSTANCE: DOWN_SHUT})
    asking = pod_document("asks", container("main", "2"), annotations={CPU_MANAGER: "exclusive"})
    for pod in (POD, asking):
        outcome = cluster.create(pod)
        assert 'failed calling webhook "pods.mutate.corepin.io"' in outcome.stderr
        assert not cluster.exists("pod", pod["metadata"]["name"])
    cluster.created(PLAIN)
    outcome = cluster.run("annotate", "pod/plain", f"{CPU_MANAGER}=exclusive")
    assert 'failed calling webhook "pods.validate.corepin.io"' in outcome.stderr
    assert CPU_MANAGER not in cluster.stored("pod", "plain")["metadata"].get("annotations", {})


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_a_hanging_webhook_times_out(registered: Registered) -> None:
    """A webhook that does not respond within its timeout counts as unreachable."""
    cluster = registered.namespace({INSTANCE: MUTE})
    outcome = cluster.create(POD)
    assert 'failed calling webhook "pods.validate.corepin.io"' in outcome.stderr
    assert "?timeout=2s" in outcome.stderr
    assert not cluster.exists("pod", "it")
    cluster.created(PLAIN)


def test_call_without_a_certificate_is_refused(
    registered: Registered, webhooks: dict[str, WebhookProcess]
) -> None:
    """A webhook with --client-ca rejects an API server without a certificate: mutation is skipped, validation fails."""
    cluster = registered.namespace({INSTANCE: GUARDED})
    outcome = cluster.create(POD)
    assert 'failed calling webhook "pods.validate.corepin.io"' in outcome.stderr
    cluster.created(PLAIN)
    assert webhooks[GUARDED].reviews() == 0


@pytest.mark.server
def test_call_with_the_api_servers_certificate(tmp_path: Path) -> None:
    """An API server with a client certificate is served if --client-name accepts the certificate's name."""
    clients = trustme.CA()
    client_ca, certificate, key = (tmp_path / name for name in ("ca.crt", "client.crt", "client.key"))
    clients.cert_pem.write_to_path(client_ca)
    issued = clients.issue_cert("apiserver.example.org", common_name="kube-apiserver")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    with (
        corepin_webhook(
            tmp_path / "named", "--client-ca", str(client_ca), "--client-name", "kube-apiserver"
        ) as named,
        corepin_webhook(
            tmp_path / "other", "--client-ca", str(client_ca), "--client-name", "somebody"
        ) as other,
        start_servers(
            NEWEST,
            extra_flags=[
                f"--admission-control-config-file={admission_configuration(tmp_path, certificate, key)}"
            ],
        ) as api,
    ):
        instances = [
            Instance("other", other.url, other.ca_bundle),
            Instance(MAIN, named.url, named.ca_bundle),
        ]
        register(api, [document for instance in instances for document in instance.documents()])
        cluster = Registered(api, named).namespace()
        wait_until("pods are mutated", lambda: len(cluster.create(POD, "--dry-run=server").warnings) == 2)
        wait_until("pods are validated", lambda: dry_run_is_validated(cluster, named))
        stored = cluster.created(POD)
        assert stored["metadata"]["annotations"]["cmk.intel.com/resources-injected"] == "true"
        refused = Registered(api, other).namespace({INSTANCE: "other"})
        outcome = refused.create(POD)
        assert 'failed calling webhook "pods.validate.corepin.io"' in outcome.stderr
        assert other.reviews() == 0
        assert call_without_certificate(named) == "403 corepin: a client certificate is required\n"


def admission_configuration(directory: Path, certificate: Path, key: Path) -> Path:
    """Write an admission configuration with which the API server presents a client certificate to every webhook."""
    user = {"name": "*", "user": {"client-certificate": str(certificate), "client-key": str(key)}}
    kubeconfig = directory / "webhooks.kubeconfig"
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "users": [user]}))
    version = "apiserver.config.k8s.io/v1"
    shown = {
        "apiVersion": version,
        "kind": "WebhookAdmissionConfiguration",
        "kubeConfigFile": str(kubeconfig),
    }
    plugins = [
        {"name": name, "configuration": shown}
        for name in ("MutatingAdmissionWebhook", "ValidatingAdmissionWebhook")
    ]
    path = directory / "admission.yaml"
    path.write_text(json.dumps({"apiVersion": version, "kind": "AdmissionConfiguration", "plugins": plugins}))
    return path


def dry_run_is_validated(cluster: Cluster, webhook: WebhookProcess) -> bool:
    """Return whether a dry-run creation has reached the validating endpoint."""
    cluster.create(POD, "--dry-run=server")
    return webhook.reviews(endpoint="validate") > 0


def call_without_certificate(webhook: WebhookProcess) -> str:
    """Return status and body of the response to a client without a certificate."""
    context = ssl.create_default_context()
    webhook.authority.configure_trust(context)
    answer = httpx.post(f"{webhook.url}/mutate", json={}, verify=context, trust_env=False, timeout=60)
    return f"{answer.status_code} {answer.text}"
