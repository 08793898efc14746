"""The gate in pods of real API servers, with LimitRanges, Pod Security, API tokens and other webhooks."""

from __future__ import annotations

from typing import Any

import pytest

from pinning.pods.budget import budget_of
from tests.e2e.conftest import GATED, PREPARED
from tests.environments.cluster.registered import (
    Cluster,
    Registered,
    launcher_document,
    pod_document,
    wait_until,
)
from tests.environments.cluster.registration import INSTANCE
from tests.environments.server.catalog import NEWEST
from tests.pods import CORES, SMT, container

ISOLATE = {SMT: "isolate"}
AMOUNTS = {"cpu": "300m", "memory": "128Mi"}  # of the gate, as the webhook of these tests is configured
MAIN = {"cpu": "2", "memory": "1Gi"}
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def gated(registered: Registered) -> Cluster:
    """Return a namespace whose pods get gates."""
    return registered.namespace({INSTANCE: GATED})


def with_minimum(cluster: Cluster, **amounts: str) -> Cluster:
    """Create a LimitRange with a minimum, and wait until it is enforced."""
    limits = [{"type": "Container", "min": amounts}]
    metadata = {"name": "least"}
    cluster.created(
        {"apiVersion": "v1", "kind": "LimitRange", "metadata": metadata, "spec": {"limits": limits}}
    )
    small = pod_document("probe", container("main", {"cpu": "1m", "memory": "1Mi"}))
    wait_until("small containers are refused", lambda: cluster.create(small, "--dry-run=server").is_refused)
    return cluster


def names(stored: dict[str, Any]) -> list[str]:
    """Return the names of a pod's init containers."""
    return [it["name"] for it in stored["spec"]["initContainers"]]


def test_gate_is_stored_before_what_was_there(gated: Cluster) -> None:
    """The gate is the first init container, and all other additions reach their own containers."""
    init = [container("setup", {CORES: "1"}), container("mesh", restartPolicy="Always")]
    stored = gated.created(pod_document("it", container("main", {CORES: "2"}), init=init))
    gate, setup, mesh = stored["spec"]["initContainers"]
    assert names(stored) == ["corepin-gate", "setup", "mesh"]
    assert setup["env"] == [{"name": "CMK_NUM_CORES", "value": "1"}]
    assert "env" not in mesh
    assert gate["env"] == [{"name": "COREPIN_RESTART_POLICY", "value": "Always"}]
    mounts = [{it["name"] for it in member["volumeMounts"]} for member in (gate, setup, mesh)]
    assert mounts[0] == {"corepin-gate"}
    assert all({"cmk-install-dir", "cmk-config-dir"} < others for others in mounts[1:])
    assert stored["status"]["qosClass"] == "BestEffort"


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_budget_of_pod_level_memory_alone_waits_too(gated: Cluster) -> None:
    """The API server adds the containers' CPUs to pod-level memory after mutation; the pod has its gate by then."""
    parts = (container("main", "1500m"), container("side", "500m"))
    stored: Any = gated.created(
        pod_document("it", *parts, annotations=ISOLATE, resources={"limits": {"memory": "1Gi"}})
    )
    assert names(stored) == ["corepin-gate"]
    assert budget_of(stored) == 2
    side = stored["spec"]["containers"][0]["resources"]["requests"]
    assert side["corepin.io/isolated-cores"] == "2"


def test_windows_pod_is_refused_for_its_claim(gated: Cluster) -> None:
    """A Windows pod gets no gate, whose security context the API server would refuse, but corepin's own refusal."""
    pod = pod_document("it", container("main", MAIN), annotations=ISOLATE, os={"name": "windows"})
    refusal = gated.create(pod)
    assert refusal.fields == ["spec.os.name"]
    assert "corepin: a pod of windows gets no CPUs of its own" in refusal.stderr


def test_gate_gets_no_token(gated: Cluster) -> None:
    """The gate gets no API token, because another volume is mounted at the token's path."""
    stored = gated.created(pod_document("it", container("main", MAIN), annotations=ISOLATE))
    tokens = [
        [it["name"].startswith("kube-api-access-") for it in member["volumeMounts"]]
        for member in (stored["spec"]["initContainers"][0], stored["spec"]["containers"][0])
    ]
    assert tokens == [[False], [True]]


def test_restricted_namespaces_take_the_gate(registered: Registered) -> None:
    """Pod Security accepts the gate, and there is no warning."""
    labels = {INSTANCE: GATED, "pod-security.kubernetes.io/enforce": "restricted"}
    cluster = registered.namespace(labels)
    main = container("main", MAIN, securityContext=RESTRICTED)
    outcome = cluster.create(pod_document("it", main, annotations=ISOLATE))
    assert (outcome.is_refused, outcome.stderr) == (False, "")


