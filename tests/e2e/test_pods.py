"""Pods that kubectl creates, as the webhook has changed them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from pinning.contract import GUARDED
from tests.environments.cluster.registered import Cluster, launcher_document, pod_document
from tests.environments.server.catalog import NEWEST
from tests.pod_level import ROWS
from tests.pods import CORES, CPU_MANAGER, SMT, container

MARKS = {"cmk.intel.com/resources-injected": "true", GUARDED: "true"}
ISOLATED = "corepin.io/isolated-cores"


def test_cmk_pod_is_stored_complete(cluster: Cluster) -> None:
    """A pod that requests cores is stored with all of CMK's additions, and keeps its own fields."""
    pod = pod_document(
        "cmk",
        container("main", {CORES: "2"}, env=[{"name": "MINE", "value": "1"}]),
        container("beside"),
        init=[container("first"), container("proxy", restartPolicy="Always")],
        annotations={"mine": "yes"},
        tolerations=[{"key": "mine", "operator": "Exists"}],
        volumes=[{"name": "mine", "emptyDir": {}}],
    )
    stored = cluster.created(pod)
    assert stored["metadata"]["annotations"] == {"mine": "yes", **MARKS}
    spec = stored["spec"]
    assert {"key": "cmk", "operator": "Equal", "value": "true", "effect": "NoSchedule"} in spec["tolerations"]
    assert {"key": "mine", "operator": "Exists"} in spec["tolerations"]
    volumes = {volume["name"]: volume.get("hostPath") for volume in spec["volumes"]}
    assert volumes["cmk-install-dir"] == {"path": "/opt/bin", "type": "DirectoryOrCreate"}
    assert volumes["cmk-config-dir"] == {"path": "/etc/cmk", "type": "DirectoryOrCreate"}
    assert volumes["mine"] is None
    assert spec["serviceAccountName"] == "default"
    main, beside = spec["containers"]
    assert main["env"] == [{"name": "MINE", "value": "1"}, {"name": "CMK_NUM_CORES", "value": "2"}]
    assert "env" not in beside
    for stored_container in (main, beside, *spec["initContainers"]):
        mounts = {
            mount["mountPath"]: (mount["name"], mount.get("readOnly"))
            for mount in stored_container["volumeMounts"]
        }
        assert mounts["/opt/bin"] == ("cmk-install-dir", True)
        assert mounts["/etc/cmk"] == ("cmk-config-dir", True)


def test_host_paths_are_warned_about(cluster: Cluster) -> None:
    """The user gets one warning for each host directory."""
    outcome = cluster.create(pod_document("cmk", container("main", {CORES: "1"})))
    assert [warning.partition(" is mounted")[0] for warning in outcome.warnings] == [
        "spec.volumes: corepin: host directory /opt/bin",
        "spec.volumes: corepin: host directory /etc/cmk",
    ]


def test_isolated_cores_are_stored(cluster: Cluster) -> None:
    """`isolate` adds the number of cores as an extended resource, with equal request and limit."""
    stored = cluster.created(pod_document("isolated", container(limits="3"), annotations={SMT: "isolate"}))
    resources = stored["spec"]["containers"][0]["resources"]
    assert resources["limits"][ISOLATED] == resources["requests"][ISOLATED] == "3"


def test_sidecar_limits_are_stored(cluster: Cluster) -> None:
    """Containers without amounts in a dedicated launcher get limits and a warning, and the pod is Guaranteed."""
    outcome = cluster.create(launcher_document(container("proxy"), init=[container("first")]))
    assert not outcome.is_refused, outcome.stderr
    completed = "got requests = limits cpu 200m, memory 64M"
    assert outcome.warnings == [
        f"spec.initContainers[0].resources: corepin: container first {completed}",
        f"spec.containers[1].resources: corepin: container proxy {completed}",
    ]
    stored = cluster.stored("Pod", "launcher")
    assert stored["status"]["qosClass"] == "Guaranteed"
    for stored_container in (stored["spec"]["initContainers"][0], stored["spec"]["containers"][1]):
        amounts = {"cpu": "200m", "memory": "64M"}
        assert stored_container["resources"] == {"requests": amounts, "limits": amounts}


def test_dry_run_answers_the_same_and_stores_nothing(cluster: Cluster) -> None:
    """--dry-run=server returns the injected pod with its warnings, or the refusals; nothing is stored."""
    good = pod_document("dry", container("main", {CORES: "1"}))
    outcome = cluster.create(good, "--dry-run=server", "-o=jsonpath={.spec.containers[0].env[0].name}")
    assert (outcome.stdout, len(outcome.warnings)) == ("CMK_NUM_CORES", 2)
    bad = pod_document("dry", annotations={CPU_MANAGER: "exclusive"})
    assert cluster.create(bad, "--dry-run=server").fields == [f"metadata.annotations[{CPU_MANAGER}]"]
    assert not cluster.exists("pod", "dry")


