"""Log messages about the node: its mode, its NRI path and refusals."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace

import httpx
import pytest
from prometheus_client import CollectorRegistry

from agent.config import NodeOptions
from agent.doctor.nri import AgentNRI, Socket, nri_checks
from agent.node_state import LargeEnvironment, ListingFault, NodeState, Path
from agent.report.desired_node import desired_node
from agent.report.events import Reason, event_document, events_between
from agent.report.load_metrics import MetricsReport
from agent.report.mode_log import LogReport, RefusalLog
from apiserver.access import Access
from apiserver.client import Api
from apiserver.errors import APIError
from pinning.contract import KubeletPolicy
from pinning.planning.node_config import NodeConfig
from tests.agent.states import EXCLUSIVE, ISOLATE, bound, source, state_of
from tests.pods import container

GIVING = state_of()
STATIC = state_of(config=NodeConfig(observe=True))
CONFIGURED = replace(STATIC, kubelet=KubeletPolicy.NONE)


@pytest.mark.parametrize(
    ("observing", "remedy"),
    [
        pytest.param(STATIC, "cpuManagerPolicy", id="kubelet"),
        pytest.param(CONFIGURED, "observe to false", id="configured"),
    ],
)
async def test_mode_is_logged_when_it_changes(
    caplog: pytest.LogCaptureFixture, observing: NodeState, remedy: str
) -> None:
    """The observing mode is logged once as a warning with the remedy; its end is logged as information."""
    caplog.set_level(logging.INFO)
    report = LogReport()
    for state in (GIVING, observing, observing, GIVING, GIVING):
        await report.publish(state)
    await report.reset()
    _, warning, end = caplog.records  # the first record is about last-level caches
    assert (warning.levelno, end.levelno) == (logging.WARNING, logging.INFO)
    assert remedy in warning.__dict__["facts"]["remedy"]


async def test_start_path_is_logged_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    """Losing NRI is a warning with the reason; a missing NRI at start is information."""
    caplog.set_level(logging.INFO)
    missing = replace(GIVING, start_reason="no socket")
    held = replace(GIVING, start_path=Path.NRI)
    crowded = replace(held, other_plugins=("50-other",))
    report = LogReport()
    for state in (GIVING, missing, held, held, missing, held, crowded, crowded, held):
        await report.publish(state)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "last-level caches"),
        ("INFO", "containers are moved when they start"),
        ("INFO", "containers start on their CPUs"),
        ("WARNING", "containers no longer start on their CPUs"),
        ("INFO", "containers start on their CPUs"),
        ("WARNING", "other programs set the cpusets of new containers"),
    ]
    assert caplog.records[0].__dict__["facts"] == {"alignUncore": False}
    assert caplog.records[3].__dict__["facts"] == {"path": "cgroup", "reason": "no socket"}


async def test_refusals_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each refusal is logged once as a warning, and again if it returns."""
    wrong = bound("a", annotations={"qos.gocrane.io/cpu-manager": "exlusive"})
    large = bound("b", container("main", 99), annotations=EXCLUSIVE)
    states = (state_of(wrong), state_of(wrong), state_of(wrong, large), state_of(), state_of(wrong))
    report = RefusalLog()
    for state in states:
        await report.publish(state)
    await report.reset()
    entries = [(record.levelno, record.__dict__["facts"]) for record in caplog.records]
    assert [facts["reason"] for _, facts in entries] == ["Invalid", "NotEnoughCPUs", "Invalid"]
    assert {level for level, _ in entries} == {logging.WARNING}
    assert "'exlusive' is not a policy: write one of none, exclusive, share" in entries[0][1]["message"]
    assert entries[1][1]["claim"].endswith("/b/main")


LARGE = LargeEnvironment("u", "team", "web-0", "main", 1_800_000)
FAULT = ListingFault("the runtime closed the connection", (LARGE,))


def test_fault_names_the_largest_environments() -> None:
    """The message lists the largest environments with their sizes, or a hint if none was found."""
    assert str(ListingFault("closed")) == "closed"
    assert str(ListingFault("closed", (LARGE, LARGE._replace(container="b")))) == (
        "closed; the largest are those of team/web-0/main (1.7 MiB), team/web-0/b (1.7 MiB)"
    )
    assert "look for pods with thousands of labels" in str(ListingFault("closed", ()))


def test_fault_is_a_condition_while_it_lasts() -> None:
    """The condition has the reason and the pods while the fault lasts."""
    before = replace(state_of(), containers_complete=True)
    for state, status, reason in (
        (before, "False", "NotDegraded"),
        (replace(before, listing_fault=FAULT), "True", "NRINotListed"),
    ):
        desired = desired_node(state, [], NodeOptions())
        assert desired is not None
        condition = desired.conditions[-1]
        assert (condition.status, condition.reason) == (status, reason)
        assert ("team/web-0/main (1.7 MiB)" in condition.message) is (status == "True")


def test_each_large_environment_is_one_event() -> None:
    """Each large environment is one warning event about its pod, with the remedy."""
    before = replace(state_of(), listing_fault=ListingFault("closed"))
    after = replace(before, listing_fault=FAULT)
    assert events_between(None, before) == ()
    [event] = events_between(before, after)
    assert (event.reason, event.owner) == (Reason.LARGE_ENVIRONMENT, ("u", "main"))
    assert "1.7 MiB" in event.message
    assert "mount the ConfigMaps and Secrets as files" in event.message
    assert events_between(after, after) == ()
    document = event_document(event, {"metadata": {"namespace": "team", "name": "web-0"}}, "n", "now")
    assert document["type"] == "Warning"


def test_doctor_names_the_cause_also_while_the_runtime_is_away() -> None:
    """Doctor names the cause and the remedy also when the runtime's socket does not answer."""
    for socket in (Socket.ANSWERS, Socket.SILENT):
        [check] = nri_checks("containerd 2.4.2", socket, AgentNRI(False, str(FAULT), is_not_listed=True))
        assert "team/web-0/main (1.7 MiB)" in check.message
        assert "delete the pods with the largest environments" in check.remedy


AMOUNT = {"cpu": "100m", "memory": "32M"}
PODS = (
    bound("a", container("main", 1), container("side", AMOUNT), annotations=ISOLATE),
    bound("b", container("x", requests="9")),
)


async def answer(_: httpx.Request) -> httpx.Response:
    """Refuse every request."""
    return httpx.Response(403, json={"message": "no"})


async def test_load_hidden_cost_and_requests_are_shown() -> None:
    """The gauges show shared and system load, idle siblings, sidecars, and API requests with errors."""
    registry = CollectorRegistry()
    api = Api(Access("https://api.test"), "tests", httpx.MockTransport(answer))
    report = MetricsReport(registry, api, source(*PODS), NodeOptions(sidecar=("100m", "32M")))
    await report.publish(state_of(*PODS))
    with contextlib.suppress(APIError):
        await api.get("/x")
    await report.reset()
    await api.close()
    shown = {
        (sample.name.removeprefix("corepin_agent_"), *sample.labels.values()): sample.value
        for metric in registry.collect()
        for sample in metric.samples
    }
    assert shown == {
        ("shared_millicores", "requested"): 9100,
        ("shared_millicores", "there"): 6000,
        ("system_millicores", "requested"): 0,
        ("system_millicores", "there"): 2000,
        ("hidden_cost", "idle_cpus"): 1,
        ("hidden_cost", "sidecar_millicores"): 100,
        ("hidden_cost", "sidecar_bytes"): 32_000_000,
        ("api_requests_total",): 1,
        ("api_errors_total", "403"): 1,
    }
