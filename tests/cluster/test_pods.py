"""From `kubectl apply` to pinned CPUs, through the webhook's pods and the agent's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from pinning.contract import STATUS_POOLS
from pinning.machine.cpuset import CPUSet
from tests.environments.cluster.cluster import AGENT, SYSTEM
from tests.environments.cluster.pods import ISOLATED, isolated, limits_of, user_pod
from tests.environments.node.events import events
from tests.environments.node.node import CORES, EXCLUSIVE, STATUS, pod
from tests.environments.waiting import until, until_equal

if TYPE_CHECKING:
    from tests.environments.cluster.cluster import Cluster


def test_parts_run_with_what_they_need(cluster: Cluster) -> None:
    """Agent and rotation have tokens of their own accounts, the webhook none; the agent took its taint away."""
    for component, has_token in {"agent": True, "certs": True, "webhook": False}.items():
        for owned in cluster.pods_of(component):
            assert owned["spec"]["serviceAccountName"] == f"corepin-{component}"
            volumes = [it["name"] for it in owned["spec"]["volumes"]]
            assert any(name.startswith("kube-api-access-") for name in volumes) is has_token
    until_equal("taints", lambda: cluster.document()["spec"].get("taints", []), [])


def test_namespaces_hold_their_level(cluster: Cluster) -> None:
    """Pod Security refuses a pod in the webhook's namespace that does not meet the level `restricted`."""
    document = pod("intruder") | {"metadata": {"name": "intruder", "namespace": SYSTEM}}
    done = cluster.plane.server.kubectl("create", "-f", "-", input=json.dumps(document), check=False)
    assert 'violates PodSecurity "restricted' in done.stderr


def test_pod_is_injected_pinned_reported_and_freed(cluster: Cluster) -> None:
    """The webhook adds the resource, the agent pins and reports the pod, and its CPUs are freed at its end."""
    [bystander] = cluster.run(user_pod("bystander"))
    cluster.settled({bystander: cluster.all})
    cluster.kubectl("apply", "-f", "-", input=json.dumps(isolated("pinned")))
    pinned = cluster.running("pinned")
    until("told", lambda: (cluster.status("pinned") or {}).get("pinned"))
    shown = yaml.safe_load(cluster.kubectl("get", "pod", "pinned", "-o", "yaml"))
    assert limits_of(shown)[ISOLATED] == "1"
    status = json.loads(shown["metadata"]["annotations"][STATUS])["containers"]["main"]
    assert (status["policy"], status["smtPolicy"]) == ("exclusive", "isolate")
    assert status["cpus"] == status["applied"]["cpus"] == str(pinned.cpus)
    kept = pinned.cpus | CPUSet.parse(status["idle"])
    cluster.settled({pinned: pinned.cpus, bystander: cluster.all - kept})
    assert f"runs on CPUs {pinned.cpus}" in until("event", lambda: events(cluster, "pinned").get("Pinned"))
    cluster.remove("pinned")
    cluster.settled({bystander: cluster.all})


def test_cores_of_cmk_are_counted_and_given(cluster: Cluster) -> None:
    """A pod that takes every core of CMK's resource learns how many; the next one waits for them."""
    cluster.run(user_pod("first", cores=cluster.cores))
    until("told", lambda: (cluster.status("first") or {}).get("pinned"))
    environment = cluster.pod("first")["spec"]["containers"][0]["env"]
    assert {"name": "CMK_NUM_CORES", "value": str(cluster.cores)} in environment
    cluster.apply(user_pod("second", cores=1))
    until("second waits", lambda: f"Insufficient {CORES}" in str(cluster.pod("second")))
    cluster.remove("first")
    second = cluster.running("second")
    until("told", lambda: (cluster.status("second") or {}).get("pinned"))
    assert cluster.status("second")["cpus"] == str(second.cpus)


