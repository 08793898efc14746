"""corepin's webhooks together with LimitRange, Pod Security and the API server's validation."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest

from pinning.contract import QoSClass
from pinning.pods.claims import read_pod
from pinning.pods.qos import pod_amounts, qos_class
from tests.e2e.conftest import CMK, DOWN_OPEN, MESHED
from tests.environments.cluster.registered import (
    Cluster,
    Registered,
    launcher_document,
    pod_document,
    wait_until,
)
from tests.environments.cluster.registration import INSTANCE
from tests.environments.server.catalog import NEWEST
from tests.pods import CORES, CPU_MANAGER, SMT, container

ENFORCE = "pod-security.kubernetes.io/enforce"
LIMIT_RANGE = {
    "apiVersion": "v1",
    "kind": "LimitRange",
    "metadata": {"name": "it"},
    "spec": {
        "limits": [
            {
                "type": "Container",
                "default": {"cpu": "500m", "memory": "256Mi"},
                "defaultRequest": {"cpu": "100m", "memory": "128Mi"},
            }
        ]
    },
}
FILLED = {"limits": {"cpu": "500m", "memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}}


def with_limit_range(cluster: Cluster) -> Cluster:
    """Create a LimitRange with default limits, and wait until the API server applies it."""
    cluster.created(LIMIT_RANGE)
    probe = pod_document("probe")
    wait_until(
        "limits are filled in",
        lambda: "256Mi" in cluster.create(probe, "--dry-run=server", "-o=json").stdout,
    )
    return cluster


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_limit_range_that_runs_again_makes_no_slices(registered: Registered) -> None:
    """LimitRanger runs again after a later webhook and overwrites its annotation; all containers stay in the pool."""
    cluster = registered.namespace({MESHED: ""})
    limits = {"limits": [{"type": "Container", "default": {"cpu": "1"}}]}
    cluster.created({**LIMIT_RANGE, "spec": limits})
    for words in ({SMT: "isolate"}, {CPU_MANAGER: "exclusive"}):
        pod = pod_document("it", container("main"), container("side"), annotations=words)
        pod["spec"]["resources"] = {"limits": {"cpu": "4"}, "requests": {"cpu": "4"}}
        outcome = cluster.create(pod, "--dry-run=server", "-o=json")
        assert not outcome.is_refused, outcome.stderr
        stored = json.loads(outcome.stdout)
        ranged = stored["metadata"]["annotations"]["kubernetes.io/limit-ranger"]
        assert ranged.endswith("cpu limit for container proxy")
        assert "main" not in ranged
        pool = read_pod(stored).pool
        assert pool
        assert pool.pool
        assert (pool.count, pool.pool.lasting) == (4, ("main", "side", "proxy"))


def test_values_of_a_limit_range_are_left_alone(cluster: Cluster) -> None:
    """A sidecar's limits from a LimitRange are kept, with a warning that the pod is not Guaranteed because of them."""
    compute = container("main", {"cpu": "4", "memory": "1Gi"})
    annotations = {CPU_MANAGER: "exclusive", "sidecar-limits.corepin.io/pod": "true"}
    pod = pod_document("it", compute, container("proxy"), annotations=annotations)
    outcome = with_limit_range(cluster).create(pod)
    warnings = [warning for warning in outcome.warnings if "LimitRange" in warning]
    assert len(warnings) == 1, outcome.stderr
    assert warnings[0].startswith(
        "spec.containers[1].resources: corepin: container proxy keeps the pod from QoS"
    )
    stored = cluster.stored("pod", "it")
    assert stored["status"]["qosClass"] == "Burstable"
    assert stored["spec"]["containers"][1]["resources"] == FILLED


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_pod_level_amounts_beside_a_limit_range(cluster: Cluster) -> None:
    """A LimitRange sets the containers' requests before webhooks run, and their sum becomes the pod's request."""
    pod = pod_document(
        "it", container("a"), container("b"), resources={"limits": {"cpu": "4", "memory": "1Gi"}}
    )
    stored = with_limit_range(cluster).created(pod)
    assert [it["resources"] for it in stored["spec"]["containers"]] == [FILLED, FILLED]
    assert stored["spec"]["resources"]["requests"]["cpu"] == "200m"
    given: Any = {"spec": {**stored["spec"], "resources": pod["spec"]["resources"]}}
    amounts = pod_amounts(given)
    assert amounts
    assert (amounts.requests["cpu"], amounts.limits["cpu"]) == (Fraction(1, 5), Fraction(4))
    assert qos_class(given) is QoSClass(stored["status"]["qosClass"]) is QoSClass.BURSTABLE


def test_launcher_beside_a_limit_range(cluster: Cluster) -> None:
    """A dedicated launcher that is not Guaranteed because of a LimitRange is refused with container and fields."""
    outcome = with_limit_range(cluster).create(launcher_document(container("proxy")))
    assert outcome.fields == [
        "spec.containers[1].resources.limits[cpu]",
        "spec.containers[1].resources.limits[memory]",
    ], outcome.stderr
    assert any("LimitRange" in warning for warning in outcome.warnings)


