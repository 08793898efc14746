"""The policies still apply after a kustomization has renamed every object, accounts included."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.environments.server.catalog import KUBERNETES
from tests.environments.server.start import start_servers
from tests.environments.waiting import until
from tests.manifests.conftest import client_of
from tests.manifests.installed import AS_AGENT, NODES, Caller
from tests.manifests.rendered import AGENT, ROOT, SYSTEM, parsed, text_of

pytestmark = pytest.mark.server

NOTE = {"metadata": {"labels": {"mine": "1"}}}
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-a"}}


@pytest.fixture(scope="module")
def renamed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return kustomize's rendering of the base with a prefix and a suffix for all names."""
    folder = tmp_path_factory.mktemp("renamed")
    shutil.copytree(ROOT, folder / "manifests")
    own = {"namePrefix": "my-", "nameSuffix": "-two", "resources": ["manifests/base"]}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return text_of(folder)


@pytest.fixture(scope="module", params=list(KUBERNETES))
def callers(request: pytest.FixtureRequest, renamed: str) -> Iterator[dict[str, Caller]]:
    """Yield the renamed accounts of the agent and of the rotation on an API server with the renamed manifests."""
    with start_servers(request.param) as api, client_of(api) as client:
        api.kubectl("apply", "--server-side", "-f", "-", input=renamed)
        admin = Caller(client, api.admin_token)
        assert admin.send("POST", NODES, NODE).is_success
        tokens = {
            name: api.kubectl("-n", namespace, "create", "token", f"my-corepin-{name}-two").stdout.strip()
            for name, namespace in (("agent", AGENT), ("certs", SYSTEM))
        }
        yield {name: Caller(client, token, AS_AGENT) for name, token in tokens.items()}


@pytest.mark.parametrize(
    ("who", "path", "policy"),
    [
        pytest.param("agent", f"{NODES}/node-a", "my-corepin-agent-nodes-two", id="agent"),
        pytest.param(
            "certs",
            f"/api/v1/namespaces/{SYSTEM}/secrets/my-corepin-webhook-tls-two",
            "my-corepin-certs-others-two",
            id="rotation",
        ),
    ],
)
def test_renamed_accounts_are_held(who: str, path: str, policy: str, callers: dict[str, Caller]) -> None:
    """The policies apply to the renamed accounts."""

    def refused() -> dict[str, Any] | None:
        answer = callers[who].patch(f"{path}?dryRun=All", NOTE)
        by_policy = "ValidatingAdmissionPolicy" in answer.text
        # Policy and binding take effect about a second after they are created.
        return json.loads(answer.text) if by_policy else None

    assert f"'{policy}'" in until("refused by a policy", refused)["message"]


def test_every_binding_follows_its_policy(renamed: str) -> None:
    """Every policy has its binding."""
    every = parsed(renamed)
    policies = {it["metadata"]["name"] for it in every if it["kind"] == "ValidatingAdmissionPolicy"}
    bindings = [it for it in every if it["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(policies) == 6
    assert {it["spec"]["policyName"] for it in bindings} == policies