def test_annotation_is_followed_while_the_pod_runs(cluster: Cluster) -> None:
    """`kubectl annotate` passes webhook and policies, and moves the container without restarting it."""
    pinned, bystander = cluster.run(user_pod("pinned", EXCLUSIVE, cpu="1"), user_pod("bystander"))
    until_equal("own CPU", lambda: len(pinned.cpus), 1)
    for policy in ("none", "exclusive", "share"):
        cluster.annotate("pinned", policy)
        until_equal("told", lambda: (cluster.status("pinned") or {}).get("policy", "none"), policy)
        own = cluster.all if policy == "none" else pinned.cpus
        assert policy == "none" or len(own) == 1
        cluster.settled({pinned: own, bystander: cluster.all - own if policy == "exclusive" else cluster.all})
    assert cluster.running("pinned") == pinned


def test_contradictions_are_refused(cluster: Cluster) -> None:
    """A pod whose policy does not fit its CPU limit is refused, with the reason in the message of kubectl."""
    document = user_pod("half", {"smt-policy.corepin.io/pod": "isolate"}, cpu="500m")
    done = cluster.plane.server.kubectl("create", "-f", "-", input=json.dumps(document), check=False)
    assert done.returncode != 0
    assert "metadata.annotations[smt-policy.corepin.io/pod]: corepin: isolate needs" in done.stderr
    assert "main has limit 500m" in done.stderr


def test_status_cannot_be_forged(cluster: Cluster) -> None:
    """An administrator cannot write the agent's status annotations."""
    cluster.run(user_pod("pinned", EXCLUSIVE, cpu="1"))
    forged = ("annotate", "--overwrite", "pod/pinned", f"{STATUS}=forged")
    done = cluster.plane.server.kubectl(*forged, check=False)
    assert "ValidatingAdmissionPolicy 'corepin-status'" in done.stderr


def test_commands_of_the_guide_answer(cluster: Cluster) -> None:
    """`corepin map` and `corepin doctor` run beside the agent, as the guide says."""
    until_equal(
        "no container owns CPUs", lambda: owners(cluster), {}
    )  # threads of the test machine run on these CPUs too
    execute = ("-n", AGENT, "exec", "daemonset/corepin-agent", "--", "corepin")
    assert f"node {cluster.name}" in cluster.kubectl(*execute, "map")

    def findings() -> list[str]:
        found = cluster.plane.server.kubectl(*execute, "doctor", check=False).stdout
        return [line.split(":")[0] for line in found.splitlines() if line.startswith("FIX")]

    # The tests' kubelet reserves no CPU, so that pods find room on a small machine; doctor reports nothing else. It sees
    # other tests' processes on this machine too, such as a command `cmk` outside of pods, until these exit.
    until_equal("findings of the doctor", findings, ["FIX   kubelet's CPUs"])


def owners(cluster: Cluster) -> Any:
    """Return the owners of the node's CPUs, as published by its agent."""
    node = cluster.document()
    return json.loads(node["metadata"]["annotations"][STATUS_POOLS])["owners"]


def test_pod_of_a_deployment_is_pinned(cluster: Cluster) -> None:
    """A controller's pod, which has no name of its own when it is reviewed, is completed and pinned as any other."""
    manifest = isolated("unused")
    template = {"metadata": {"labels": {"app": "it"}, "annotations": manifest["metadata"]["annotations"]}}
    document = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "it", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "it"}},
            "template": template | {"spec": manifest["spec"]},
        },
    }
    cluster.apply(document)
    try:
        [name] = until("its pod", lambda: [found["metadata"]["name"] for found in cluster.pods()])
        container = cluster.running(name)
        until("told", lambda: (cluster.status(name) or {}).get("pinned"))
        assert ISOLATED in limits_of(cluster.pod(name))
        cluster.settled({container: CPUSet.parse(cluster.status(name)["cpus"])})
    finally:
        # In the background its ReplicaSet lives on for a moment, and replaces the pod that `clear` deletes.
        cluster.kubectl("delete", "--cascade=foreground", "deployment/it")
