"""The gate on a real node: which pods wait, for what, and what their users see in the meantime."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.environments.cluster.cluster import AGENT, SYSTEM
from tests.environments.cluster.pods import isolated, user_pod
from tests.environments.node.node import STATUS
from tests.environments.waiting import until, until_equal
from tests.image.build import NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.environments.cluster.cluster import Cluster

CONFIG = f"{{gate: true, gateImage: '{NAME}'}}"
NOBODY = {"spec": {"template": {"spec": {"nodeSelector": {"example.com/no": "node"}}}}}
SOMEBODY = {"spec": {"template": {"spec": {"nodeSelector": {"example.com/no": None}}}}}
REQUIRE = {"smt-policy.corepin.io/pod": "require"}


@pytest.fixture(scope="module")  # the kubelet takes its time to bring a configuration
def gates(cluster_session: Cluster) -> Iterator[Cluster]:
    """Return the cluster with gates; afterwards there are none."""
    cluster = cluster_session
    if cluster.applied != ("base", 2):
        cluster.install()
    before = cluster.get("-n", SYSTEM, "configmap", "corepin-webhook")["data"]["config.yaml"]
    configure(cluster, CONFIG)
    until_equal("pods get gates", lambda: is_gated(cluster), {True}, 180)
    yield cluster
    configure(cluster, before)
    until_equal("pods get none", lambda: is_gated(cluster), {False}, 180)


@pytest.fixture
def gated(gates: Cluster) -> Iterator[Cluster]:
    """Return the cluster with gates, whose cores are all free; pods of the test are removed."""
    gates.wait_for_cores()
    yield gates
    gates.clear()


def configure(cluster: Cluster, config: str) -> None:
    """Replace the webhook's configuration, which the kubelet brings to it."""
    patch = json.dumps({"data": {"config.yaml": config}})
    cluster.kubectl("-n", SYSTEM, "patch", "configmap", "corepin-webhook", "--type=merge", "-p", patch)


def is_gated(cluster: Cluster) -> set[bool]:
    """Return whether pods get gates, asked so often that every replica answers."""
    found = [cluster.admitted(isolated("probe")) or {"spec": {}} for _ in range(12)]
    return {"initContainers" in document["spec"] for document in found}


@contextmanager
def without_agent(cluster: Cluster) -> Iterator[None]:
    """Remove the agent from the node until the block ends."""

    def place(patch: dict[str, Any], count: int) -> None:
        flags = ("daemonset/corepin-agent", "--type=merge", "-p", json.dumps(patch))
        cluster.kubectl("-n", AGENT, "patch", *flags)
        until_equal("agents", lambda: len(cluster.pods_of("agent")), count)

    try:
        place(NOBODY, 0)
        yield
    finally:
        place(SOMEBODY, 1)


def gate(cluster: Cluster, name: str) -> dict[str, Any]:
    """Return the state of a pod's gate, empty before it is made; `last` is how it ended before."""
    for status in cluster.pod(name)["status"].get("initContainerStatuses") or ():
        state: dict[str, Any] = {**status["state"], "last": status["lastState"]}
        return state
    return {}


def log(cluster: Cluster, name: str) -> str:
    """Return the output of a pod's gate; empty before it runs."""
    is_there = gate(cluster, name).keys() & {"running", "terminated"}
    return cluster.kubectl("logs", name, "-c", "corepin-gate") if is_there else ""


def test_gate_lets_pass_what_is_assigned(gated: Cluster) -> None:
    """A gated pod starts, and its container is pinned from its first instruction and reported as without a gate."""
    gated.apply(isolated("pinned"))
    pinned = gated.running("pinned")
    assert gate(gated, "pinned")["terminated"]["exitCode"] == 0
    until("told", lambda: (gated.status("pinned") or {}).get("pinned"))
    told = json.loads(gated.pod("pinned")["metadata"]["annotations"][STATUS])["containers"]
    assert told.keys() == {"main"}
    assert told["main"]["cpus"] == str(pinned.cpus)


def test_without_an_agent_it_waits(gated: Cluster) -> None:
    """No container of the pod starts before an agent has assigned its CPUs; then all do."""
    with without_agent(gated):
        # It requests no extended resource, because a node offers these only with an agent.
        gated.apply(user_pod("early", REQUIRE, cpu="1"))
        until("it says so", lambda: "waiting until the agent" in log(gated, "early"))
        assert gated.container("early") is None
    early = gated.running("early")
    until("told", lambda: (gated.status("early") or {}).get("pinned"))
    assert gated.status("early")["cpus"] == str(early.cpus)


@pytest.mark.parametrize("restart_policy", ["Always", "Never"])
def test_refused_claim_waits_for_cpus(gated: Cluster, restart_policy: str) -> None:
    """The gate reports the refusal until CPUs are free; a pod with restartPolicy Never does not fail for it."""
    gated.run(user_pod("first", cores=gated.cores))
    late = user_pod("late", REQUIRE, cpu="1")
    late["spec"]["restartPolicy"] = restart_policy
    gated.apply(late)
    until("event", lambda: "corepin-gate" in gated.kubectl("events", "--for", "pod/late"))
    if restart_policy == "Never":
        until("it says why", lambda: "main: wanted" in log(gated, "late"))
        assert "running" in gate(gated, "late"), "it has not failed"
    else:
        ended = until("it failed", lambda: gate(gated, "late").get("last", {}).get("terminated"))
        assert ended["exitCode"] == 1
        assert ended["message"].startswith("main: wanted")
        assert ended["message"].endswith("waits in its init container corepin-gate")
    assert gated.container("late") is None
    gated.remove("first")
    until("it runs", lambda: gated.container("late"), 180)
    until("told", lambda: (gated.status("late") or {}).get("pinned"))


def test_claim_that_is_given_up_waits_no_more(gated: Cluster) -> None:
    """A policy edited to none ends the wait in the gate."""
    gated.run(user_pod("first", cores=gated.cores))
    late = user_pod("late", REQUIRE, cpu="1")
    late["spec"]["restartPolicy"] = "Never"
    gated.apply(late)
    until("it says why", lambda: "main: wanted" in log(gated, "late"))
    gated.annotate("late", "none")
    gated.running("late")