def test_sidecar_of_a_later_webhook_beside_a_limit_range(registered: Registered) -> None:
    """Values that a LimitRange sets on a later webhook's sidecar are kept, with a warning at our second call."""
    cluster = with_limit_range(registered.namespace({MESHED: ""}))
    compute = container("main", {"cpu": "4", "memory": "1Gi"})
    annotations = {CPU_MANAGER: "exclusive", "sidecar-limits.corepin.io/pod": "true"}
    outcome = cluster.create(pod_document("it", compute, annotations=annotations))
    assert any("container proxy" in warning and "LimitRange" in warning for warning in outcome.warnings), (
        outcome.stderr
    )
    assert cluster.stored("pod", "it")["spec"]["containers"][1]["resources"] == FILLED


@pytest.mark.parametrize("instance", ["main", CMK])
def test_pod_security_forbids_host_paths(registered: Registered, instance: str) -> None:
    """Pod Security `baseline` refuses the injected host directories; corepin's warnings name their volumes."""
    labels = {ENFORCE: "baseline"} | ({INSTANCE: instance} if instance == CMK else {})
    cluster = registered.namespace(labels)
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cmk-serviceaccount"}}
    cluster.created(account)
    outcome = cluster.create(pod_document("it", container("main", {CORES: "1"})))
    assert outcome.is_refused
    assert 'violates PodSecurity "baseline:latest": hostPath volumes' in outcome.stderr
    volumes = {"cmk-install-dir", "cmk-config-dir"} | ({"cmk-host-proc"} if instance == CMK else set())
    mounted = {
        warning.rpartition("(volume ")[2].rstrip(")")
        for warning in outcome.warnings
        if "host directory" in warning
    }
    assert mounted == volumes, outcome.stderr
    assert "cmk-install-dir" in outcome.stderr.splitlines()[-1]


def test_pod_security_takes_what_is_asked_by_annotation(registered: Registered) -> None:
    """Pods with policies by annotation, here `isolate`, get no host directory and pass Pod Security `restricted`."""
    cluster = registered.namespace({ENFORCE: "restricted"})
    context = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    main = container(limits={"cpu": "2"}, securityContext=context)
    stored = cluster.created(pod_document("it", main, annotations={"smt-policy.corepin.io/pod": "isolate"}))
    assert stored["spec"]["containers"][0]["resources"]["limits"]["corepin.io/isolated-cores"] == "2"


def test_cmk_mutations_bring_everything(registered: Registered) -> None:
    """With CMK's own mutations file a pod is stored with its service account, tolerations, /proc and environment."""
    cluster = registered.namespace({INSTANCE: CMK})
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "cmk-serviceaccount"}}
    pod = pod_document("it", container("main", {CORES: "1"}))
    without = cluster.create(pod)
    assert 'serviceaccount "cmk-serviceaccount" not found' in without.stderr
    cluster.created(account)
    spec = cluster.created(pod)["spec"]
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "cmk-serviceaccount"
    assert {"operator": "Exists"} in spec["tolerations"]
    main = spec["containers"][0]
    assert main["env"] == [
        {"name": "CMK_PROC_FS", "value": "/host/proc"},
        {"name": "CMK_NUM_CORES", "value": "1"},
    ]
    mounts = {mount["mountPath"]: mount.get("readOnly") for mount in main["volumeMounts"]}
    assert mounts["/host/proc"] is mounts["/opt/bin"] is mounts["/etc/cmk"] is True


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        pytest.param({"limits": {CORES: "1500m"}}, "must be an integer", id="fraction"),
        pytest.param({"limits": {CORES: "2"}, "requests": {CORES: "1"}}, "must be equal to", id="unequal"),
    ],
)
def test_what_the_api_server_refuses_itself(
    cluster: Cluster, resources: dict[str, Any], message: str
) -> None:
    """Fractions and unequal amounts of an extended resource are refused by the API server, before our validation."""
    before = cluster.webhook.reviews(endpoint="validate")
    outcome = cluster.create(pod_document("it", container(resources=resources)))
    assert message in outcome.stderr
    assert all("corepin" not in cause for cause in outcome.causes)
    assert cluster.webhook.reviews(endpoint="validate") == before


def test_a_request_of_cores_alone_gets_its_limit(registered: Registered) -> None:
    """A request of cores without a limit gets its limit from our webhook; without it the API server refuses the pod."""
    main = container(resources={"requests": {CORES: "1"}})
    served, alone = registered.namespace({}), registered.namespace({INSTANCE: DOWN_OPEN})
    stored = served.created(pod_document("it", main))["spec"]["containers"][0]["resources"]
    assert stored["limits"][CORES] == stored["requests"][CORES] == "1"
    assert "Limit must be set" in alone.create(pod_document("it", main)).stderr
