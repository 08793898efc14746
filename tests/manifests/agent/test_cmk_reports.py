"""CMK's reports on real API servers: their CRDs, and the agent's rights on the report of its own node."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from agent.report.cmk_reports import CMKReports
from pinning.cmk.pools import ExitSource, Reclaimed
from tests.agent.fake_api import publish
from tests.agent.states import bound, state_of
from tests.manifests.installed import HERE_NODE, PATIENCE_SECONDS, THERE_NODE, Installed
from tests.manifests.rendered import AGENT, Object, objects
from tests.manifests.requests import assert_refused
from tests.pods import CORES, container

pytestmark = pytest.mark.server

POLICY = "corepin-agent-reports"
REPORTS = f"/apis/intel.com/v1/namespaces/{AGENT}/cmk-nodereports"
STATE = replace(
    state_of(bound("a", container("main", {CORES: 1})), node=HERE_NODE),
    reclaimed=(Reclaimed(4711, "default/a/main", "exclusive", "1,5", ExitSource.KERNEL),),
)
OLD_KIND = {  # CRD as CMK created it, with an API version that no longer exists
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "cmk-nodereports.intel.com"},
    "spec": {
        "group": "intel.com",
        "scope": "Namespaced",
        "names": {"kind": "Cmk-nodereport", "plural": "cmk-nodereports", "shortNames": ["cmk-nr"]},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                },
            }
        ],
    },
}


def is_of_reports(it: Object) -> bool:
    """Return whether an object is the reports' policy or a CRD."""
    return bool(it["metadata"]["name"] == POLICY or it["kind"] == "CustomResourceDefinition")


@pytest.fixture(scope="module")
def reporting(installed: Installed) -> Iterator[Installed]:
    """Return an API server on which the report objects of component `cmk` are applied over CMK's own CRD."""
    parts = [it for it in objects("cmk") if is_of_reports(it)]
    assert len(parts) == 6
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": parts})
    installed.api.kubectl("create", "-f", "-", input=json.dumps(OLD_KIND))
    flags = ("--server-side", "--force-conflicts", "--validate=strict")
    installed.api.kubectl("apply", *flags, "-f", "-", input=text)
    _wait(installed)
    yield installed
    installed.api.kubectl("delete", "-f", "-", input=text)


def _wait(installed: Installed) -> None:
    """Wait until the CRDs are served and the agent's right and the policy are in effect."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    probe = report("probe")
    while f"'{POLICY}'" not in installed.agent.send("POST", f"{REPORTS}?dryRun=All", probe).text:
        assert time.monotonic() < deadline, "the policy does not act"
        time.sleep(0.1)


def report(name: str, **metadata: Any) -> dict[str, Any]:
    """Return a report about a node."""
    return {
        "apiVersion": "intel.com/v1",
        "kind": "Cmk-nodereport",
        "metadata": {"name": name, **metadata},
        "spec": {"report": {"checks": {"configDirectory": {"ok": True, "errors": []}}}},
    }


def fresh(installed: Installed, name: str = HERE_NODE) -> str:
    """Create a report as an administrator, and return its path."""
    installed.admin.send("DELETE", f"{REPORTS}/{name}")
    created = installed.admin.send("POST", REPORTS, report(name))
    assert created.is_success, created.text
    return f"{REPORTS}/{name}"


def test_the_agent_reports_and_kubectl_shows_it_by_cmks_names(reporting: Installed) -> None:
    """The agent creates, replaces and empties its report with its own token, and kubectl finds it by CMK's names."""
    reporting.admin.send("DELETE", f"{REPORTS}/{HERE_NODE}")

    def shown(name: str) -> Any:
        return reporting.api.get("-n", AGENT, name, HERE_NODE)

    async def main() -> None:
        api = reporting.agent_api()
        for _ in range(2):  # the second write is that of a restarted agent
            await publish(CMKReports(api, HERE_NODE, AGENT, interval_seconds=0), STATE)
            found = await asyncio.to_thread(shown, "cmk-nr")
            assert found["metadata"]["generation"] == 1
        await CMKReports(api, HERE_NODE, AGENT, interval_seconds=0).reset()
        await api.close()
        pools = found["spec"]["report"]["description"]["pools"]
        assert pools["exclusive"]["cpuLists"]["1,5"] == {"cpus": "1,5", "tasks": [1]}
        assert found["spec"]["report"]["topology"]["sockets"]["0"]["cores"][1]["id"] == 1

    asyncio.run(main())
    assert shown("cmk-nr")["spec"] == shown("cmk-rr")["spec"] == {}
    assert "OK" in reporting.api.kubectl("-n", AGENT, "get", "cmk-nodereports").stdout


@pytest.mark.parametrize("who", ["agent", "unbound_agent"])
def test_no_agent_writes_another_nodes_report(who: str, reporting: Installed) -> None:
    """An agent cannot write another node's report, and a token without a node none."""
    path = fresh(reporting, THERE_NODE)
    caller = getattr(reporting, who)
    for answer in (
        caller.patch(path, {"spec": {"report": {}}}),
        caller.send("POST", REPORTS, report("somebody")),
        reporting.unbound_agent.send("POST", REPORTS, report(HERE_NODE)),
    ):
        assert_refused(answer, POLICY, "only the report of the token's node")
    assert reporting.other_agent.patch(path, {"spec": {"report": {}}}).is_success


@pytest.mark.parametrize(
    "metadata",
    [
        {"finalizers": ["corepin.io/held"]},
        {"annotations": {"mine": "1"}},
        {"labels": {"mine": "1"}},
        {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "y"}]},
    ],
    ids=lambda metadata: next(iter(metadata)),
)
def test_an_agent_changes_the_spec_alone(metadata: dict[str, Any], reporting: Installed) -> None:
    """An agent may write only the report's spec, in creation and in updates."""
    path = fresh(reporting)
    assert_refused(reporting.agent.patch(path, {"metadata": metadata}), POLICY, "only the spec")
    reporting.admin.send("DELETE", path)
    made = reporting.agent.send("POST", REPORTS, report(HERE_NODE, **metadata))
    assert_refused(made, POLICY, "only the spec")


def test_an_agent_deletes_no_report(reporting: Installed) -> None:
    """An agent has no right to delete or read reports."""
    path = fresh(reporting)
    for method in ("DELETE", "GET"):
        assert reporting.agent.send(method, path).status_code == 403


def test_an_agent_gives_others_no_fields(reporting: Installed) -> None:
    """An agent may not add managedFields of other managers, whose next apply would delete the fields."""
    path = fresh(reporting)
    entry = {
        "manager": "kubectl",
        "operation": "Apply",
        "apiVersion": "intel.com/v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:spec": {"f:report": {}}},
    }
    answer = reporting.agent.patch(path, {"metadata": {"managedFields": [entry]}})
    assert_refused(answer, POLICY, "managedFields entries of other managers must not gain fields")


def test_people_write_reports_as_ever(reporting: Installed) -> None:
    """The policy restricts only the agents' accounts; an administrator may write reports."""
    path = fresh(reporting)
    assert reporting.admin.patch(
        path, {"spec": {"report": {}}, "metadata": {"labels": {"a": "b"}}}
    ).is_success
