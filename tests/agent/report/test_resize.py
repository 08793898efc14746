"""In-place resize: its effect on the kernel, the status, the events and the published cores."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent.node_state import ClaimState, NodeState, PodState
from agent.report.events import Event, Reason, events_between
from agent.report.extended_resources import node_resources
from agent.report.pod_status import pod_status
from agent.serve.state_json import agent_state
from drawing.claim_words import claim_words
from pinning.dra.claims import ClaimGrant, ClaimTimes
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from published.codec import decode
from published.pod_status import PodClaim, PodStatus
from tests.agent.fakes import FakeNode
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pinning.dra.claiming import claim
from tests.pinning.world import Wish
from tests.pods import CORES, OTHER_CORES

ISOLATED = "corepin.io/isolated-cores"
WHOLE, NUMA = "corepin.io/whole-cores", "corepin.io/numa-cpus"
ALONE = Wish("1", smt="isolate")  # gets the core 1,5 of FLAT, where 0,4 is reserved


def charge(node: FakeNode, uid: str, cores: int = 1) -> None:
    """Add the core count that the webhook adds for the scheduler."""
    for kind in ("limits", "requests"):
        node.documents[uid]["spec"]["containers"][0]["resources"][kind][ISOLATED] = cores


def resize(node: FakeNode, uid: str, cpu: str, allocated: str | None) -> None:
    """Change the requested CPUs of a pod, and the CPUs that the kubelet has allocated."""
    document = node.documents[uid]
    resources = document["spec"]["containers"][0]["resources"]
    for kind in ("limits", "requests"):
        resources[kind] = {**resources[kind], "cpu": cpu}
    given = {"name": "c0", "allocatedResources": {"cpu": allocated}} if allocated else {"name": "c0"}
    node.documents[uid] = {**document, "status": {"phase": "Running", "containerStatuses": [given]}}


def status(state: NodeState, uid: str) -> Any:
    """Return the status of a container."""
    shown = next(pod for pod in state.pods if pod.uid == uid)
    return json.loads(pod_status(shown, None) or "{}")["containers"]["c0"]


def published(node: FakeNode, state: NodeState) -> int:
    """Return the cores that the scheduler would still place."""
    return numbers(node, state)[ISOLATED] - 1


def numbers(node: FakeNode, state: NodeState) -> Mapping[str, int]:
    """Return the published resources."""
    pods: Any = node.documents.values()
    resources = node_resources(state, pods)
    assert resources
    return resources


def alone(node: FakeNode) -> tuple[str, NodeState]:
    """Run a pod with a core of its own; return its container and the state."""
    node.add("a", ALONE)
    charge(node, "a")
    number = node.start("a")
    return number, node.run()


def test_a_resized_isolated_pod_gets_the_free_core(node: FakeNode) -> None:
    """The container gets another core; status and event report it, and the core is no longer offered."""
    number, before = alone(node)
    assert (node.cpus(number), published(node, before)) == ("1", 2)
    resize(node, "a", "2", allocated="2")
    after = node.run()
    assert node.cpus(number) == "1-2"
    assert (status(after, "a")["cpus"], status(after, "a")["idle"]) == ("1-2", "5-6")
    [event] = events_between(before, after)
    assert event.reason is Reason.PINNED
    assert "runs on CPUs 1-2, siblings 5-6 idle" in event.message
    assert published(node, after) == 1


def test_a_resize_without_a_free_core_waits_for_one(node: FakeNode) -> None:
    """The container keeps its CPUs, with the reason in status and event, until another pod frees a core."""
    number, _ = alone(node)
    other = node.deploy("b", Wish("3", policy="exclusive"))
    before = node.run()
    resize(node, "a", "2", allocated="2")
    after = node.run()
    assert (node.cpus(number), status(after, "a")["pinned"], published(node, after)) == ("1", True, 0)
    assert status(after, "a")["refusal"]["reason"] == "KeepsFewerCPUs"
    missing = "wanted 2 wholly free cores, found 1"
    assert [event for event in events_between(before, after) if missing in event.message] == [
        Event(after.refusals[0].owner, Reason.UNPINNABLE, f"KeepsFewerCPUs: {after.refusals[0].message}")
    ]
    del node.documents["b"]
    node.stop(other)
    last = node.run()
    assert (node.cpus(number), last.refusals, published(node, last)) == ("1-2", (), 1)


@pytest.mark.parametrize("allocated", ["1", None], ids=["the kubelet waits", "it says nothing yet"])
def test_a_resize_counts_when_the_kubelet_allocates_it(allocated: str | None, node: FakeNode) -> None:
    """The CPUs that the kubelet has allocated count; without any, those of the pod spec."""
    number, _ = alone(node)
    resize(node, "a", "2", allocated)
    node.run()
    assert node.cpus(number) == ("1" if allocated else "1-2")


def test_a_shrunk_isolated_pod_stays_counted(node: FakeNode) -> None:
    """Freed cores are published for CMK's resource; isolated cores stay charged to the pod."""
    node.add("a", Wish("3", smt="isolate"))
    charge(node, "a", 3)
    number = node.start("a")
    node.run()
    resize(node, "a", "1", allocated="1")
    after = node.run()
    assert node.cpus(number) == "1"
    assert numbers(node, after) == {CORES: 2, OTHER_CORES: 2, ISOLATED: 3, WHOLE: 2, NUMA: 4}


