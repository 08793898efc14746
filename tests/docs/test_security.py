"""docs/security.md has exactly the rights and host paths of the manifests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.docs.blocks import blocks, chapter
from tests.environments.cluster.registered import wait_until

if TYPE_CHECKING:
    from subprocess import CompletedProcess

    from tests.environments.server.apiserver import ApiServer

PAGE = Path("docs/security.md").read_text(encoding="utf-8")
BASE = Path("manifests/base")
EXAMPLES = Path("examples")


def documents(name: str) -> list[dict[str, Any]]:
    """Return the objects of a file of manifests/base."""
    return list(yaml.safe_load_all((BASE / name).read_text(encoding="utf-8")))


def test_rights_of_the_agent_are_documented() -> None:
    """The page lists each verb on each resource that the agent's account has, and no other."""
    rules = [rule for item in documents("agent-rbac.yaml") for rule in item.get("rules", ())]
    given = {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}
    rows = re.findall(r"^\| ((?:`\w+`,? ?)+) on `([\w/]+)` \|", PAGE, re.MULTILINE)
    assert {(verb, resource) for verbs, resource in rows for verb in re.findall(r"\w+", verbs)} == given


def test_host_access_of_the_agent_is_documented() -> None:
    """The page lists each host path, capability and host namespace of the agent's pod."""
    components = ("nri", "quiet", "quiet-power", "dra")
    files = ("agent.yaml", *(f"../components/{name}/agent.yaml" for name in components))
    spec, *more = (item["spec"]["template"]["spec"] for file in files for item in documents(file))
    volumes = [volume for part in (spec, *more) for volume in part["volumes"]]
    paths = {item["hostPath"]["path"] for item in volumes if "hostPath" in item}
    described = chapter(PAGE, "What the agent has on its node")
    assert (
        set(
            re.findall(
                r"^\| `(/[\w/.-]+)`(?:, with the component `(?:nri|quiet|quiet-power|dra)`)? \|",
                described,
                re.MULTILINE,
            )
        )
        == paths
    )
    cmk = Path("manifests/components/cmk/kustomization.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(/[\w/.-]+)`, with the component `cmk` \|", described, re.MULTILINE)) == set(
        re.findall(r"hostPath: \{path: ([\w/]+)", cmk)
    )
    capabilities = spec["containers"][0]["securityContext"]["capabilities"]["add"]
    assert re.findall(r"^\| capability `(\w+)` \|", described, re.MULTILINE) == capabilities
    (probe,) = documents("../components/vm-probe/agent.yaml")
    (container,) = probe["spec"]["template"]["spec"]["containers"]
    more = re.findall(r"^\| capability `(\w+)`, with the component `vm-probe` \|", described, re.MULTILINE)
    assert [*capabilities, *more] == container["securityContext"]["capabilities"]["add"]
    shared = {key for key in ("hostPID", "hostNetwork", "hostIPC") if spec.get(key)}
    assert shared == {"hostPID"}
    assert not spec["containers"][0]["securityContext"]["privileged"]


def test_every_policy_is_documented() -> None:
    """The table of policies has each policy of the base."""
    policies = {
        item["metadata"]["name"]
        for item in documents("policies.yaml")
        if item["kind"] == "ValidatingAdmissionPolicy"
    }
    rows = "\n".join(re.findall(r"^\| (`corepin-.*?) \|", chapter(PAGE, "The policies"), re.MULTILINE))
    assert set(re.findall(r"`(corepin-[\w-]+)`", rows)) == policies


@pytest.mark.server
def test_examples_work(api: ApiServer) -> None:
    """A real API server accepts quota and policy; the policy refuses pods that ask for CPUs in unlabelled namespaces."""
    quota, policy = blocks(PAGE, "yaml")
    api.kubectl("apply", "--validate=strict", "--dry-run=server", "-f", "-", input=quota)
    api.kubectl("apply", "--validate=strict", "-f", "-", input=policy)
    asking = (EXAMPLES / "crane/exclusive.yaml").read_text(encoding="utf-8")

    def create(namespace: str) -> CompletedProcess[str]:
        flags = ("-n", namespace, "create", "--dry-run=server", "-f", "-")
        return api.kubectl(*flags, input=asking, check=False)

    try:
        wait_until("the policy acts", lambda: "may not ask" in create("team").stderr)
        api.kubectl("label", "namespace", "team", "example.com/pinning=yes")
        wait_until("the namespace is exempt", lambda: create("team").returncode == 0)
    finally:
        api.kubectl("delete", "-f", "-", input=policy)
    wait_until("the policy acts no more, also for other tests", lambda: create("default").returncode == 0)
