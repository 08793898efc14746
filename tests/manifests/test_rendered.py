"""Rendered manifests: valid, restricted, and consistent with each other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

import agent.metrics
import certs.metrics
import webhook.metrics
from agent.dra.claim_metrics import ClaimMetrics
from agent.report.extended_resources import RESOURCES
from certs.material import MANAGED, PUBLISHED, ROTATE, SHOWN
from corepin.cli import build_parser
from corepin.node_file import read_node_file
from pinning.contract import (
    CMK_NODE_LABEL,
    CMK_TAINT_KEY,
    CPUMANAGER_LABELS,
    DEGRADED_CONDITION,
    KUBELET_CONDITION,
    NOISE_CONDITION,
    NOT_READY_TAINT_KEY,
    OVERCOMMIT_CONDITION,
    OVERCOMMIT_TAINT_KEY,
    PLUGIN_CONDITION,
    STATUS_POOLS,
    STATUS_TOPOLOGY,
)
from tests.manifests.rendered import (
    AGENT,
    INSTALLS,
    ROTATING,
    SYSTEM,
    Object,
    manifest,
    objects,
    parsed,
    renamed,
    text,
)
from webhook.config.mutations import load_mutations
from webhook.config.settings import load_settings

pytestmark = pytest.mark.server  # kubectl renders the manifests

EVERY = (*INSTALLS, "cmk-namespace")
# API versions that are stable, and not deprecated, in every Kubernetes version from 1.30 to 1.37.
STABLE = {
    "v1",
    "apps/v1",
    "policy/v1",
    "networking.k8s.io/v1",
    "rbac.authorization.k8s.io/v1",
    "admissionregistration.k8s.io/v1",
    "apiextensions.k8s.io/v1",
}


def values(it: Any, key: str) -> Iterator[Any]:
    """Yield every value of a key, at any depth."""
    if isinstance(it, dict):
        for name, value in it.items():
            if name == key:
                yield value
            yield from values(value, key)
    elif isinstance(it, list):
        for value in it:
            yield from values(value, key)


def pods(name: str) -> Iterator[tuple[Object, Object]]:
    """Yield each workload with the specification of its pods."""
    for it in objects(name):
        if it["kind"] in {"Deployment", "DaemonSet"}:
            yield it, it["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", EVERY)
def test_every_object_fits_its_schema(name: str) -> None:
    """The schemas of the oldest and newest API server accept every object."""
    for it in objects(name):
        if it["apiVersion"] in {"cert-manager.io/v1", "monitoring.coreos.com/v1"}:
            continue  # custom resources, which the tests' API server checks by their CRDs
        # Objects of components that need Kubernetes 1.36.
        is_claims = it["apiVersion"] == "resource.k8s.io/v1"
        assert is_claims or it["apiVersion"] in STABLE
        for version in ("1.37",) if is_claims else ("1.37", "1.30"):
            fits(json.dumps(it, sort_keys=True), version)


@cache
def fits(text: str, version: str) -> None:
    """Check an object by its schema; cached, because each check reads all schemas."""
    kubernetes_validate.validate(json.loads(text), version, strict=True)


@pytest.mark.parametrize("name", EVERY)
def test_no_certificate_is_in_a_manifest(name: str) -> None:
    """Manifests have no caBundle and no certificate, so that an `apply` never resets issued ones."""
    assert list(values(objects(name), "caBundle")) == []
    assert [
        it for it in objects(name) if it["kind"] == "Secret" and ({"data", "stringData"} & it.keys())
    ] == []


@pytest.mark.parametrize("name", INSTALLS)
def test_names_stand_in_one_place(name: str, tmp_path: Path) -> None:
    """Other namespaces in names.yaml replace the default ones everywhere."""
    shown = renamed(name, "one", "two", tmp_path)
    assert SYSTEM not in shown
    # our objects are named like the old namespace of the agents, so that one is looked for where namespaces stand
    every = parsed(shown)
    assert set(values(every, "namespace")) == {"one", "two"}
    assert [it["metadata"]["name"] for it in every if it["kind"] == "Namespace"] == ["one", "two"]
    assert AGENT not in [name for selector in values(every, "values") for name in selector]
    accounts = set(re.findall(r"system:serviceaccount:[a-z:-]+", shown))
    assert accounts <= {"system:serviceaccount:two:", "system:serviceaccount:one:"}
    assert f"{AGENT}/" not in shown


@pytest.mark.parametrize("name", INSTALLS)
def test_pods_have_no_more_rights_than_they_need(name: str) -> None:
    """No pod is privileged, all drop capabilities and have a read-only root; only the agent has capabilities."""
    agents = ["SYS_NICE", "SYS_PTRACE"] if name == "vm-probe" else ["SYS_NICE"]
    for it, pod in pods(name):
        (container,) = pod["containers"]
        security = container["securityContext"]
        on_nodes, is_agent = it["kind"] == "DaemonSet", container["name"] == "agent"
        assert not security.get("privileged")
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"]["drop"] == ["ALL"]
        assert security["capabilities"].get("add", []) == (agents if is_agent else [])
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["securityContext"].get("runAsNonRoot", False) is not on_nodes
        assert not pod.get("hostNetwork")
        assert not pod.get("hostIPC")
        assert bool(pod.get("hostPID")) is is_agent
        hosts = {volume["hostPath"]["path"] for volume in pod.get("volumes", []) if "hostPath" in volume}
        assert on_nodes or not hosts
        assert "/var/lib/kubelet" not in hosts  # the volumes of all pods


@pytest.mark.parametrize("name", INSTALLS)
def test_webhook_sees_the_pair_alone(name: str) -> None:
    """The webhook mounts a directory with certificate and key, but no CA key, and a token only if it watches nodes."""
    pod = manifest(name, "Deployment", "corepin-webhook")["spec"]["template"]["spec"]
    (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
    assert pod["automountServiceAccountToken"] is (name == "node-watch")
    assert secret["secretName"] == "corepin-webhook-tls"
    assert [item["key"] for item in secret["items"]] == ["tls.crt", "tls.key"]
    assert all("subPath" not in mount for mount in pod["containers"][0]["volumeMounts"])


def test_the_guard_stands_in_for_the_agent() -> None:
    """The guard has no token, no network and few mounts; an update starts the new pod before it stops the old one."""
    spec = manifest("guard", "DaemonSet", "corepin-guard")["spec"]
    pod = spec["template"]["spec"]
    agent_pod = manifest("guard", "DaemonSet", "corepin-agent")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert manifest("guard", "ServiceAccount", "corepin-guard")["automountServiceAccountToken"] is False
    assert [it for it in objects("guard") if "corepin-guard" in str(it.get("subjects"))] == []
    closed = manifest("guard", "NetworkPolicy", "corepin-guard")["spec"]
    assert closed["podSelector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert closed.keys() == {"podSelector", "policyTypes"}
    assert closed["policyTypes"] == ["Ingress", "Egress"]
    assert {it["hostPath"]["path"] for it in pod["volumes"] if "hostPath" in it} == {
        "/var/run/nri",
        "/var/lib/corepin",
        "/var/lib/kubelet/cpu_manager_state",
    }
    assert all(mount["readOnly"] for mount in pod["containers"][0]["volumeMounts"])
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "hostPort" not in pod["containers"][0]["ports"][0]
    for same in ("priorityClassName", "tolerations", "nodeSelector"):
        assert pod[same] == agent_pod[same]


@pytest.mark.parametrize("name", INSTALLS)
def test_every_reference_leads_somewhere(name: str) -> None:
    """Every ServiceAccount, ConfigMap, Service and label that an object references exists."""
    there = {(it["kind"], it["metadata"].get("namespace"), it["metadata"]["name"]) for it in objects(name)}
    labels = [it["spec"]["template"]["metadata"]["labels"] for it, _ in pods(name)]
    for it, pod in pods(name):
        space = it["metadata"]["namespace"]
        assert ("ServiceAccount", space, pod["serviceAccountName"]) in there
        assert it["spec"]["selector"]["matchLabels"] == it["spec"]["template"]["metadata"]["labels"]
        for volume in pod.get("volumes", []):
            if "configMap" in volume:
                assert ("ConfigMap", space, volume["configMap"]["name"]) in there
    for it in objects(name):
        for service in values(it, "service"):
            assert ("Service", service["namespace"], service["name"]) in there
        if it["kind"] == "Service":
            assert it["spec"]["selector"] in labels
        if it["kind"] == "PodDisruptionBudget":
            assert it["spec"]["selector"]["matchLabels"] in labels
        for reference in values(it, "roleRef"):
            assert (reference["kind"], it["metadata"].get("namespace"), reference["name"]) in there
        if it["kind"] == "ValidatingAdmissionPolicyBinding":
            assert ("ValidatingAdmissionPolicy", None, it["spec"]["policyName"]) in there


@pytest.mark.parametrize("name", INSTALLS)
def test_arguments_are_those_of_the_command(name: str) -> None:
    """The command accepts the arguments of every container."""
    for _, pod in pods(name):
        build_parser().parse_args(pod["containers"][0]["args"])


@pytest.mark.parametrize("name", INSTALLS)
def test_configuration_can_be_read(name: str, tmp_path: Path) -> None:
    """The programs accept the configurations in the ConfigMaps."""
    data = manifest(name, "ConfigMap", "corepin-webhook")["data"]
    load_settings(data["config.yaml"].encode())
    if "mutations.yaml" in data:
        load_mutations(data["mutations.yaml"].encode())
    file = tmp_path / "config.yaml"
    file.write_text(manifest(name, "ConfigMap", "corepin-agent")["data"]["config.yaml"])
    read_node_file(str(file))


@pytest.mark.parametrize("name", INSTALLS)
def test_failure_policies(name: str) -> None:
    """The failure policy for pods is Ignore, except in `hardened`; for workloads it is always Ignore."""
    strict = "Fail" if name == "hardened" else "Ignore"
    entries = [entry for kind in ("Mutating", "Validating") for entry in registered(name, kind)]
    assert {entry["name"]: entry["failurePolicy"] for entry in entries} == {
        "pods.mutate.corepin.io": strict,
        "pods.validate.corepin.io": strict,
        "kubevirt.validate.corepin.io": strict,
        "workloads.validate.corepin.io": "Ignore",
    }


def registered(name: str, kind: str) -> list[Object]:
    """Return the entries of a webhook configuration."""
    entries: list[Object] = manifest(name, f"{kind}WebhookConfiguration", "zz-corepin")["webhooks"]
    return entries


def test_webhooks_never_see_their_own_pods() -> None:
    """The webhooks exclude corepin's namespaces, so that corepin can always start."""
    for entry in (*registered("base", "Mutating"), *registered("base", "Validating")):
        (excluded,) = entry["namespaceSelector"]["matchExpressions"]
        assert excluded["key"] == "kubernetes.io/metadata.name"
        assert excluded["operator"] == "NotIn"
        assert {SYSTEM, AGENT, "kube-system", "kube-node-lease"} == set(excluded["values"])
        assert entry["sideEffects"] == "None"
        assert entry["timeoutSeconds"] == 2
        assert entry["clientConfig"]["service"]["path"] in {"/mutate", "/validate"}


