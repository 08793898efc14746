"""The agent's report of containers whose CPUs are those of ResourceClaims."""

from __future__ import annotations

import json
from typing import Any

from agent.node_state import ClaimState, PodState
from agent.report.pod_status import pod_status
from agent.serve.state_json import agent_state
from drawing.claim_words import claim_words
from pinning.dra.claims import ClaimGrant, ClaimTimes
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from published.codec import decode
from published.pod_status import PodClaim, PodStatus
from tests.agent.states import EXCLUSIVE, bound, state_of
from tests.pinning.dra.claiming import claim

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
