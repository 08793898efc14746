"""The migration guide's commands work, in their order, on an API server that holds what CMK and Crane leave behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import blocks, chapter
from tests.manifests.guide import Shell, shell

if TYPE_CHECKING:
    from tests.servers.apiserver import ApiServer

PAGE = Path("docs/migrate.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.server


@pytest.fixture
def here(api: ApiServer, tmp_path: Path) -> Shell:
    """Return a reader's shell."""
    return shell(api, tmp_path)


def walk(here: Shell, title: str) -> None:
    """Do what a chapter says: every command."""
    commands = blocks(chapter(PAGE, title), "sh")
    assert len(commands) >= 4
    for command in commands:
        here.run(command)


def read(api: ApiServer, *what: str) -> Any:
    """Return an object."""
    return json.loads(api.kubectl("get", *what, "-o=json").stdout)


def rights(api: ApiServer) -> set[str]:
    """Return what CMK's account may do, of all that its roles gave it."""
    account = "--as=system:serviceaccount:cmk-namespace:cmk-serviceaccount"
    asked = (
        *(
            "get secrets",
            "create pods/exec",
            "get nodes",
            "delete nodes",
            "create daemonsets.apps",
            "get /metrics",
        ),
        *("update mutatingwebhookconfigurations.admissionregistration.k8s.io", "create deployments.apps"),
        *("delete customresourcedefinitions.apiextensions.k8s.io", "get cmk-nodereports.intel.com"),
    )

    def may(what: str) -> bool:
        done = api.kubectl("auth", "can-i", *what.split(), "--all-namespaces", account, check=False)
        assert done.stdout.strip() in {"yes", "no"}, done.stderr
        return done.stdout.strip() == "yes"

    return {what for what in asked if may(what)}


def test_from_cmk(api: ApiServer, here: Shell) -> None:
    """Nothing of CMK is left, the workload's command line is what it was, and both it and the agent run on the node.

    CMK's account, to which seven roles and eight bindings gave rights, has none.
    """
    assert len(rights(api)) == 10
    walk(here, "From Intel CMK")
    assert rights(api) == set()

    left = api.kubectl(
        "get", "all,configmaps,secrets,mutatingwebhookconfigurations", "-n", "default", "-o=name"
    )
    assert [name for name in left.stdout.split() if "cmk" in name] == []
    left = api.kubectl("get", "clusterroles,clusterrolebindings,configmaps", "-n", "team", "-o=name")
    assert [name for name in left.stdout.split() if "/cmk-" in name] == []
    spec = read(api, "-n", "telco", "deployment", "forwarder")["spec"]["template"]["spec"]
    assert spec["containers"][0]["command"] == ["/opt/bin/cmk"]
    agent = read(api, "-n", "corepin-agent", "daemonset", "corepin-agent")["spec"]["template"]["spec"]
    node = read(api, "node", "node-1")
    assert (
        agent["nodeSelector"].items() <= {**node["metadata"]["labels"], "kubernetes.io/os": "linux"}.items()
    )
    assert spec["nodeSelector"].items() <= node["metadata"]["labels"].items()
    other = read(api, "node", "node-2")["metadata"]["labels"]
    assert agent["nodeSelector"].items() <= {**other, "kubernetes.io/os": "linux"}.items()
    assert "corepin.io/cpu-group" not in node["metadata"]["labels"]
    keys = read(api, "-n", "corepin-agent", "configmap", "corepin-agent")["data"]
    assert "exclusive_cores: 4" in keys["config.yaml"]
    assert "exclusive_cores: 14" in keys[f"config.{other['corepin.io/cpu-group']}.yaml"]
    assert node["spec"].get("unschedulable") is None
    assert read(api, "-n", "telco", "serviceaccount", "cmk-serviceaccount")
    assert read(api, "-n", "default", "cmk-nodereports")["items"] == []


def test_from_the_static_policy(api: ApiServer, here: Shell) -> None:
    """The commands of this chapter work; the node is schedulable at its end."""
    walk(here, "From the kubelet's static policy")

    assert read(api, "node", "node-1")["spec"].get("unschedulable") is None
    assert read(api, "-n", "corepin-agent", "daemonset", "corepin-agent")


def test_from_crane(api: ApiServer, here: Shell) -> None:
    """Crane's agent is on again after the way back, and the workloads bear the word that corepin reads.

    The last one: the API server alone never finishes the deletion of corepin's namespaces.
    """
    walk(here, "From Crane")

    crane = read(api, "-n", "crane-system", "daemonset", "crane-agent")["spec"]["template"]["spec"]
    assert "example.com/crane" not in crane.get("nodeSelector", {})
    template = read(api, "-n", "telco", "deployment", "web")["spec"]["template"]["metadata"]
    assert template["annotations"] == {"qos.gocrane.io/cpu-manager": "exclusive"}
    pod = read(api, "-n", "telco", "pod", "web-0")["metadata"]
    assert pod["annotations"]["qos.gocrane.io/cpu-manager"] == "share"
    assert "zz-corepin" not in api.kubectl("get", "mutatingwebhookconfigurations", "-o=name").stdout