API_SERVERS = {443, 6443, 8443, 16443}


@pytest.mark.parametrize(
    ("part", "open_to_all", "to_replicas"),
    [
        pytest.param("webhook", set(), [], id="webhook"),
        pytest.param("certs", {*API_SERVERS, 53, 5353}, ["reviews"], id="certs"),
        pytest.param("agent", {*API_SERVERS, 10250}, [], id="agent"),
    ],
)
def test_network_policies_allow_only_these_connections(
    part: str, open_to_all: set[int], to_replicas: list[str]
) -> None:
    """Egress is allowed to API servers; for the rotation also to DNS and replicas, for the agent to its kubelet."""
    spec = manifest("base", "NetworkPolicy", f"corepin-{part}")["spec"]
    rules = spec.get("egress", [])
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for rule in rules if "to" not in rule for port in rule["ports"]} == open_to_all
    assert [port["port"] for rule in rules if "to" in rule for port in rule["ports"]] == to_replicas


def test_policies_name_what_the_agent_writes() -> None:
    """The policy has exactly the annotations that the agent writes on nodes."""
    policy = manifest("base", "ValidatingAdmissionPolicy", "corepin-agent-nodes")["spec"]
    lists = {
        it["name"]: set(json.loads(it["expression"].replace("'", '"')))
        for it in policy["variables"]
        if it["expression"].startswith("['") and it["name"] != "free"
    }
    assert lists == {
        "notes": {STATUS_POOLS, STATUS_TOPOLOGY},
        "labels": {CMK_NODE_LABEL, *CPUMANAGER_LABELS},
        "taints": {CMK_TAINT_KEY, OVERCOMMIT_TAINT_KEY},
        "bornTaints": {NOT_READY_TAINT_KEY},
        "resources": set(RESOURCES),
        "conditions": {
            KUBELET_CONDITION,
            OVERCOMMIT_CONDITION,
            PLUGIN_CONDITION,
            DEGRADED_CONDITION,
            NOISE_CONDITION,
        },
    }