def test_every_cause_is_printed(cluster: Cluster) -> None:
    """For a refused pod kubectl prints each cause with field and remedy, and the pod is not stored."""
    annotations = {
        CPU_MANAGER: "all",
        "smt-policy.corepin.io/container.nobody": "require",
        "numa-policy.corepin.io/pod": "near",
        "numa-memory.corepin.io/pod": "bind",
    }
    pod = pod_document(
        "wrong", container("main", {CORES: "1"}, env=[{"name": "CMK_NUM_CORES", "value": "5"}])
    )
    pod["metadata"]["annotations"] = annotations
    outcome = cluster.create(pod)
    assert outcome.stderr.splitlines()[-6].startswith('The Pod "wrong" is invalid')
    assert outcome.fields == [
        f"metadata.annotations[{CPU_MANAGER}]",
        "metadata.annotations[smt-policy.corepin.io/container.nobody]",
        "metadata.annotations[numa-policy.corepin.io/pod]",
        "metadata.annotations[numa-memory.corepin.io/pod]",
        "spec.containers[0].env[0].value",
    ]
    assert all(": corepin: " in cause for cause in outcome.causes)
    assert not cluster.exists("pod", "wrong")


def test_generated_names(cluster: Cluster) -> None:
    """A pod with generateName is injected, and a refusal shows the prefix."""
    good = pod_document("x", container("main", {CORES: "1"}))
    good["metadata"] = {"generateName": "made-"}
    stored = cluster.created(good)
    assert stored["metadata"]["name"].startswith("made-")
    assert stored["metadata"]["annotations"] == MARKS
    good["metadata"]["annotations"] = {CPU_MANAGER: "wrong"}
    outcome = cluster.create(good)
    assert outcome.is_refused
    assert f"metadata.annotations[{CPU_MANAGER}]: corepin: " in outcome.stderr
    assert "made-" in outcome.stderr


def test_pod_of_a_replica_set(cluster: Cluster) -> None:
    """A pod of the ReplicaSet controller is injected, and a wrong one is refused in one message."""
    template = {
        "metadata": {"labels": {"app": "it"}},
        "spec": {"containers": [container("main", {CORES: "1"})]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "it"}}, "template": template}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "it"}, "spec": spec}
    uid = cluster.created(owner)["metadata"]["uid"]
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "it", "uid": uid, "controller": True}
    metadata: dict[str, Any] = {
        "generateName": "it-",
        "labels": {"app": "it"},
        "ownerReferences": [reference],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    controller = "system:serviceaccount:kube-system:replicaset-controller"
    created = json.loads(
        cluster.create(pod, f"--as={controller}", "--as-group=system:masters", "-o=json").stdout
    )
    assert created["metadata"]["annotations"] == MARKS
    metadata["annotations"] = {CPU_MANAGER: "wrong"}
    refusal = cluster.refusal(pod, controller)
    head, name, cause = re.split("(it-[a-z0-9]{5})", refusal)
    assert name  # the name is generated before validating webhooks are called
    assert head == 'admission webhook "pods.validate.corepin.io" denied the request: corepin refuses Pod '
    assert cause.startswith(
        f": metadata.annotations[{CPU_MANAGER}]: 'wrong' is not a policy: write one of none, "
    )


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["client-side", "server-side"])
def test_applying_again_changes_nothing(cluster: Cluster, how: tuple[str, ...]) -> None:
    """A second `kubectl apply` of the user's file does not change the injected pod, client-side or server-side."""
    pod = pod_document("it", container("main", {CORES: "1"}, env=[{"name": "MINE", "value": "1"}]))
    assert not cluster.run("apply", *how, "-f", "-", document=pod).is_refused
    stored = cluster.stored("pod", "it")
    again = cluster.run("apply", *how, "-f", "-", document=pod)
    assert not again.is_refused, again.stderr
    assert cluster.stored("pod", "it")["spec"] == stored["spec"]
    assert stored["spec"]["containers"][0]["env"][1]["name"] == "CMK_NUM_CORES"


