"""The migration guide's commands, run in order on an API server with objects of CMK and Crane."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.migration import OF_USERS, PAGE, Walk, differences, of_users, rights
from tests.docs.reviewed import INJECTED, created, reviewed
from tests.manifests.guide import Shell, shell

if TYPE_CHECKING:
    from tests.environments.server.apiserver import ApiServer

USERS = ("telco", "team", "crane-system")
SECONDS = 120.0
CORES = "cmk.intel.com/exclusive-cores"
KINDS = f"pods,{OF_USERS}"  # nothing is drained here, so pods must remain too

pytestmark = pytest.mark.server


@pytest.fixture
def here(api: ApiServer, tmp_path: Path) -> Shell:
    """Return a shell for the guide's commands."""
    return shell(api, tmp_path)


def walk(here: Shell, title: str) -> None:
    """Run every command of a chapter."""
    way = Walk(here.run, title)
    way.through(way.left[-1])


def half_way(api: ApiServer) -> None:
    """Check the mixed state: one node is migrated, and on the other one CMK still runs with its rights."""
    assert len(rights(api)) == 10
    daemon_sets = api.kubectl("-n", "default", "get", "daemonsets", "-o=name").stdout.split()
    assert daemon_sets == ["daemonset.apps/cmk-reconcile-nodereport-ds-node-2"]
    over, before = (api.get("node", f"node-{number}")["metadata"]["labels"] for number in (1, 2))
    assert "corepin.io/agent" in over
    assert "corepin.io/agent" not in before
    assert before["cmk.intel.com/cmk-node"] == "true"
    webhooks = api.kubectl("get", "mutatingwebhookconfigurations", "-o=name").stdout
    assert {"cmk-webhook-config", "zz-corepin"} <= {name.rpartition("/")[2] for name in webhooks.split()}


def test_from_cmk(api: ApiServer, here: Shell) -> None:
    """Nothing of CMK is left, and the workload, with the same command line, and the agent run on the node.

    CMK's account keeps its rights, by seven roles and eight bindings, until the second node is migrated, and then has
    none. No object of users is deleted.
    """
    assert len(rights(api)) == 10
    users = of_users(api, USERS, KINDS)
    assert {"Deployment forwarder", "Pod forwarder-0", "Pod web-0"} <= set(users.values())
    way = Walk(here.run)
    way.through("uncordon node-1")
    half_way(api)
    way.through("auth can-i get secrets")
    assert rights(api) == set()
    assert users.items() <= of_users(api, USERS, KINDS).items()

    left = api.kubectl(
        "get", "all,configmaps,secrets,mutatingwebhookconfigurations", "-n", "default", "-o=name"
    )
    assert [name for name in left.stdout.split() if "cmk" in name] == []
    left = api.kubectl("get", "clusterroles,clusterrolebindings,configmaps", "-n", "team", "-o=name")
    assert [name for name in left.stdout.split() if "/cmk-" in name] == []
    spec = api.get("-n", "telco", "deployment", "forwarder")["spec"]["template"]["spec"]
    assert spec["containers"][0]["command"] == ["/opt/bin/cmk"]
    agent = api.get("-n", "corepin-agent", "daemonset", "corepin-agent")["spec"]["template"]["spec"]
    node = api.get("node", "node-1")
    assert (
        agent["nodeSelector"].items() <= {**node["metadata"]["labels"], "kubernetes.io/os": "linux"}.items()
    )
    assert spec["nodeSelector"].items() <= node["metadata"]["labels"].items()
    other = api.get("node", "node-2")["metadata"]["labels"]
    assert agent["nodeSelector"].items() <= {**other, "kubernetes.io/os": "linux"}.items()
    assert "corepin.io/cpu-group" not in node["metadata"]["labels"]
    keys = api.get("-n", "corepin-agent", "configmap", "corepin-agent")["data"]
    assert "exclusive_cores: 4" in keys["config.yaml"]
    assert "exclusive_cores: 14" in keys[f"config.{other['corepin.io/cpu-group']}.yaml"]
    assert node["spec"].get("unschedulable") is None
    assert api.get("-n", "telco", "serviceaccount", "cmk-serviceaccount")
    assert api.get("-n", "default", "cmk-nodereports")["items"] == []