def test_policies_name_what_the_rotation_writes() -> None:
    """The policy has exactly the annotations that the rotation writes on its Secret."""
    policy = manifest("base", "ValidatingAdmissionPolicy", "corepin-certs-others")["spec"]
    (notes,) = [it["expression"] for it in policy["variables"] if it["name"] == "notes"]
    assert set(json.loads(notes.replace("'", '"'))) == {MANAGED, PUBLISHED, SHOWN, ROTATE}


def test_cmk_injects_what_the_examples_inject() -> None:
    """The overlay injects what CMK's two example files inject."""
    text = manifest("cmk", "ConfigMap", "corepin-webhook")["data"]["mutations.yaml"]
    shipped = load_mutations(text.encode())
    files = [Path(f"examples/cmk/mutations-{name}.yaml") for name in ("cluster-init", "resources")]
    first, second = (load_mutations(file.read_bytes()) for file in files)
    assert shipped.host_paths == first.host_paths | second.host_paths
    assert shipped.service_account == first.service_account
    assert shipped.per_container["env"] == first.per_container["env"]
    for mount in (*first.per_container["volumeMounts"], *second.per_container["volumeMounts"]):
        assert mount in shipped.per_container["volumeMounts"]
    pod = manifest("cmk", "DaemonSet", "corepin-agent")["spec"]["template"]["spec"]
    assert {"name": "COREPIN_TAINT", "value": "cmk"} in pod["containers"][0]["env"]
    (account,) = objects("cmk-namespace")
    assert account["metadata"]["name"] == shipped.service_account
    assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", INSTALLS)
