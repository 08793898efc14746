"""Pods that other mutating webhooks change before and after corepin's."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.contract import ISOLATED_CORES
from pinning.pods.claims import read_pod
from tests.e2e.conftest import ANNOTATED, MESHED
from tests.environments.cluster.registered import Cluster, Registered, launcher_document, pod_document
from tests.environments.server.catalog import NEWEST
from tests.pods import CORES, SMT, container


def names(stored: dict[str, list[dict[str, str]]], kind: str) -> list[str]:
    """Return the names in a list of a pod's spec."""
    return [entry["name"] for entry in stored.get(kind, [])]


def test_webhook_before_ours_asks_for_a_pod(registered: Registered) -> None:
    """Corepin reads what an earlier webhook has added: the plain pod is injected and its policy is checked."""
    cluster = registered.namespace({ANNOTATED: ""})
    stored = cluster.created(pod_document("it", container(limits="2")))
    assert stored["metadata"]["annotations"]["cmk.intel.com/resources-injected"] == "true"
    assert {"cmk-install-dir", "cmk-config-dir"} <= set(names(stored["spec"], "volumes"))
    outcome = cluster.create(pod_document("wrong", container(limits="1500m")))
    assert outcome.fields == ["metadata.annotations[cpu-manager.corepin.io/pod]"]


def test_sidecar_of_a_webhook_after_ours_gets_its_mounts(registered: Registered) -> None:
    """If a later webhook adds a sidecar ours is called again, and the sidecar gets the mounts once."""
    cluster = registered.namespace({MESHED: ""})
    before = cluster.webhook.reviews(endpoint="mutate")
    stored = cluster.created(pod_document("it", container("main", {CORES: "1"})))["spec"]
    assert cluster.webhook.reviews(endpoint="mutate") == before + 2
    assert names(stored, "containers") == ["main", "proxy"]
    for stored_container in stored["containers"]:
        paths = [mount["mountPath"] for mount in stored_container["volumeMounts"]]
        assert [path for path in paths if path in {"/opt/bin", "/etc/cmk"}] == ["/opt/bin", "/etc/cmk"]
    assert len(names(stored, "volumes")) == len(set(names(stored, "volumes")))
    assert sum(toleration["key"] == "cmk" for toleration in stored["tolerations"]) == 1
    assert "admission annotations are not allowd to be overwritten" not in cluster.api.log_file.read_text()


def test_sidecar_of_a_webhook_after_ours_gets_its_limits(registered: Registered) -> None:
    """A proxy that a mesh adds to a dedicated launcher gets limits and a warning, and the pod stays Guaranteed."""
    cluster = registered.namespace({MESHED: ""})
    outcome = cluster.create(launcher_document())
    assert outcome.warned_fields == ["spec.containers[1].resources"], outcome.stderr
    stored = cluster.stored("pod", "launcher")
    assert stored["status"]["qosClass"] == "Guaranteed"
    assert stored["spec"]["containers"][1]["resources"]["limits"] == {"cpu": "200m", "memory": "64M"}


def test_sidecar_into_a_pod_that_is_none_of_ours(registered: Registered) -> None:
    """A sidecar that is added to a pod without corepin's annotations and resources causes no review."""
    cluster: Cluster = registered.namespace({MESHED: ""})
    before = cluster.webhook.reviews()
    stored = cluster.created(pod_document("it"))["spec"]
    assert not {"cmk-install-dir", "cmk-config-dir"} & set(names(stored, "volumes"))
    assert cluster.webhook.reviews() == before


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_a_sidecar_of_a_later_webhook_ends_no_budget(registered: Registered) -> None:
    """A budget survives a later webhook's sidecar without a limit, because our webhook writes the pod-level limit."""
    cluster = registered.namespace({MESHED: ""})
    pod = pod_document("it", container("main", "2"), container("side", "1"), annotations={SMT: "isolate"})
    pod["spec"]["resources"] = {"requests": {"cpu": "4"}}
    stored: Any = cluster.created(pod)
    pool = read_pod(stored).pool
    assert pool
    assert pool.pool
    assert (pool.count, pool.pool.lasting) == (1, ("proxy",))
    assert stored["spec"]["resources"]["limits"]["cpu"] == "4"
    amounts = [
        (it["resources"].get("limits") or {}).get(ISOLATED_CORES) for it in stored["spec"]["containers"]
    ]
    assert amounts == ["3", "1", None]
