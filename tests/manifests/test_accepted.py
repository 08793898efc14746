"""Every object of every overlay is accepted by the oldest and the newest API server, strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.environments.server.catalog import KUBE_CONTROLLER_MANAGER, KUBERNETES, NEWEST
from tests.environments.server.control_plane import start_controllers
from tests.environments.server.start import require, start_servers
from tests.environments.waiting import until
from tests.manifests.installed import ADMISSION, DEMO, Installed
from tests.manifests.rendered import AGENT, INSTALLS, objects, text

pytestmark = pytest.mark.server


@pytest.mark.parametrize("name", INSTALLS)
def test_overlay_is_accepted(name: str, installed: Installed) -> None:
    """Every overlay is accepted by server-side apply with strict fields, without a warning."""
    if installed.api.version != NEWEST and any(it["kind"] == "DeviceClass" for it in objects(name)):
        pytest.skip("Kubernetes 1.30 has no resource.k8s.io/v1")
    done = installed.api.kubectl(
        "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-", input=text(name)
    )
    assert done.stdout.count("serverside-applied") == len(objects(name))
    assert done.stderr == ""


def test_cmk_namespace_is_accepted(installed: Installed) -> None:
    """The account for CMK's injection is applied to a user's namespace by the command in its file."""
    command = ("apply", "-n", DEMO, "-k", "manifests/cmk-namespace", "--dry-run=server", "--validate=strict")
    done = installed.api.kubectl(*command)
    assert "serviceaccount/cmk-serviceaccount created" in done.stdout
    assert done.stderr == ""


def test_applying_again_changes_nothing(installed: Installed) -> None:
    """Applying the same version again changes no object."""
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


@pytest.mark.parametrize("version", list(KUBERNETES))
def test_a_client_applies_again_what_is_there(version: str) -> None:
    """A second `kubectl apply -k` finds every object unchanged."""
    with start_servers(version) as api:
        api.kubectl("apply", "-k", "manifests/base")
        lines = api.kubectl("apply", "-k", "manifests/base").stdout.splitlines()
        shown = api.get("daemonsets", "-A")["items"]
    changed = {line for line in lines if not line.endswith(" unchanged")}
    # the schema of this kind makes kubectl send the selector always, even if it is unchanged
    sent = {"poddisruptionbudget.policy/corepin-webhook configured"}
    # 1.30 stores no `recursiveReadOnly`, so that kubectl sends it each time; it rolls nothing out
    sent |= {"daemonset.apps/corepin-agent configured"} if version == "1.30" else set()
    assert changed == sent
    assert [it["metadata"]["generation"] for it in shown] == [1]


def test_types_of_all_policies_are_right(installed: Installed) -> None:
    """The API server's type check of CEL expressions finds no error in any policy."""
    (program,) = require(KUBE_CONTROLLER_MANAGER)
    with start_controllers(
        program, installed.api, ("--controllers=validatingadmissionpolicy-status-controller",)
    ):
        until("every policy is checked", lambda: all(map(_is_checked, _policies(installed))))
    found = {
        it["metadata"]["name"]: it["status"]["typeChecking"].get("expressionWarnings")
        for it in _policies(installed)
    }
    assert len(found) == 6
    assert set(found.values()) == {None}, found


def _policies(installed: Installed) -> list[dict[str, Any]]:
    shown = installed.admin.send("GET", f"{ADMISSION}/validatingadmissionpolicies").json()["items"]
    return [it for it in shown if it["metadata"]["name"].startswith("corepin-")]


def _is_checked(policy: dict[str, Any]) -> bool:
    status = policy.get("status", {})
    return "typeChecking" in status and status["observedGeneration"] == policy["metadata"]["generation"]


def test_policies_have_no_warnings(installed: Installed) -> None:
    """Client-side apply of the policies causes no warning."""
    done = installed.api.kubectl("apply", "--dry-run=server", "--validate=strict", "-k", "manifests/hardened")
    lines = [line for line in done.stderr.splitlines() if "last-applied-configuration" not in line]
    assert lines == []


def test_uninstalling_the_agents_leaves_nothing_running(installed: Installed) -> None:
    """The uninstall patch is accepted: each pod runs `--reset` with the agent's arguments and mounts."""
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