def test_rotation_is_there_or_wholly_gone(name: str) -> None:
    """An overlay has either all objects of the rotation or none, so that no account has unused rights on Secrets."""
    kinds = sorted(it["kind"] for it in objects(name) if it["metadata"]["name"] == "corepin-certs")
    assert bool(kinds) is (name in ROTATING)
    assert ("corepin-certs" in text(name)) is (name in ROTATING)


def exposed() -> set[str]:
    """Return the names of all exposed metrics."""
    node = agent.metrics.Metrics()
    ClaimMetrics(node.registry)
    names = {
        f"{family.name}{suffix}"
        for registry in (
            webhook.metrics.Metrics().registry,
            node.registry,
            certs.metrics.Metrics().registry,
        )
        for family in registry.collect()
        for suffix in {"counter": ("_total",), "histogram": ("_bucket", "_sum")}.get(family.type, ("",))
    }
    return names | set(re.findall(r'"(corepin_webhook_\w+)"', Path("webhook/server/process.py").read_text()))


def test_alerts_ask_for_metrics_that_there_are() -> None:
    """Every metric in an alert exists, and every alert has a description."""
    (group,) = manifest("monitoring", "PrometheusRule", "corepin")["spec"]["groups"]
    for rule in group["rules"]:
        asked = set(re.findall(r"corepin_\w+", rule["expr"]))
        assert asked or rule["expr"].startswith("up{")
        assert asked <= exposed()
        assert rule["annotations"].keys() == {"summary", "description"}


def test_alert_about_absent_agents_selects_their_monitor() -> None:
    """`up` is selected by the operator's default job, NAMESPACE/NAME, and by a label that only agents' targets have."""
    (group,) = manifest("monitoring", "PrometheusRule", "corepin")["spec"]["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == "CorepinAgentAway"]
    job, label = re.findall(r'job=~"(.+)", (\w+)!=""', rule["expr"])[0]
    monitors = [it for it in objects("monitoring") if it["kind"] == "PodMonitor"]
    selected = [
        it["metadata"]["namespace"]
        for it in monitors
        if re.fullmatch(job, f"{it['metadata']['namespace']}/{it['metadata']['name']}")
        and label in json.dumps(it["spec"]["podMetricsEndpoints"])
    ]
    assert selected == [AGENT]


def test_dashboard_asks_for_metrics_that_there_are() -> None:
    """The dashboard is JSON, its panels query only exposed metrics, and no two have the same place."""
    dashboard = json.loads(manifest("monitoring", "ConfigMap", "corepin-dashboard")["data"]["corepin.json"])
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len(places)
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            asked = set(re.findall(r"corepin_\w+", target["expr"]))
            assert asked
            assert asked <= exposed()


def test_every_pod_is_scraped() -> None:
    """Each monitor finds pods in its namespace, by a port that they have."""
    monitors = {
        it["metadata"]["namespace"]: it["spec"] for it in objects("monitoring") if it["kind"] == "PodMonitor"
    }
    for it, pod in pods("monitoring"):
        spec = monitors[it["metadata"]["namespace"]]
        assert spec["selector"]["matchLabels"].items() <= it["spec"]["template"]["metadata"]["labels"].items()
        (endpoint,) = spec["podMetricsEndpoints"]
        assert endpoint["port"] in [port["name"] for port in pod["containers"][0]["ports"]]