def test_applied_again_nothing_differs(api: ApiServer, here: Shell) -> None:
    """`cluster-init` for each group and `kubectl apply` of its output change nothing when run again."""
    image = PAGE.partition("--cmk-img=")[2].split()[0]
    flags = f"--cmk-img={image} --num-shared-cores=1"
    assert differences(here.run, api, flags, {"node-1": 4, "node-2": 14}) == ""


@pytest.mark.parametrize(
    ("annotations", "resources"),
    [
        pytest.param({}, {"limits": {CORES: 1}}, id="limit"),
        pytest.param({}, {"requests": {CORES: 1}}, id="request alone"),
        pytest.param({"cmk.intel.com/mutate": "true"}, {}, id="annotation"),
    ],
)
def test_every_pod_of_users_is_injected(
    api: ApiServer, tmp_path: Path, annotations: dict[str, str], resources: dict[str, Any]
) -> None:
    """The installed webhook injects pods by each annotation and resource of CMK's users, without an API token."""
    metadata = {"name": "injected", "namespace": "telco", "annotations": annotations}
    container = {"name": "main", "image": "registry.example/forwarder", "resources": resources}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    with reviewed(api, tmp_path):
        shown = created(api, pod)
    assert shown["metadata"]["annotations"][INJECTED] == "true"
    spec = shown["spec"]
    assert spec["serviceAccountName"] == "cmk-serviceaccount"
    assert spec["automountServiceAccountToken"] is False
    volumes = {it["name"]: it.get("hostPath", {}).get("path") for it in spec["volumes"]}
    assert volumes == {"cmk-host-proc": "/proc", "cmk-install-dir": "/opt/bin", "cmk-config-dir": "/etc/cmk"}
    (main,) = spec["containers"]
    mounts = {it["mountPath"] for it in main["volumeMounts"]}
    assert mounts == {"/host/proc", "/opt/bin", "/etc/cmk"}
    assert main["resources"].get("limits", {}).get(CORES) == ("1" if resources else None)


def test_back_to_cmk(api: ApiServer, here: Shell) -> None:
    """A node of a group is migrated back: its labels are removed; the other node's agent and the webhook remain."""
    way = Walk(here.run)
    block = next(block for block in way.left if "uninstall --host-list=node-2" in block)
    with ThreadPoolExecutor(1) as pool:
        kubelet = pool.submit(finish, api, "corepin-reset-node-2")
        here.run(block)
        kubelet.result()
    labels = [api.get("node", f"node-{number}")["metadata"]["labels"] for number in (1, 2)]
    assert "corepin.io/agent" in labels[0]
    assert not {"corepin.io/agent", "corepin.io/cpu-group"} & labels[1].keys()
    assert "zz-corepin" in api.kubectl("get", "mutatingwebhookconfigurations", "-o=name").stdout


def finish(api: ApiServer, pod: str) -> None:
    """Set a pod's phase to Succeeded, as its kubelet does."""
    deadline = time.monotonic() + SECONDS
    patch = ("patch", "pod", pod, "--subresource=status", "-p", '{"status": {"phase": "Succeeded"}}')
    while api.kubectl("-n", "corepin-agent", *patch, check=False).returncode:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_from_the_static_policy(api: ApiServer, here: Shell) -> None:
    """The chapter's commands succeed, and the node is schedulable at the end."""
    walk(here, "From the kubelet's static policy")

    assert api.get("node", "node-1")["spec"].get("unschedulable") is None
    assert api.get("-n", "corepin-agent", "daemonset", "corepin-agent")


def test_from_crane(api: ApiServer, here: Shell) -> None:
    """After the way back Crane's agent runs again, and the workloads have the annotation that corepin reads.

    The last one: the API server alone never finishes the deletion of corepin's namespaces.
    """
    walk(here, "From Crane")

    crane = api.get("-n", "crane-system", "daemonset", "crane-agent")["spec"]["template"]["spec"]
    assert "example.com/crane" not in crane.get("nodeSelector", {})
    template = api.get("-n", "telco", "deployment", "web")["spec"]["template"]["metadata"]
    assert template["annotations"] == {"qos.gocrane.io/cpu-manager": "exclusive"}
    pod = api.get("-n", "telco", "pod", "web-0")["metadata"]
    assert pod["annotations"]["qos.gocrane.io/cpu-manager"] == "share"
    assert "zz-corepin" not in api.kubectl("get", "mutatingwebhookconfigurations", "-o=name").stdout
