"""The status annotation of pods: its content and when it is written."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest

from agent.clock import Clock
from agent.kubelet.devices import LATE, LATE_FOR_SOME
from agent.node_state import NodeState, NoiseLevel, Path, PodState, Proof
from agent.report.pod_status import BLOCKED_SECONDS, PodReport, pod_status
from agent.report.publisher import Later
from apiserver.client import METADATA, METADATA_LIST
from pinning.contract import STATUS_CPUS, CPUPolicy, NoiseKind
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import DEVICES_NOT_NAMED, MORE_MAY_FOLLOW, Owner
from tests.agent.fake_api import FakeApiServer, api_of
from tests.agent.states import EXCLUSIVE, ISOLATE, WHEN, bound, owner, source, state_of
from tests.pods import container

LATER = "2026-11-20T11:00:00Z"


def written(state: NodeState, name: str = "a", before: str | None = None) -> Any:
    """Return the parsed annotation of a pod, or None."""
    text = pod_status(of(state, name), before)
    return text and json.loads(text)


def of(state: NodeState, name: str) -> PodState:
    """Return the state of a pod by name."""
    return next(pod for pod in state.pods if pod.name == name)


def test_status_of_a_pinned_container_has_its_proof() -> None:
    """The status has policies, CPUs, idle siblings, NUMA nodes, and the read-back CPUs with time and path."""
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


def test_status_of_a_mixed_container_has_the_shared_cpus() -> None:
    """A container that also uses the shared set has `sharedCpus`; `applied` stays the exclusive CPUs."""
    pod = bound("a", container("main", 1), annotations={**ISOLATE, "shared-cpus.corepin.io/pod": "true"})
    main = written(state_of(pod))["containers"]["main"]
    assert (main["cpus"], main["sharedCpus"]) == ("1", "0,2-4,6-7")
    assert (main["confinedBy"], main["cpuLimit"]) == ("affinity", "unset")
    assert (main["pinned"], main["applied"]["cpus"]) == (True, "1")


def test_limit_of_a_sharing_container_is_not_reported_as_unset() -> None:
    """With the policy `share` the kernel still enforces the CPU limit, so the status has no `cpuLimit`."""
    state = state_of(
        bound("a", container("main", 1), annotations={**ISOLATE, "shared-cpus.corepin.io/pod": "true"})
    )
    [pod] = state.pods
    [main] = pod.containers
    sharing = replace(pod, containers=(replace(main, policy=CPUPolicy.SHARE),))
    told = written(replace(state, pods=(sharing,)))["containers"]["main"]
    assert told["confinedBy"] == "affinity"
    assert "cpuLimit" not in told


def test_status_of_a_refused_container_is_not_pinned() -> None:
    """The status of a refused container has the reason and the message, and no CPUs."""
    main = written(state_of(bound("a", container("main", 99), annotations=EXCLUSIVE)))["containers"]["main"]
    assert main["pinned"] is False
    assert main["refusal"]["reason"] == "NotEnoughCPUs"
    assert "wanted 99" in main["refusal"]["message"]
    assert main.keys() == {"pinned", "refusal"}


def test_invalid_annotation_is_a_refusal_of_the_pod() -> None:
    """A pod with an invalid policy gets a refusal with reason Invalid."""
    pod = bound("a", annotations={"cpu-manager.corepin.io/pod": "banana"})
    assert written(state_of(pod))["refusal"]["reason"] == "Invalid"


def test_status_is_written_in_ascii() -> None:
    """A refusal that repeats other characters of an annotation has them escaped."""
    pod = bound("a", container("main", 1), annotations={"smt-policy.corepin.io/pod": "yés"})
    text = pod_status(of(state_of(pod), "a"), None)
    assert text
    assert text.isascii()
    assert "yés" in json.loads(text)["refusal"]["message"]


def test_a_pod_without_claims_has_no_status() -> None:
    """A pod without claims gets no annotation."""
    assert written(state_of(bound("a"))) is None


def test_unproven_container_is_not_pinned() -> None:
    """Without a read-back from the kernel there is no `applied`, whatever the old annotation said."""
    main = written(state_of(bound("a", annotations=EXCLUSIVE), proven=False), before="{}")["containers"][
        "main"
    ]
    assert main["pinned"] is False
    assert "applied" not in main


def test_status_is_written_when_a_container_runs() -> None:
    """Granted CPUs are reported when a container of the pod runs; a refusal is reported at once."""
    assert written(state_of(bound("a", annotations=EXCLUSIVE), proven=False)) is None
    two = bound("a", container("main", 2), container("big", 99), annotations=EXCLUSIVE)
    assert written(state_of(two, proven=False))["containers"].keys() == {"main", "big"}


def beside(reason: str, *, proven: bool = False) -> NodeState:
    """Return the state of a pod that requires CPUs near devices, which the kubelet has not named for a reason."""
    limits = {"cpu": "2", "nvidia.com/gpu": "1"}
    main = {"name": "main", "image": "x", "resources": {"limits": limits, "requests": limits}}
    return state_of(
        bound("a", main, annotations={**EXCLUSIVE, "device-policy.corepin.io/pod": "require"}),
        proven=proven,
        devices_unknown={Owner("a", "main"): reason},
    )


@pytest.mark.parametrize("reason", [DEVICES_NOT_NAMED, MORE_MAY_FOLLOW])
def test_status_of_a_pod_waits_for_the_kubelets_first_answer(reason: str) -> None:
    """A pod that requires CPUs near devices gets no status in the milliseconds before the kubelet names them."""
    assert written(beside(reason)) is None
    assert written(beside(reason), before="{}")["containers"]["main"]["refusal"]["reason"] == "DevicesUnknown"
    assert written(beside(reason, proven=True))


def test_status_of_a_rejected_pod_is_written_with_its_cpus() -> None:
    """A pod whose container was rejected gets its status as soon as it has CPUs, so that the kubelet tries again."""
    waits = of(beside(DEVICES_NOT_NAMED), "a")
    assert pod_status(replace(waits, was_rejected=True), None) is None
    ready = of(state_of(bound("a", annotations=EXCLUSIVE), proven=False), "a")
    assert pod_status(ready, None) is None
    text = pod_status(replace(ready, was_rejected=True), None)
    assert json.loads(text or "")["containers"]["main"]["cpus"]


def test_status_of_a_rejected_pod_waits_until_others_have_left_its_cpus() -> None:
    """A retry of the kubelet is rejected as long as other containers run on the CPUs, so the status is written after that."""
    ready = replace(of(state_of(bound("a", annotations=EXCLUSIVE), proven=False), "a"), was_rejected=True)
    blocked = replace(ready, is_held_back=True)
    assert pod_status(blocked, None) is None
    assert pod_status(ready, None)


def test_status_of_a_blocked_pod_is_written_after_some_seconds() -> None:
    """A pod beside a lasting conflict gets its status after BLOCKED_SECONDS; a refusal has a delay of its own."""
    main = of(state_of(bound("a", annotations=EXCLUSIVE), proven=False), "a")
    blocked = replace(main, was_rejected=True, is_held_back=True)
    assert pod_status(blocked, None, BLOCKED_SECONDS - 0.1) is None
    text = pod_status(blocked, None, BLOCKED_SECONDS)
    assert json.loads(text or "")["containers"]["main"]["cpus"]
    refused = replace(of(beside(DEVICES_NOT_NAMED), "a"), was_rejected=True, is_held_back=True)
    assert pod_status(refused, None, BLOCKED_SECONDS) is None


def held_back(state: NodeState, *names: str) -> NodeState:
    """Return a state in which containers of these pods were rejected and still would be."""
    pods = (
        replace(pod, was_rejected=True, is_held_back=True) if pod.name in names else pod for pod in state.pods
    )
    return replace(state, pods=tuple(pods))


async def test_report_of_a_blocked_pod_is_due_at_the_end_of_its_delay() -> None:
    """The report asks to be called again when the first blocked pod is due, also if nothing changes in the meantime."""
    pods = [bound(name, container("main", 1), annotations=EXCLUSIVE) for name in "ab"]
    server, now = FakeApiServer.with_pods(*pods), [100.0]
    state = state_of(*pods, proven=False)
    async with api_of(server) as api:
        report = PodReport(api, "node-1", source(*pods), Clock(monotonic=lambda: now[0]))

        async def due(*names: str) -> float | None:
            with pytest.raises(Later) as later:
                await report.publish(held_back(state, *names))
            return later.value.seconds

        assert await due("a") == BLOCKED_SECONDS
        now[0] += 3.0
        assert await due("a", "b") == BLOCKED_SECONDS - 3.0
        now[0] += 2.0
        assert await due("a", "b") == 3.0
        assert [path[-1] for path, _ in server.patches] == ["a"]
        now[0] += 3.0
        await report.publish(held_back(state, "a", "b"))
        assert [path[-1] for path, _ in server.patches] == ["a", "b"]


@pytest.mark.parametrize("is_shown", [True, False])
async def test_other_waits_do_not_delay_a_blocked_pod(*, is_shown: bool) -> None:
    """Beside a pod that the API server refuses, or the watch lacks, the next call is not later than for a blocked pod."""
    pods = [bound(name, container("main", 1), annotations=EXCLUSIVE) for name in "ab"]
    server, now = FakeApiServer.with_pods(*pods), [100.0]
    server.refused = {"b": httpx.Response(422)}
    pinned, [a, _] = state_of(*pods), state_of(*pods, proven=False).pods
    state = held_back(replace(pinned, pods=(a, pinned.pods[1])), "a")
    async with api_of(server) as api:
        shown = source(*(pods if is_shown else pods[:1]))
        report = PodReport(api, "node-1", shown, Clock(monotonic=lambda: now[0]))
        for waited in (0.0, BLOCKED_SECONDS - 0.25):
            now[0] = 100.0 + waited
            with pytest.raises(Later) as later:
                await report.publish(state)
            assert later.value.seconds
            assert later.value.seconds <= BLOCKED_SECONDS - waited
        now[0] = 100.0 + BLOCKED_SECONDS
        with pytest.raises(Later):
            await report.publish(state)
        assert report.writes == 1


@pytest.mark.parametrize("reason", [LATE, LATE_FOR_SOME, "the kubelet does not name devices: junk"])
def test_status_names_the_reason_of_a_longer_wait_for_devices(reason: str) -> None:
    """A pod whose devices are not known after some seconds, or because a call failed, gets a status with the reason."""
    assert written(beside(reason))["containers"]["main"]["refusal"]["message"].startswith(reason)


def test_status_has_drift_and_unpinned_time() -> None:
    """The status has `drift` for tasks outside the CPUs, and the unpinned time."""
    pod = bound("a", annotations=EXCLUSIVE)
    proof = Proof(CPUSet([1, 5]), WHEN, Path.RUNTIME, outside=2, window_seconds=0.004)
    main = written(state_of(pod, proofs={owner(pod): proof}))["containers"]["main"]
    assert main["drift"] is True
    assert main["applied"]["windowSeconds"] == 0.004


def test_unpinned_time_is_added_when_it_is_known() -> None:
    """The unpinned time is added to the status of the same CPUs once, and not changed afterwards."""
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
    """A damaged annotation is replaced by the one of the state."""
    state = state_of(bound("a", annotations=EXCLUSIVE))
    assert pod_status(of(state, "a"), before) == pod_status(of(state, "a"), None)


def test_times_change_only_with_content() -> None:
    """The time changes with the CPUs, and not when the same CPUs are read again by another path."""
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
def test_noise_has_its_kind_and_start_time(
    before: NoiseLevel | None, level: NoiseLevel | None, after: NoiseLevel | None
) -> None:
    """An unknown noise level keeps the old one, and the same kind keeps its start time."""
    state = state_of(bound("a", annotations=EXCLUSIVE)).pods[0]
    (main,) = state.containers
    first = pod_status(replace(state, containers=(replace(main, noise=before),)), None)
    text = pod_status(replace(state, containers=(replace(main, noise=level),)), first)

    noise = json.loads(text or "")["containers"]["main"].get("noise")
    assert noise == (after and {"kind": after.kind, "since": after.since})


def test_noise_ends_with_the_exclusive_cpus() -> None:
    """The noise level is removed when a container has no exclusive CPUs any more."""
    noisy = state_of(bound("a", container("main", 2), container("b", 2), annotations=EXCLUSIVE)).pods[0]
    first = pod_status(
        replace(noisy, containers=tuple(replace(it, noise=NOISY) for it in noisy.containers)), None
    )
    only_b = {**EXCLUSIVE, "cpu-manager.corepin.io/container.main": "none"}
    after = state_of(bound("a", container("main", 2), container("b", 2), annotations=only_b)).pods[0]

    containers = json.loads(pod_status(after, first) or "")["containers"]
    assert {name: "noise" in it for name, it in containers.items()} == {"b": True}


def test_refusal_is_not_rewritten_when_free_cpus_change() -> None:
    """The refusal changes with the requested CPUs, not with the free ones."""
    waiting = bound("a", container("main", 99), annotations=EXCLUSIVE)
    first = pod_status(of(state_of(waiting), "a"), None)
    assert pod_status(of(state_of(bound("b", annotations=EXCLUSIVE), waiting), "a"), first) == first
    less = bound("a", container("main", 98), annotations=EXCLUSIVE)
    assert "wanted 98" in written(state_of(less), before=first)["containers"]["main"]["refusal"]["message"]


async def test_a_change_is_one_patch() -> None:
    """An unchanged state or a late watch costs no request, and the patch has the uid as a precondition."""
    pod = bound("a", annotations=EXCLUSIVE, resourceVersion="7")
    server = FakeApiServer.with_pods(pod, bound("b"))
    async with api_of(server) as api:
        report = PodReport(api, "node-1", source(pod, bound("b")))
        for _ in range(3):
            await report.publish(state_of(pod, bound("b")))
        assert report.writes == api.requests == 1
    [(path, body)] = server.patches
    assert path == "/api/v1/namespaces/default/pods/a"
    assert server.calls[0].request.headers["accept"] == METADATA
    assert body["metadata"]["uid"] == "a"
    assert body["metadata"]["annotations"].keys() == {STATUS_CPUS}


async def test_annotation_missing_in_the_watch_is_written_again() -> None:
    """If the watch shows a newer pod without the annotation, it is written again."""
    pod = bound("a", annotations=EXCLUSIVE, resourceVersion="7")
    server = FakeApiServer.with_pods(pod)
    async with api_of(server) as api:
        pods = source(pod)
        report = PodReport(api, "node-1", pods)
        await report.publish(state_of(pod))
        pods.shown = source(bound("a", annotations=EXCLUSIVE, resourceVersion="900")).shown
        await report.publish(state_of(pod))
        assert report.writes == 2


async def test_stale_annotation_is_removed() -> None:
    """Finished pods and pods without a claim lose the annotation; a pod newer than the state keeps it."""
    old = {STATUS_CPUS: "{}"}
    plain, over = bound("a", annotations=old), bound("b", annotations=old)
    over["status"] = {"phase": "Succeeded"}
    young = bound("c", annotations=old)
    server = FakeApiServer.with_pods(plain, over, young)
    async with api_of(server) as api:
        await PodReport(api, "node-1", source(plain, over, young)).publish(state_of(plain, over))
    assert [(path[-1], body["metadata"]["annotations"]) for path, body in server.patches] == [
        ("a", {STATUS_CPUS: None}),
        ("b", {STATUS_CPUS: None}),
    ]


async def test_a_static_pod_is_reported_at_its_mirror() -> None:
    """The annotation is written to the mirror pod's own uid, which differs from the runtime's."""
    mirror = {"kubernetes.io/config.mirror": "h", "kubernetes.io/config.hash": "abc123", **EXCLUSIVE}
    pod = bound("a", annotations=mirror, uid="api-uid")
    server = FakeApiServer.with_pods(pod)
    async with api_of(server) as api:
        await PodReport(api, "node-1", source(pod)).publish(state_of(pod))
    assert server.patches[0][1]["metadata"]["uid"] == "api-uid"


async def test_finished_pod_that_the_watch_drops_loses_the_annotation() -> None:
    """A pod that the watch dropped loses the annotation, unless it is being deleted."""
    annotations = {STATUS_CPUS: "{}", **EXCLUSIVE}
    pods = {name: bound(name, container("main", 1), annotations=annotations) for name in "abc"}
    plain = bound("d")
    (pods["c"]["metadata"] or {})["deletionTimestamp"] = WHEN
    server = FakeApiServer.with_pods(*pods.values())
    server.refused = {"b": httpx.Response(500)}
    async with api_of(server) as api:
        shown = source(*pods.values())
        report = PodReport(api, "node-1", shown)
        with suppress(Later):
            await report.publish(state_of(*pods.values(), proven=False))
        server.calls.clear()
        shown.shown = source(plain).shown
        for _ in range(3):
            await report.publish(state_of(plain))
    assert [(path[-1], body["metadata"]) for path, body in server.patches] == [
        (name, {"uid": name, "annotations": {STATUS_CPUS: None}}) for name in "ab"
    ]


async def test_annotation_waits_until_the_watch_shows_the_pod() -> None:
    """A pod found by lookup gets its annotation when the watch shows it; other pods do not wait for it."""
    late, other = bound("a", annotations=EXCLUSIVE), bound("b", container("main", 1), annotations=EXCLUSIVE)
    server = FakeApiServer.with_pods(late, other)
    async with api_of(server) as api:
        pods = source(other)
        report = PodReport(api, "node-1", pods)
        with pytest.raises(Later, match="a"):
            await report.publish(state_of(late, other))
        pods.shown = source(late, other).shown
        await report.publish(state_of(late, other))
    assert [path[-1] for path, _ in server.patches] == ["b", "a"]


async def test_reset_removes_every_annotation() -> None:
    """Reset lists the pods of the node, removes every annotation, and ignores deleted pods."""
    pods = [
        bound("a", annotations={STATUS_CPUS: "{}"}),
        bound("b"),
        bound("c", annotations={STATUS_CPUS: "{}"}),
    ]
    server = FakeApiServer.with_pods(*pods)
    server.failures = [404]
    async with api_of(server) as api:
        await PodReport(api, "node-1", source()).reset()
    listing = server.calls[0].request
    assert listing.url.params["fieldSelector"] == "spec.nodeName=node-1"
    assert listing.headers["accept"] == METADATA_LIST
    assert [(path[-1], body["metadata"]["annotations"]) for path, body in server.patches] == [
        ("a", {STATUS_CPUS: None}),
        ("c", {STATUS_CPUS: None}),
    ]
