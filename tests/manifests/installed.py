"""An API server on which `manifests/base` is applied, and clients with the tokens of its accounts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from agent.config import USER_AGENT
from apiserver.access import Access
from apiserver.client import Api
from tests.environments.server.apiserver import ApiServer
from tests.manifests.rendered import AGENT, SYSTEM, text

HERE = Path(__file__).parent
PATIENCE_SECONDS = 60.0
DEMO = "demo"  # a namespace with pods of users
HERE_NODE, THERE_NODE = "node-a", "node-b"
STATUS = "status.corepin.io/cpus"
FORGED = {"metadata": {"annotations": {STATUS: "forged"}}}
MERGE, STRATEGIC, JSON_PATCH = (
    f"application/{kind}+json" for kind in ("merge-patch", "strategic-merge-patch", "json-patch")
)
PODS, NODES = f"/api/v1/namespaces/{DEMO}/pods", "/api/v1/nodes"
AS_AGENT = {"User-Agent": "corepin-agent"}  # becomes the field manager
ADMISSION = "/apis/admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Caller:
    """A client with a token."""

    client: httpx.Client
    token: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def send(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> httpx.Response:
        """Send one request."""
        content = None if body is None else json.dumps(body)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type, **self.headers}
        return self.client.request(method, path, content=content, headers=headers)

    def patch(self, path: str, body: Any, content_type: str = MERGE) -> httpx.Response:
        """Patch one object."""
        return self.send("PATCH", path, body, content_type)


@dataclass(frozen=True, slots=True)
class Installed:
    """An API server with corepin installed: two nodes, on each an agent and a pod of a user."""

    api: ApiServer
    client: httpx.Client
    admin: Caller
    agent: Caller  # account of the agent on HERE_NODE
    other_agent: Caller  # account of the agent on THERE_NODE
    unbound_agent: Caller  # the account's token without a node
    rotation: Caller
    webhook: Caller
    anybody: Caller  # an account without any rights of its own

    def agent_api(self) -> Api:
        """Return the agent's own client, as the agent of HERE_NODE."""
        token = self.api.directory / "agent.token"
        token.write_text(self.agent.token)
        return Api(Access(self.api.url, self.api.ca_file, token), USER_AGENT)

    def fresh_pod(self, name: str, node: str | None = HERE_NODE) -> str:
        """Create a pod of a user, and return its path."""
        self.admin.send("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        created = self.admin.send("POST", PODS, pod(name, node))
        assert created.is_success, created.text
        return f"{PODS}/{name}"


def pod(
    name: str, node: str | None, annotations: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Return a pod without requests and limits."""
    on = {"nodeName": node} if node else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {}), "labels": {"app": name}},
        "spec": {
            "containers": [{"name": "main", "image": "x"}],
            "terminationGracePeriodSeconds": 0,
            **on,
            **spec,
        },
    }


def install(api: ApiServer, client: httpx.Client) -> Installed:
    """Apply the manifests, create nodes and agents' pods, and wait until the policies are in effect."""
    api.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", input=text("base"))
    api.create_namespace(DEMO)
    admin = Caller(client, api.admin_token)
    for node in (HERE_NODE, THERE_NODE):
        _node(admin, node)
        document = pod(f"agent-{node}", node, serviceAccountName="corepin-agent")
        assert admin.send("POST", f"/api/v1/namespaces/{AGENT}/pods", document).is_success
    installed = Installed(
        api,
        client,
        admin,
        Caller(client, _token(api, AGENT, "corepin-agent", f"agent-{HERE_NODE}"), AS_AGENT),
        Caller(client, _token(api, AGENT, "corepin-agent", f"agent-{THERE_NODE}"), AS_AGENT),
        Caller(client, _token(api, AGENT, "corepin-agent"), AS_AGENT),
        Caller(client, _token(api, SYSTEM, "corepin-certs"), {"User-Agent": "corepin-certs"}),
        Caller(client, _token(api, SYSTEM, "corepin-webhook")),
        Caller(client, _token(api, DEMO, "default")),
    )
    _wait_until_policies_act(installed)
    return installed


def _node(admin: Caller, name: str) -> None:
    taints = [
        {"key": "others", "value": "1", "effect": "NoSchedule"},
        {"key": "corepin.io/agent-not-ready", "effect": "NoSchedule"},
    ]
    metadata = {"name": name, "labels": {"other": "label"}, "annotations": {"other": "annotation"}}
    document = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": taints}}
    assert admin.send("POST", NODES, document).is_success
    status = {
        "capacity": {"cpu": "8"},
        "allocatable": {"cpu": "7"},
        "conditions": [{"type": "Ready", "status": "True", "reason": "x", "message": "y"}],
    }
    assert admin.patch(f"{NODES}/{name}/status", {"status": status}, STRATEGIC).is_success


def _token(api: ApiServer, namespace: str, account: str, pod_name: str | None = None) -> str:
    bound = ("--bound-object-kind=Pod", f"--bound-object-name={pod_name}") if pod_name else ()
    return api.kubectl("-n", namespace, "create", "token", account, *bound).stdout.strip()


def _wait_until_policies_act(installed: Installed) -> None:
    """Wait, about a second, until each policy denies a dry run of a forbidden request."""
    path = installed.fresh_pod("probe")
    installed.api.kubectl("-n", AGENT, "create", "configmap", "probe")
    note = {"metadata": {"labels": {"probe": "1"}}}
    wanted = [
        ("corepin-status", installed.admin, path, FORGED),
        ("corepin-agent-pods", installed.agent, path, note),
        ("corepin-agent-nodes", installed.agent, f"{NODES}/{HERE_NODE}", note),
        ("corepin-agent-others", installed.agent, f"/api/v1/namespaces/{AGENT}/configmaps/probe", note),
        ("corepin-certs", installed.rotation, f"{ADMISSION}/mutatingwebhookconfigurations/zz-corepin", note),
        (
            "corepin-certs-others",
            installed.rotation,
            f"/api/v1/namespaces/{SYSTEM}/secrets/corepin-webhook-tls",
            note,
        ),
    ]
    deadline = time.monotonic() + PATIENCE_SECONDS
    for policy, caller, asked, body in wanted:
        while f"'{policy}'" not in caller.patch(f"{asked}?dryRun=All", body).text:
            assert time.monotonic() < deadline, f"{policy} does not act"
            time.sleep(0.1)
