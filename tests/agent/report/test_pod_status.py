"""The annotation of pods: what it says, when it is written, and when it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.node_state import NodeState, NoiseLevel, Path, PodState, Proof
from agent.report.pod_status import PodReport, pod_status
from agent.report.publisher import Later
from apiserver.client import Api
from pinning.contract import STATUS_CPUS, CPUPolicy, NoiseKind
from pinning.machine.cpuset import CPUSet
from tests.agent.report.pod_server import RefusingServer, Server, run, tell
from tests.agent.states import EXCLUSIVE, ISOLATE, WHEN, bound, owner, source, state_of
from tests.pods import container

LATER = "2026-11-20T11:00:00Z"


def written(state: NodeState, name: str = "a", before: str | None = None) -> Any:
    """Return the annotation of a pod, read."""
    text = pod_status(of(state, name), before)
    return text and json.loads(text)


def of(state: NodeState, name: str) -> PodState:
    """Return what the state says of a pod."""
    return next(pod for pod in state.pods if pod.name == name)


def test_a_pinned_container_is_told_with_its_proof() -> None:
    """Policies, CPUs, idle siblings, NUMA nodes, and what the kernel was read to have, when and by which path."""
    pod = bound("a", container("main", 1), container("side"), annotations=ISOLATE)
    assert written(state_of(pod)) == {
        "version": 1,
        "containers": {
            "main": {
                "policy": "exclusive",
                "smtPolicy": "isolate",
                "numaPolicy": "packed",
                "cpus": "1",
                "idle": "5",
                "numaNodes": [0],
                "pinned": True,
                "applied": {"cpus": "1", "time": WHEN, "path": "cgroup"},
            }
        },
    }


def test_who_may_use_the_shared_set_is_told_which_that_is() -> None:
    """It follows the shared set, and what was applied does not: that stays what the container owns."""
    pod = bound("a", container("main", 1), annotations={**ISOLATE, "shared-cpus.corepin.io/pod": "true"})
    main = written(state_of(pod))["containers"]["main"]
    assert (main["cpus"], main["sharedCpus"]) == ("1", "0,2-4,6-7")
    assert (main["confinedBy"], main["cpuLimit"]) == ("affinity", "unset")
    assert (main["pinned"], main["applied"]["cpus"]) == (True, "1")


def test_limit_of_who_owns_no_cpus_is_not_told_as_unset() -> None:
    """A container with the policy `share` may run under `cmk isolate` too; the kernel goes on enforcing its limit."""
    state = state_of(
        bound("a", container("main", 1), annotations={**ISOLATE, "shared-cpus.corepin.io/pod": "true"})
    )
    [pod] = state.pods
    [main] = pod.containers
    sharing = replace(pod, containers=(replace(main, policy=CPUPolicy.SHARE),))
    told = written(replace(state, pods=(sharing,)))["containers"]["main"]
    assert told["confinedBy"] == "affinity"
    assert "cpuLimit" not in told


def test_a_refused_container_is_told_as_not_pinned() -> None:
    """The reason and the remedy are told, and never CPUs that it does not hold."""
    main = written(state_of(bound("a", container("main", 99), annotations=EXCLUSIVE)))["containers"]["main"]
    assert main["pinned"] is False
    assert main["refusal"]["reason"] == "NotEnoughCPUs"
    assert "wanted 99" in main["refusal"]["message"]
    assert main.keys() == {"pinned", "refusal"}


def test_what_cannot_be_read_is_told_of_the_pod() -> None:
    """A pod whose own words are wrong learns why."""
    pod = bound("a", annotations={"cpu-manager.corepin.io/pod": "banana"})
    assert written(state_of(pod))["refusal"]["reason"] == "Invalid"


def test_a_pod_without_claims_is_told_nothing() -> None:
    """No annotation is put on pods that never asked."""
    assert written(state_of(bound("a"))) is None


def test_what_is_not_yet_proven_is_not_called_pinned() -> None:
    """Without a reading of the kernel there is no `applied`, whatever was told before."""
    main = written(state_of(bound("a", annotations=EXCLUSIVE), proven=False), before="{}")["containers"][
        "main"
    ]
    assert main["pinned"] is False
    assert "applied" not in main


def test_nothing_is_old_a_container_runs() -> None:
    """What is held by containers that do not run yet is told with the first that does; a refusal is told at once."""
    assert written(state_of(bound("a", annotations=EXCLUSIVE), proven=False)) is None
    two = bound("a", container("main", 2), container("big", 99), annotations=EXCLUSIVE)
    assert written(state_of(two, proven=False))["containers"].keys() == {"main", "big"}


def test_drift_and_the_window_are_told() -> None:
    """Tasks outside, and how long the container may have run elsewhere, are part of the report."""
    pod = bound("a", annotations=EXCLUSIVE)
    proof = Proof(CPUSet([1, 5]), WHEN, Path.RUNTIME, outside=2, window_seconds=0.004)
    main = written(state_of(pod, proofs={owner(pod): proof}))["containers"]["main"]
    assert main["drift"] is True
    assert main["applied"]["windowSeconds"] == 0.004


def test_window_that_is_known_later_is_told_later() -> None:
    """It is added to what was told of the same CPUs, and is what it was from then on."""
    pod = bound("a", annotations=EXCLUSIVE)
    text = pod_status(of(state_of(pod), "a"), None)
    for seconds in (0.004, 9.0):
        proofs = {owner(pod): Proof(CPUSet([1, 5]), LATER, Path.FOUND, window_seconds=seconds)}
        text = pod_status(of(state_of(pod, proofs=proofs), "a"), text)
    applied = json.loads(text or "")["containers"]["main"]["applied"]
    assert applied == {"cpus": "1,5", "time": WHEN, "path": "cgroup", "windowSeconds": 0.004}


@pytest.mark.parametrize(
    "before",
    [None, "", "no json", "[]", '{"containers": 7}', '{"containers": {"main": 7}}', '{"x": ' + "[" * 10_000],
)
def test_a_damaged_annotation_is_replaced(before: str | None) -> None:
    """Whatever stood there before, the new words are those of the state."""
    state = state_of(bound("a", annotations=EXCLUSIVE))
    assert pod_status(of(state, "a"), before) == pod_status(of(state, "a"), None)


def test_times_change_only_with_content() -> None:
    """The same CPUs found later by another path are the same report; other CPUs bring their own time."""
    pod = bound("a", annotations=EXCLUSIVE)
    first = pod_status(of(state_of(pod), "a"), None)
    same = state_of(pod, when=LATER, path=Path.FOUND)
    assert pod_status(of(same, "a"), first) == first
    grown = bound("a", container("main", 4), annotations=EXCLUSIVE)
    moved = written(state_of(grown, when=LATER), before=first)
    assert moved["containers"]["main"]["applied"]["time"] == LATER


NOISY = NoiseLevel(NoiseKind.INTERRUPTS, WHEN)


@pytest.mark.parametrize(
    ("before", "level", "after"),
    [
        pytest.param(None, NOISY, NOISY, id="it begins"),
        pytest.param(
            NOISY, NoiseLevel(NoiseKind.INTERRUPTS, LATER), NOISY, id="a new agent finds it still so"
        ),
        pytest.param(NOISY, None, NOISY, id="a new agent does not know yet"),
        pytest.param(
            NOISY, NoiseLevel(NoiseKind.WAIT, LATER), NoiseLevel(NoiseKind.WAIT, LATER), id="another kind"
        ),
        pytest.param(NOISY, NoiseLevel(None), None, id="it ends"),
        pytest.param(None, None, None, id="not known"),
    ],
)
def test_noise_is_a_level_with_its_begin(
    before: NoiseLevel | None, level: NoiseLevel | None, after: NoiseLevel | None
) -> None:
    """What is not known changes nothing, and the same kind began when the annotation says."""
    state = state_of(bound("a", annotations=EXCLUSIVE)).pods[0]
    (main,) = state.containers
    first = pod_status(replace(state, containers=(replace(main, noise=before),)), None)
    text = pod_status(replace(state, containers=(replace(main, noise=level),)), first)

    noise = json.loads(text or "")["containers"]["main"].get("noise")
    assert noise == (after and {"kind": after.kind, "since": after.since})


def test_noise_ends_with_the_exclusive_cpus() -> None:
    """The level is of CPUs that the container does not hold any more."""
    noisy = state_of(bound("a", container("main", 2), container("b", 2), annotations=EXCLUSIVE)).pods[0]
    first = pod_status(
        replace(noisy, containers=tuple(replace(it, noise=NOISY) for it in noisy.containers)), None
    )
    only_b = {**EXCLUSIVE, "cpu-manager.corepin.io/container.main": "none"}
    after = state_of(bound("a", container("main", 2), container("b", 2), annotations=only_b)).pods[0]

    containers = json.loads(pod_status(after, first) or "")["containers"]
    assert {name: "noise" in it for name, it in containers.items()} == {"b": True}


def test_what_is_free_beside_a_refused_claim_is_not_told_again() -> None:
    """A neighbour that comes or goes changes nothing for who waits; asking for another number does."""
    waiting = bound("a", container("main", 99), annotations=EXCLUSIVE)
    first = pod_status(of(state_of(waiting), "a"), None)
    assert pod_status(of(state_of(bound("b", annotations=EXCLUSIVE), waiting), "a"), first) == first
    less = bound("a", container("main", 98), annotations=EXCLUSIVE)
    assert "wanted 98" in written(state_of(less), before=first)["containers"]["main"]["refusal"]["message"]


def test_a_change_is_one_patch_and_the_rest_is_silence() -> None:
    """The same state told again, and the watch being late, cost no request; the uid is a precondition."""
    pod = bound("a", annotations=EXCLUSIVE, resourceVersion="7")
    server = Server()

    async def act(api: Api) -> None:
        report = PodReport(api, "node-1", source(pod, bound("b")))
        for _ in range(3):
            await report.publish(state_of(pod, bound("b")))
        assert report.writes == api.requests == 1

    run(act, server)
    [(path, body)] = server.patches
    assert path == "/api/v1/namespaces/default/pods/a"
    assert body["metadata"]["uid"] == "a"
    assert body["metadata"]["annotations"].keys() == {STATUS_CPUS}


def test_the_watch_wins_over_what_was_written() -> None:
    """When the pod of the API is newer than our write, what it shows counts: an annotation taken away comes back."""
    pod = bound("a", annotations=EXCLUSIVE, resourceVersion="7")
    server = Server()

    async def act(api: Api) -> None:
        pods = source(pod)
        report = PodReport(api, "node-1", pods)
        await report.publish(state_of(pod))
        pods.shown = source(bound("a", annotations=EXCLUSIVE, resourceVersion="900")).shown
        await report.publish(state_of(pod))
        assert report.writes == 2

    run(act, server)


def test_who_holds_nothing_any_more_loses_the_annotation() -> None:
    """It is removed with the policy, and from pods that are over; a pod younger than the state is left alone."""
    old = {STATUS_CPUS: "{}"}
    plain, over = bound("a", annotations=old), bound("b", annotations=old)
    over["status"] = {"phase": "Succeeded"}
    young = bound("c", annotations=old)
    server = Server()

    async def act(api: Api) -> None:
        await PodReport(api, "node-1", source(plain, over, young)).publish(state_of(plain, over))

    run(act, server)
    assert [(path[-1], body["metadata"]["annotations"]) for path, body in server.patches] == [
        ("a", {STATUS_CPUS: None}),
        ("b", {STATUS_CPUS: None}),
    ]


def test_a_static_pod_is_told_at_its_mirror() -> None:
    """The runtime knows it by the hash of its manifest, the API by a uid of its own."""
    mirror = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "abc123", **EXCLUSIVE}
    pod = bound("a", annotations=mirror, uid="api-uid")
    server = Server()

    async def act(api: Api) -> None:
        await PodReport(api, "node-1", source(pod)).publish(state_of(pod))

    run(act, server)
    assert server.patches[0][1]["metadata"]["uid"] == "api-uid"


def test_pod_that_is_over_loses_the_annotation() -> None:
    """The source shows it no more, the API may; one that is being deleted takes it along, and failing costs nobody."""
    annotations = {STATUS_CPUS: "{}", **EXCLUSIVE}
    pods = {name: bound(name, container("main", 1), annotations=annotations) for name in "abc"}
    plain = bound("d")
    (pods["c"]["metadata"] or {})["deletionTimestamp"] = WHEN
    server = RefusingServer(500, "b")

    async def act(api: Api) -> None:
        shown = source(*pods.values())
        report = PodReport(api, "node-1", shown)
        await tell(report, state_of(*pods.values(), proven=False))
        server.patches.clear()
        shown.shown = source(plain).shown
        for _ in range(3):
            await report.publish(state_of(plain))

    run(act, server)
    assert [(path[-1], body["metadata"]) for path, body in server.patches] == [
        (name, {"uid": name, "annotations": {STATUS_CPUS: None}}) for name in "ab"
    ]


def test_a_pod_that_is_shown_late_is_told_then() -> None:
    """What was found by its name is pinned at once; its annotation is written when the watch shows it."""
    late, other = bound("a", annotations=EXCLUSIVE), bound("b", container("main", 1), annotations=EXCLUSIVE)
    server = Server()

    async def act(api: Api) -> None:
        pods = source(other)
        report = PodReport(api, "node-1", pods)
        with pytest.raises(Later, match="a"):
            await report.publish(state_of(late, other))
        pods.shown = source(late, other).shown
        await report.publish(state_of(late, other))

    run(act, server)
    assert [path[-1] for path, _ in server.patches] == ["b", "a"]


def test_reset_removes_every_annotation() -> None:
    """The API is asked, as nothing watches it then; pods without one, and pods that just went, are no trouble."""
    pods = [
        bound("a", annotations={STATUS_CPUS: "{}"}),
        bound("b"),
        bound("c", annotations={STATUS_CPUS: "{}"}),
    ]
    server = Server(404)
    server.listed = pods

    async def act(api: Api) -> None:
        await PodReport(api, "node-1", source()).reset()

    run(act, server)
    assert [(path[-1], body["metadata"]["annotations"]) for path, body in server.patches] == [
        ("a", {STATUS_CPUS: None}),
        ("c", {STATUS_CPUS: None}),
    ]
