"""Pods with pod-level CPU to which a webhook after ours adds a sidecar with CPU amounts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pinning.contract import ISOLATED_CORES, NUMA_CPUS, POD_BUDGET
from pinning.pods.claims import read_pod
from tests.e2e.conftest import COUNTING, MESHED
from tests.environments.cluster.neighbours import PROXY_RESOURCES
from tests.environments.cluster.registered import Registered, pod_document
from tests.environments.cluster.registration import INSTANCE
from tests.environments.server.catalog import NEWEST
from tests.pods import CPU_MANAGER, SMT, container

pytestmark = pytest.mark.parametrize("apiserver", [NEWEST], indirect=True)
SINGLE = {CPU_MANAGER: "exclusive", "numa-policy.corepin.io/pod": "single"}


def meshed(
    stated: Any, proxy: Any, annotations: dict[str, str], log: str | None = None, **count: str
) -> dict[str, Any]:
    """Return a pod with pod-level resources, whose later proxy gets these resources."""
    annotations = {**annotations, PROXY_RESOURCES: json.dumps(proxy)}
    main = container("main", {"cpu": "2", **count})
    pod = pod_document("it", main, container("log", log), annotations=annotations)
    pod["spec"]["resources"] = stated
    return pod


def test_a_budget_that_a_later_sidecar_makes_is_counted(registered: Registered) -> None:
    """A pod whose request equals its limit only with a later sidecar's request has a budget, and is counted."""
    cluster = registered.namespace({MESHED: "", INSTANCE: COUNTING})
    stored: Any = cluster.created(meshed({"limits": {"cpu": "4"}}, {"requests": {"cpu": "2"}}, SINGLE))
    budget = read_pod(stored).budget
    assert budget
    assert (budget.cpus, stored["metadata"]["annotations"][POD_BUDGET]) == (4, "4")
    assert stored["spec"]["resources"] == {kind: {"cpu": "4"} for kind in ("limits", "requests")}
    requests = [it["resources"].get("requests") or {} for it in stored["spec"]["containers"]]
    assert [it.get(NUMA_CPUS) for it in requests] == ["4", None, None]


def test_the_users_wrong_count_is_refused_though_corepin_is_called_again(registered: Registered) -> None:
    """A user's wrong count is refused even if a later webhook changes the pod and corepin is called again."""
    cluster = registered.namespace({MESHED: ""})
    both = {kind: {"cpu": "4"} for kind in ("limits", "requests")}
    before = cluster.webhook.reviews(endpoint="mutate")
    outcome = cluster.create(meshed(both, {}, {SMT: "isolate"}, **{ISOLATED_CORES: "1"}))
    assert cluster.webhook.reviews(endpoint="mutate") == before + 2
    assert outcome.fields == [f"spec.containers[0].resources.requests[{ISOLATED_CORES}]"], outcome.stderr
    assert (
        "remove it from requests and limits; corepin adds it if the webhook is configured to count it"
        in outcome.stderr
    )


def test_a_later_sidecar_with_a_limit_above_the_budget_is_refused_by_the_api_server(
    registered: Registered,
) -> None:
    """A proxy's limit above the pod-level limit that corepin has added is refused by the API server."""
    cluster = registered.namespace({MESHED: ""})
    proxy = {"limits": {"cpu": "5"}, "requests": {"cpu": "100m"}}
    pod = meshed({"requests": {"cpu": "4"}}, proxy, {CPU_MANAGER: "exclusive"}, "500m")
    outcome = cluster.create(pod)
    assert outcome.is_refused
    message = 'spec.resources.containers[2][cpu].limits: Invalid value: "5": must be less than or equal to pod limits of 4'
    assert message in outcome.stderr, outcome.stderr
