"""Values of the Helm chart for operators, with the fields of the rendered manifests that each decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

BASE = "base"
OVERLAYS = frozenset(
    {
        BASE,
        "hardened",
        "cert-manager",
        "own-certificate",
        "cmk",
        "observe",
        "monitoring",
        "node-watch",
        "nri",
        "vm-probe",
        "quiet",
        "quiet-power",
        "priority-quota",
        "counted",
        "guard",
        "dashboard",
        "numa-scheduling",
        "near-cpus",
        "dra",
        "near-dra",
        "dra-cpu-class",
        "claim-limits",
    }
)

# Conditions of the chart for parts that only these overlays have.
WHEN = {
    frozenset({"cert-manager"}): 'eq .Values.certificates "cert-manager"',
    OVERLAYS - {"cert-manager", "own-certificate"}: 'eq .Values.certificates "corepin-certs"',
    frozenset({"monitoring"}): ".Values.monitoring.enabled",
    frozenset({"node-watch"}): ".Values.webhook.watchNodes",
    frozenset({"nri", "guard", "dra"}): ".Values.agent.nri",
    frozenset({"dra"}): ".Values.agent.dra",
    frozenset({"near-dra"}): ".Values.agent.nearDra",
    frozenset({"dra-cpu-class"}): ".Values.claims.cpuClass",
    frozenset({"claim-limits"}): ".Values.claims.limits",
    frozenset({"vm-probe"}): ".Values.agent.vmProbe",
    frozenset({"quiet", "quiet-power"}): ".Values.agent.quiet",
    frozenset({"quiet-power"}): ".Values.agent.quietPower",
    frozenset({"priority-quota"}): ".Values.priorityQuota",
    frozenset({"counted"}): ".Values.counted",
    frozenset({"guard"}): ".Values.guard.enabled",
    frozenset({"numa-scheduling"}): ".Values.agent.nodeTopology",
    frozenset({"near-cpus"}): ".Values.agent.nearCPUs",
    frozenset({"cmk"}): ".Values.agent.cmk",
    frozenset({"dashboard"}): ".Values.dashboard.enabled",
}
# Values that make these conditions true. Other values of an overlay are derived from its fields.
SWITCHES: dict[str, dict[str, Any]] = {
    "cert-manager": {"certificates": "cert-manager"},
    "own-certificate": {"certificates": "own-certificate"},
    "monitoring": {"monitoring.enabled": True},
    "nri": {"agent.nri": True},
    "vm-probe": {"agent.vmProbe": True},
    "quiet": {"agent.quiet": True},
    "quiet-power": {"agent.quiet": True, "agent.quietPower": True},
    "priority-quota": {"priorityQuota": True},
    "counted": {"counted": True},
    "guard": {"guard.enabled": True, "agent.nri": True},
    "numa-scheduling": {"agent.nodeTopology": True},
    "near-cpus": {"agent.nearCPUs": True},
    "cmk": {"agent.cmk": True},
    "dra": {"agent.dra": True, "agent.nri": True},
    "near-dra": {"agent.nearDra": True},
    "dra-cpu-class": {"claims.cpuClass": True},
    "claim-limits": {"claims.limits": True},
    "dashboard": {"dashboard.enabled": True},
}


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an object that a value decides."""

    kind: str
    name: str
    path: str  # like a JSON Pointer; list items by name or index
    value: str = ""  # the value, used unchanged
    expression: str = ""  # or an expression of values
    is_optional: bool = False  # omitted if the value is empty

    @property
    def template(self) -> str:
        """Return the expression of a Helm template."""
        return self.expression or f".Values.{self.value}"