@pytest.mark.parametrize("restart_policy", ["Always", "OnFailure", "Never"])
def test_launcher_stays_guaranteed(gated: Cluster, restart_policy: str) -> None:
    """A launcher with a gate stays Guaranteed, as KubeVirt requires, and the gate knows its restart policy."""
    document = launcher_document(container("proxy"), restartPolicy=restart_policy)
    stored = gated.created(document)
    gate = stored["spec"]["initContainers"][0]
    assert stored["status"]["qosClass"] == "Guaranteed"
    assert gate["resources"] == {"limits": AMOUNTS, "requests": AMOUNTS}
    assert gate["env"] == [{"name": "COREPIN_RESTART_POLICY", "value": restart_policy}]


def test_limit_range_with_a_lower_minimum(gated: Cluster) -> None:
    """With a LimitRange of a lower minimum the gate's requests suffice, and the QoS class stays."""
    cluster = with_minimum(gated, cpu="250m", memory="100Mi")
    stored = cluster.created(pod_document("it", container("main", MAIN), annotations=ISOLATE))
    assert stored["spec"]["initContainers"][0]["resources"] == {"limits": AMOUNTS, "requests": AMOUNTS}
    assert stored["status"]["qosClass"] == "Guaranteed"


def test_limit_range_with_a_higher_minimum(gated: Cluster) -> None:
    """The API server refuses a gated pod whose gate requests less than the LimitRange's minimum, with both amounts."""
    cluster = with_minimum(gated, cpu="500m", memory="256Mi")
    outcome = cluster.create(pod_document("it", container("main", MAIN), annotations=ISOLATE))
    assert "minimum cpu usage per Container is 500m, but request is 300m" in outcome.stderr
    assert "minimum memory usage per Container is 256Mi, but request is 128Mi" in outcome.stderr


def test_limit_range_makes_a_silent_pod_state_something(gated: Cluster) -> None:
    """If a LimitRange makes a BestEffort pod Burstable, the gate has its configured resources."""
    cluster = with_minimum(gated, cpu="250m", memory="100Mi")
    stored = cluster.created(pod_document("it", container("main", {CORES: "1"})))
    assert stored["spec"]["initContainers"][0]["resources"] == {"limits": AMOUNTS, "requests": AMOUNTS}
    assert stored["status"]["qosClass"] == "Burstable"


def test_another_webhook_comes_first_afterwards(registered: Registered) -> None:
    """If another webhook inserts an init container before the gate, our second call adds no second gate."""
    cluster = registered.namespace({INSTANCE: GATED, PREPARED: ""})
    document = pod_document("it", container("main", {CORES: "1"}), init=[container("setup")])
    stored = cluster.created(document)
    assert names(stored) == ["prepare", "corepin-gate", "setup"]
    mounts = {it["name"] for it in stored["spec"]["initContainers"][0]["volumeMounts"]}
    assert "cmk-install-dir" in mounts, "it was called again"


def test_users_volume_of_its_name(gated: Cluster) -> None:
    """A user's volume with the gate's name is stored beside the gate's own."""
    own = {"name": "corepin-gate", "emptyDir": {}}
    stored = gated.created(pod_document("it", container("main", MAIN), annotations=ISOLATE, volumes=[own]))
    assert {"corepin-gate", "corepin-gate-2"} < {it["name"] for it in stored["spec"]["volumes"]}
    assert stored["spec"]["initContainers"][0]["volumeMounts"][0]["name"] == "corepin-gate-2"


@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_a_users_container_of_its_name_is_refused(gated: Cluster, kind: str) -> None:
    """A user's container with the gate's name is refused with its field."""
    own = container("corepin-gate")
    where = {"init": [own]} if kind == "initContainers" else {}
    beside = () if where else (own,)
    document = pod_document("it", container("main", MAIN), *beside, annotations=ISOLATE, **where)
    assert gated.create(document).fields == [f"spec.{kind}[0].name" if where else "spec.containers[1].name"]


def test_stored_pod_can_be_created_again(gated: Cluster) -> None:
    """A copy of a stored pod is created unchanged, with one gate."""
    stored = gated.created(pod_document("it", container("main", MAIN), annotations=ISOLATE))
    again = {**stored, "metadata": {"name": "again", "annotations": ISOLATE}}
    assert names(gated.created(again)) == ["corepin-gate"]


@pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
def test_pod_that_requests_cpus_as_a_whole_keeps_its_budget(gated: Cluster) -> None:
    """A pod with only a pod-level request keeps its budget: the API server sets the limit because the gate has one."""
    main = container("main", {"cpu": "2", "memory": "64Mi"}, {"cpu": "2", "memory": "32Mi"})
    level = {"requests": {"cpu": "4", "memory": "64Mi"}}
    stored = gated.created(pod_document("it", main, annotations=ISOLATE, resources=level))
    assert stored["spec"]["initContainers"][0]["resources"]["limits"] == {**AMOUNTS, "memory": "64Mi"}
    assert stored["spec"]["resources"]["limits"]["cpu"] == "4"
    assert budget_of(stored) == 4  # type: ignore[arg-type]
