"""The configz endpoint of a real kubelet: rights, and the agent's use of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from agent.kernel.sysfs import read_topology
from agent.kubelet.configz import KubeletConfig, ask_kubelet
from apiserver.access import Access
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import EMPTY, CPUSet
from tests.environments.node.settings import kubelet_settings

if TYPE_CHECKING:
    from tests.environments.node.node import Node

RIGHTS = Path("manifests/base/agent-rbac.yaml")


def serving(node: Node) -> dict[str, Any]:
    """Return the settings of a kubelet whose certificate is of the cluster, and who asks it who may see what."""
    pair = node.plane.server.authority.issue_cert("127.0.0.1")
    folder = node.kubelet.directory
    pair.cert_chain_pems[0].write_to_path(folder / "serving.crt")
    pair.private_key_pem.write_to_path(folder / "serving.key")
    return {
        "tlsCertFile": str(folder / "serving.crt"),
        "tlsPrivateKeyFile": str(folder / "serving.key"),
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True, "cacheTTL": "0s"}},
        "authorization": {
            "mode": "Webhook",
            "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"},
        },
    }


def account(node: Node, name: str, *rules: Any) -> Path:
    """Make a service account with some rights, and return the file with its token."""
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "corepin-agent"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    kinds = (
        {"apiVersion": "v1", "kind": "ServiceAccount"},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": list(rules)},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "roleRef": role,
            "subjects": [subject],
        },
    )
    for kind in kinds:
        metadata = (
            {"name": name, "namespace": "corepin-agent"} if "Service" in str(kind["kind"]) else {"name": name}
        )
        node.kubectl("apply", "-f", "-", input=json.dumps({**kind, "metadata": metadata}))
    token = node.plane.server.directory / f"{name}.token"
    token.write_text(node.kubectl("create", "token", name, "-n", "corepin-agent"))
    return token


def agent_rules() -> list[Any]:
    """Return the rules of the agent's ClusterRole in the manifests."""
    documents = yaml.safe_load_all(RIGHTS.read_text())
    [role] = [document for document in documents if document["kind"] == "ClusterRole"]
    return list(role["rules"])


def ask(node: Node, token: Path) -> KubeletConfig | None:
    """Return the kubelet's configuration as an account gets it."""
    port = json.loads((node.kubelet.directory / "config.json").read_text())["port"]
    access = Access(f"https://127.0.0.1:{port}", node.plane.server.ca_file, token)
    return asyncio.run(ask_kubelet(access, read_topology(Path("/"))))


def test_configz_needs_the_right_of_the_manifests(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """The endpoint needs the right `nodes/configz`, which the manifests give the agent."""
    rules = agent_rules()
    others = [rule for rule in rules if "nodes/configz" not in rule["resources"]]
    assert len(others) == len(rules) - 1
    agent, stranger = account(node, "may-ask", *rules), account(node, "may-not-ask", *others)
    with kubelet_settings(node, **serving(node), reservedSystemCPUs="0"):
        assert ask(node, agent) == KubeletConfig(
            KubeletPolicy.NONE, CPUSet([0]), KubeletPolicy.NONE, topology_manager="none"
        )
        assert ask(node, stranger) is None
        assert "403" in caplog.records[-1].__dict__["facts"]["reason"]
    caplog.clear()
    assert ask(node, agent) is None  # its certificate is self-signed again: it gets no token
    assert "certificate" in caplog.records[-1].__dict__["facts"]["reason"]


def test_kubelet_that_reserves_nothing_says_so(node: Node) -> None:
    """Reserved amounts that are missing in the configuration are none."""
    token = account(node, "may-ask", *agent_rules())  # the API server learns of it while the kubelet restarts
    with kubelet_settings(node, **serving(node), kubeReserved={"cpu": "0"}):
        assert ask(node, token) == KubeletConfig(
            KubeletPolicy.NONE, EMPTY, KubeletPolicy.NONE, topology_manager="none"
        )
