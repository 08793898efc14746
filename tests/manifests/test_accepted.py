"""Every object of every overlay is accepted by the oldest and the newest API server, strictly."""

from __future__ import annotations

import json

import pytest

from tests.manifests.installed import DEMO, Installed
from tests.manifests.rendered import AGENT, INSTALLS, objects, text

pytestmark = pytest.mark.server


@pytest.mark.parametrize("name", INSTALLS)
def test_overlay_is_accepted(name: str, installed: Installed) -> None:
    """Server-side apply takes every object, warns of nothing, and knows every field."""
    done = installed.api.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=text(name)
    )
    assert done.stdout.count("serverside-applied") == len(objects(name))
    assert done.stderr == ""


def test_cmk_namespace_is_accepted(installed: Installed) -> None:
    """The account for CMK's injection is applied to a user's namespace, by the command that the file names."""
    command = ("apply", "-n", DEMO, "-k", "manifests/cmk-namespace", "--dry-run=server", "--validate=strict")
    done = installed.api.kubectl(*command)
    assert "serviceaccount/cmk-serviceaccount created" in done.stdout
    assert done.stderr == ""


def test_applying_again_changes_nothing(installed: Installed) -> None:
    """An upgrade to the same version leaves every object as it is."""
    kinds = "deployments,daemonsets,services,configmaps,networkpolicies,poddisruptionbudgets"
    before = _versions(installed, kinds)
    installed.api.kubectl("apply", "--server-side", "-f", "-", input=text("base"))
    assert before
    assert _versions(installed, kinds) == before


def _versions(installed: Installed, kinds: str) -> dict[str, str]:
    shown = installed.api.kubectl(
        "get", kinds, "-A", "-l", "app.kubernetes.io/name=corepin", "-o", "json"
    ).stdout
    return {it["metadata"]["uid"]: it["metadata"]["resourceVersion"] for it in json.loads(shown)["items"]}


def test_policies_have_no_warnings(installed: Installed) -> None:
    """Client-side apply, as most people use it, is accepted too, and the API server has nothing to say about it."""
    done = installed.api.kubectl("apply", "--dry-run=server", "--validate=strict", "-k", "manifests/hardened")
    lines = [line for line in done.stderr.splitlines() if "last-applied-configuration" not in line]
    assert lines == []


def test_uninstalling_the_agents_leaves_nothing_running(installed: Installed) -> None:
    """The patch that ends the agents is accepted: each pod runs `--reset` with the agent's own arguments and mounts."""
    done = installed.api.kubectl(
        *("-n", AGENT, "patch", "daemonset", "corepin-agent", "--patch-file", "manifests/reset.yaml"),
        *("--dry-run=server", "-o", "json"),
    )
    (container,) = json.loads(done.stdout)["spec"]["template"]["spec"]["containers"]
    assert container["command"][:2] == ["python3", "-c"]
    compile(container["command"][2], "reset", "exec")
    assert container["args"][0] == "agent"
    assert "livenessProbe" not in container
    assert "httpGet" not in container["readinessProbe"]