def test_copy_of_an_injected_pod(cluster: Cluster) -> None:
    """A copy of a stored pod has all additions already and is not patched."""
    stored = cluster.created(pod_document("it", container("main", {CORES: "1"})))
    patched = cluster.webhook.reviews(outcome="patched")
    metadata = {"name": "copy", "annotations": stored["metadata"]["annotations"]}
    copy = cluster.created(
        {key: stored[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": metadata}
    )
    assert copy["spec"] == stored["spec"]
    assert cluster.webhook.reviews(outcome="patched") == patched


WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "Deployment": ("apps/v1", {"selector": {"matchLabels": {"app": "it"}}}),
    "StatefulSet": ("apps/v1", {"selector": {"matchLabels": {"app": "it"}}, "serviceName": "it"}),
    "DaemonSet": ("apps/v1", {"selector": {"matchLabels": {"app": "it"}}}),
    "ReplicaSet": ("apps/v1", {"selector": {"matchLabels": {"app": "it"}}}),
    "Job": ("batch/v1", {}),
    "CronJob": ("batch/v1", {"schedule": "0 0 * * *"}),
}


@pytest.mark.parametrize("kind", WORKLOADS)
def test_workload_is_warned_never_refused(cluster: Cluster, kind: str) -> None:
    """A workload with a wrong template is stored unchanged, with a warning and the full field path for each cause."""
    api_version, spec = WORKLOADS[kind]
    pod_spec = {"containers": [container()], "restartPolicy": "Never" if "batch" in api_version else "Always"}
    annotations = {CPU_MANAGER: "exclusive", SMT: "wrong"}
    template = {"metadata": {"labels": {"app": "it"}, "annotations": annotations}, "spec": pod_spec}
    placed: dict[str, Any] = {"template": template}
    whole = spec | ({"jobTemplate": {"spec": placed}} if kind == "CronJob" else placed)
    workload = {"apiVersion": api_version, "kind": kind, "metadata": {"name": "it"}, "spec": whole}
    outcome = cluster.create(workload)
    assert not outcome.is_refused, outcome.stderr
    place = "spec.jobTemplate.spec.template" if kind == "CronJob" else "spec.template"
    assert sorted(outcome.warned_fields) == [
        f"{place}.metadata.annotations[{CPU_MANAGER}]",
        f"{place}.metadata.annotations[{SMT}]",
    ]
    stored = cluster.stored(kind, "it")["spec"]
    stored_template = (stored["jobTemplate"]["spec"] if kind == "CronJob" else stored)["template"]
    assert stored_template["metadata"]["annotations"] == annotations
    assert "volumes" not in stored_template["spec"]


def test_workload_is_judged_when_its_template_changes(cluster: Cluster) -> None:
    """Scaling or labelling a Deployment causes no review; a changed template is validated, with warnings."""
    metadata = {"labels": {"app": "it"}, "annotations": {CPU_MANAGER: "exclusive"}}
    template = {"metadata": metadata, "spec": {"containers": [container(limits="2")]}}
    spec = {"selector": {"matchLabels": {"app": "it"}}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "it"}, "spec": spec}
    assert cluster.create(deployment).warnings == []
    before = cluster.webhook.reviews()
    cluster.run("label", "deployment/it", "a=b")
    cluster.run("scale", "deployment/it", "--replicas=3")
    assert cluster.webhook.reviews() == before
    patch = json.dumps({"spec": {"template": {"metadata": {"annotations": {CPU_MANAGER: "wrong"}}}}})
    outcome = cluster.run("patch", "deployment/it", "--patch", patch)
    assert outcome.warned_fields == [f"spec.template.metadata.annotations[{CPU_MANAGER}]"]
    assert not outcome.is_refused


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_pod_level_resources(cluster: Cluster) -> None:
    """A launcher with pod-level resources is not changed and is Guaranteed."""
    amounts = {"cpu": "5", "memory": "2Gi"}
    resources = {"requests": amounts, "limits": amounts}
    outcome = cluster.create(launcher_document(container("proxy"), resources=resources))
    assert (outcome.is_refused, outcome.warnings) == (False, []), outcome.stderr
    stored = cluster.stored("Pod", "launcher")
    assert stored["status"]["qosClass"] == "Guaranteed"
    assert not stored["spec"]["containers"][1].get("resources")


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_pod_level_defaults_are_the_api_servers(cluster: Cluster) -> None:
    """The API server stores the pod-level resources and QoS class that corepin computes."""
    for number, row in enumerate(ROWS):
        document, (request, limit), expected = row.values
        metadata = {"name": f"row-{number}"}
        stored = cluster.created(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": document["spec"]}
        )
        resources = stored["spec"]["resources"]
        found = resources["requests"].get("cpu"), resources.get("limits", {}).get("cpu")
        assert (found, stored["status"]["qosClass"]) == ((request, limit), expected), row.id