def _workload(kind: str, part: str) -> tuple[Field, ...]:
    """Return the fields of any workload that operators set."""
    name, pod = f"corepin-{part}", "spec/template/spec"
    container = f"{pod}/containers/{part}"
    return (
        Field(kind, name, f"{container}/image", expression='include "corepin.image" .'),
        Field(kind, name, f"{container}/imagePullPolicy", "image.pullPolicy"),
        Field(kind, name, f"{pod}/imagePullSecrets", "imagePullSecrets", is_optional=True),
        Field(kind, name, f"{container}/resources", f"{part}.resources"),
        Field(kind, name, f"{pod}/nodeSelector", f"{part}.nodeSelector", is_optional=True),
        Field(kind, name, f"{pod}/tolerations", f"{part}.tolerations"),
    )


def _agent(path: str, value: str = "", expression: str = "", *, is_optional: bool = False) -> Field:
    return Field("DaemonSet", "corepin-agent", f"spec/template/spec/{path}", value, expression, is_optional)


def _fails(kind: str, entry: str) -> Field:
    path = f"webhooks/{entry}/failurePolicy"
    return Field(f"{kind}WebhookConfiguration", "zz-corepin", path, "failurePolicy")


def _scraped(part: str, rule: int) -> Field:
    path = f"spec/ingress/{rule}/from/0/namespaceSelector/matchLabels/kubernetes.io~1metadata.name"
    return Field("NetworkPolicy", f"corepin-{part}", path, "monitoring.namespace")


CAPABILITIES = 'ternary (list "SYS_NICE" "SYS_PTRACE") (list "SYS_NICE") .Values.agent.vmProbe'

FIELDS = (
    *_workload("Deployment", "webhook"),
    *_workload("Deployment", "certs"),
    *_workload("DaemonSet", "agent"),
    *_workload("DaemonSet", "guard"),
    *_workload("Deployment", "dashboard"),
    Field("Deployment", "corepin-webhook", "spec/replicas", "webhook.replicas"),
    Field(
        "Deployment",
        "corepin-webhook",
        "spec/template/spec/automountServiceAccountToken",
        "webhook.watchNodes",
    ),
    Field("ConfigMap", "corepin-webhook", "data/config.yaml", "webhook.config"),
    Field("ConfigMap", "corepin-webhook", "data/mutations.yaml", "webhook.mutations", is_optional=True),
    Field("ConfigMap", "corepin-agent", "data/config.yaml", "agent.config"),
    _agent("containers/agent/env/COREPIN_FEATURE_GATES/value", "agent.featureGates"),
    _agent("containers/agent/env/COREPIN_TAINT/value", "agent.taint", is_optional=True),
    _agent("containers/agent/env/COREPIN_KUBELET_CONFIGZ/value", "agent.kubeletConfigz"),
    _agent("containers/agent/env/COREPIN_KUBELET_CGROUP_ROOT/value", "agent.kubeletCgroupRoot"),
    _agent("containers/agent/env/COREPIN_RUNTIME_ENDPOINT/value", "agent.runtimeSocket"),
    _agent("containers/agent/securityContext/capabilities/add", expression=CAPABILITIES),
    _agent("containers/agent/volumeMounts/runtime/mountPath", expression="dir .Values.agent.runtimeSocket"),
    _agent("volumes/runtime/hostPath/path", expression="dir .Values.agent.runtimeSocket"),
    _fails("Mutating", "pods.mutate.corepin.io"),
    _fails("Validating", "pods.validate.corepin.io"),
    _fails("Validating", "kubevirt.validate.corepin.io"),
    _scraped("webhook", 1),
    _scraped("certs", 0),
    _scraped("agent", 0),
    Field("NetworkPolicy", "corepin-certs", "spec/egress/0/ports", "apiServerPorts"),
    Field("NetworkPolicy", "corepin-agent", "spec/egress/0/ports", "apiServerPorts"),
    Field("NetworkPolicy", "corepin-dashboard", "spec/egress/0/ports", "apiServerPorts"),
    Field(
        "Deployment",
        "corepin-dashboard",
        "spec/template/spec/containers/dashboard/env/COREPIN_ALLOW_HOST/value",
        "dashboard.allowHost",
    ),
)