GRANT = ClaimGrant(claim("solver-cpu", 2, pods=("solver",)), (CPUSet([1, 5]),), is_prepared=True)


def claiming() -> Any:
    """Return a pod whose container names a claim."""
    pod: Any = bound("solver", namespace="test")
    pod["spec"]["resourceClaims"] = [{"name": "cpus", "resourceClaimName": "solver-cpu"}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "cpus"}]}
    return pod


def test_status_names_the_claims_of_a_container() -> None:
    """The annotation and the socket list the same claims of a container."""
    state = state_of(claiming(), bound("web", annotations=EXCLUSIVE), ledger=Ledger().grant(GRANT))
    solver, web = sorted(state.pods, key=lambda pod: pod.name)
    text = pod_status(solver, None) or ""
    main = json.loads(text)["containers"]["main"]
    assert (main["origin"], main["claims"], main["cpus"]) == ("dra", ["solver-cpu"], "1,5")
    assert decode(PodStatus, text).containers["main"].claims == ("solver-cpu",)
    (told,) = (pod for pod in agent_state(state).pods if pod.name == "solver")
    assert told.containers["main"].claims == ("solver-cpu",)
    plain = json.loads(pod_status(web, None) or "")["containers"]["main"]
    assert plain.keys().isdisjoint({"origin", "claims"})


def test_names_of_claims_are_bounded() -> None:
    """The number and length of claim names in the annotation are limited, because tenants choose them."""
    pod, names = claiming(), [f"{at}-" + "x" * 250 for at in range(6)]
    pod["spec"]["resourceClaims"] = [
        {"name": f"c{at}", "resourceClaimName": it} for at, it in enumerate(names)
    ]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": f"c{at}"} for at in range(6)]}
    ledger = Ledger()
    for at, name in enumerate(names):
        cpus = (CPUSet([at + 1]),)
        ledger = ledger.grant(ClaimGrant(claim(name, 1, pods=("solver",)), cpus, is_prepared=True))
    (solver,) = state_of(pod, ledger=ledger).pods
    text = pod_status(solver, None) or ""
    main = decode(PodStatus, text).containers["main"]
    assert ([len(name) for name in main.claims], main.more_claims) == ([63] * 4, 2)
    assert json.loads(text)["containers"]["main"]["moreClaims"] == 2
    assert "x... and 2 more (" in "".join(claim_words(main))


def reported(times: ClaimTimes, before: str | None, **more: Any) -> str | None:
    """Return the annotation of a pod whose container does not run yet."""
    state = ClaimState("solver-cpu", 12, 11, (0,), times)
    return pod_status(PodState("solver", "test", "solver", claims=(state,), **more), before)


def test_claim_that_the_kubelet_does_not_ask_for_is_reported_with_each_try() -> None:
    """Each reminder for an unprepared claim changes the annotation, so that the kubelet syncs the pod."""
    since = "2026-11-20T10:00:00Z"
    assert reported(ClaimTimes(since=since), None) is None
    first = reported(ClaimTimes(since=since, tries=1), None) or ""
    (claim,) = decode(PodStatus, first).claims
    assert claim == PodClaim(name="solver-cpu", cpus=12, asked=11, numa_nodes=(0,), waits=since, tries=1)
    assert reported(ClaimTimes(since=since, tries=2), first) not in {None, first}


def test_time_of_prepare_stays_over_a_restart_of_the_agent() -> None:
    """The time of Prepare in the annotation stays over a restart of the agent, which does not know it."""
    prepared = "2026-11-20T10:00:00Z"
    before = reported(ClaimTimes(prepared=prepared), "{}")
    assert decode(PodStatus, before or "").claims[0].prepared == prepared
    assert reported(ClaimTimes(), before) == before
    again = reported(ClaimTimes(since=prepared, tries=1), before)
    assert decode(PodStatus, again or "").claims[0].prepared == ""


def test_pod_whose_containers_do_not_name_its_claim_is_reported() -> None:
    """A claim that no container of its pod names is reported with its CPUs."""
    pod = claiming()
    pod["spec"]["containers"][0]["resources"] = {}
    (solver,) = state_of(pod, ledger=Ledger().grant(GRANT)).pods
    status = decode(PodStatus, pod_status(solver, "{}") or "")
    assert (status.claims[0].cpus, status.containers) == (2, {})
