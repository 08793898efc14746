"""`corepin why`: the timeline of a pod, from its status, annotations and events."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from agent.report.events import event_document, events_between
from agent.report.pod_status import pod_status
from corepin.cli import kubectl, main
from corepin.node.pod_timeline import Entry, agent_status, timeline_of
from pinning.contract import CMK_INJECTED, CRANE_CPU_MANAGER, GATE_CONTAINER, GUARDED, STATUS_CPUS
from pinning.pods.types import Pod
from tests.agent.states import EXCLUSIVE, ISOLATE, WHEN, bound, state_of
from tests.corepin.nodes import Serve
from tests.pods import container

LATER = "2026-11-20T10:00:07Z"


def shown(document: Pod, *others: Pod, **state: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a pod and its events after the agent has reported."""
    after = state_of(*others, document, **state)
    own: dict[str, Any] = dict(document["metadata"] or {})
    uid = own["uid"]
    text = pod_status(next(pod for pod in after.pods if pod.uid == uid), None)
    events = [
        event_document(event, document, "node-1", LATER)
        for event in events_between(state_of(*others), after)
        if event.owner.pod_uid == uid
    ]
    metadata = own | {"annotations": {**own["annotations"], STATUS_CPUS: text}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-20T10:00:01Z"}
    state_running = {"running": {"startedAt": "2026-11-20T10:00:05Z"}}
    statuses = [{"name": it["name"], "state": state_running} for it in document["spec"]["containers"]]  # type: ignore[index,union-attr]
    status = {"phase": "Running", "conditions": [scheduled], "containerStatuses": statuses}
    return {
        "metadata": metadata,
        "spec": {**(document["spec"] or {}), "nodeName": "node-1"},
        "status": status,
    }, events


def served(pod: dict[str, Any], events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a pod and its events by their paths on the API server."""
    folder, name = "/api/v1/namespaces/default", pod["metadata"]["name"]
    return {
        f"{folder}/pods/{name}": pod,
        f"{folder}/events?fieldSelector=involvedObject.uid={name}": {"items": events},
    }


def changed(pod: dict[str, Any], **status: Any) -> dict[str, Any]:
    """Return a pod with another status."""
    return {**pod, "status": {**pod["status"], **status}}


def with_facts(annotations: dict[str, str] = EXCLUSIVE, **facts: Any) -> dict[str, Any]:
    """Return pod web, of whose container main the agent has published these facts too."""
    pod, _ = shown(bound("web", annotations=annotations))
    status = json.loads(pod["metadata"]["annotations"][STATUS_CPUS])
    status["containers"]["main"] |= facts
    pod["metadata"]["annotations"][STATUS_CPUS] = json.dumps(status)
    return pod


def entries_of(pod: dict[str, Any]) -> list[tuple[str, str]]:
    """Return stage and message of the entries of a pod's timeline."""
    return [(it.stage, it.message) for it in timeline_of(pod, []).entries]


def test_timeline_of_a_pinned_pod() -> None:
    """The timeline has claim, node, start, decision and proof in chronological order, and no waits."""
    words = {"quota-policy.corepin.io/pod": "keep", "device-policy.corepin.io/pod": "none"}
    timeline = timeline_of(*shown(bound("web", annotations={**ISOLATE, **words}), when=LATER))

    assert timeline.title == "pod default/web, Running, on node node-1"
    assert timeline.entries == (
        Entry(
            WHEN,
            "claim",
            "main wants 2 CPUs, exclusive, smt isolate, quota keep, devices none, by annotation, and must not start"
            " without them",
        ),
        Entry("2026-11-20T10:00:01Z", "node", "the scheduler chose node-1"),
        Entry("2026-11-20T10:00:05Z", "start", "main started"),
        Entry(
            LATER,
            "decision",
            "Pinned: container main runs on CPUs 2-3, siblings 6-7 idle (cpu exclusive, smt isolate, numa packed)",
        ),
        Entry(LATER, "proof", "the kernel keeps main on CPUs 2-3, written to its cgroup"),
    )
    assert timeline.waits == ()


def test_decision_outlives_its_event() -> None:
    """Without the event, which the API server deletes, the annotation still has the decision."""
    pod, _ = shown(bound("web", annotations=ISOLATE))

    decided = [entry.message for entry in timeline_of(pod, []).entries if entry.stage == "decision"]
    assert decided == ["main gets CPUs 2-3, siblings 6-7 idle (cpu exclusive, smt isolate, numa packed)"]


def test_timeline_has_the_shared_cpus_of_a_container() -> None:
    """The line about shared CPUs follows the one about the container's own CPUs, also after its event has expired."""
    asked = {**ISOLATE, "shared-cpus.corepin.io/pod": "true"}
    pod, events = shown(bound("web", container("main", 1), annotations=asked), when=LATER)
    sharing = (
        "main may also run on CPUs 0,2-4,6-7, which other containers use; threads that the application does not move there are kept off them"
        " by their affinity; its CPU limit is not enforced"
    )

    for told in (events, []):
        entries = [it.message for it in timeline_of(pod, told).entries if it.stage in {"decision", "proof"}]
        assert entries[0].partition("main ")[0] in {"Pinned: container ", ""}
        assert entries[1:] == [
            sharing,
            "the kernel keeps main, except threads that were moved, on CPUs 1, written to its cgroup",
        ]


def test_noise_is_in_the_timeline() -> None:
    """The timeline has noise on the container's CPUs with its start, also of a kind from a later agent."""
    entry = timeline_of(with_facts(noise={"kind": "interrupts", "since": LATER}), []).entries[-1]

    assert (entry.time, entry.message) == (
        LATER,
        "main is disturbed on its CPUs: interrupts of devices above the operator's limit",
    )


def test_cpus_that_are_not_quiet_are_among_the_proofs() -> None:
    """The timeline shows the requested noise and irq policies, and the reasons why they are not in effect."""
    words = {"noise-policy.corepin.io/pod": "quiet", "irq-policy.corepin.io/pod": "devices, eth1"}
    kept = "no interrupt has a name like eth1"
    facts = {"notQuiet": "no irqbalance", "notKept": kept, "notProven": "too many cgroups"}
    entries = entries_of(with_facts({**EXCLUSIVE, **words}, **facts))

    assert ("proof", "the CPUs of main are not kept quiet: no irqbalance") in entries
    assert ("proof", "the irq-policy of main: no interrupt has a name like eth1") in entries
    assert ("proof", "it is not proven where all tasks of main run: too many cgroups") in entries
    assert any("noise quiet, interrupts devices eth1" in message for _, message in entries)


def test_devices_are_among_the_proofs() -> None:
    """The timeline names the devices that a container's CPUs are near."""
    pod = with_facts(devices=[{"resource": "a.b/c", "count": 1, "nodes": [1], "near": True}])
    assert (WHEN, "proof", "main runs beside a.b/c on NUMA node 1") in timeline_of(pod, []).entries


def test_timeline_has_the_moments_of_devices() -> None:
    """The timeline shows when the agent asked the kubelet for devices, and the answer, before decision and proof."""
    _, events = shown(bound("web", annotations=EXCLUSIVE))
    asked, named = WHEN.replace("10:00:00", "09:59:58"), WHEN.replace("10:00:00", "09:59:59")
    device = {"resource": "a.b/c", "count": 1, "nodes": [1], "near": True}
    pod = with_facts(devices=[device], devicesAsked=asked, devicesNamed=named)
    entries = [it for it in timeline_of(pod, events).entries if asked <= it.time and it.stage != "start"]
    assert [(it.time, it.stage) for it in entries[:2]] == [(asked, "devices"), (named, "devices")]
    assert entries[0].message == "the agent asked the kubelet for the devices of main"
    assert entries[1].message == "the kubelet has named the devices of main"
    assert all(it.time >= named for it in entries if it.stage in ("decision", "proof"))


@pytest.mark.parametrize(
    ("nodes", "place"), [([1], "NUMA node 1"), ([0, 1], "NUMA nodes 0, 1"), ([], "NUMA nodes not known")]
)
def test_claims_of_a_container_are_among_the_decisions(nodes: list[int], place: str) -> None:
    """The claims of a container are listed with the number of their CPUs, and the NUMA nodes of these."""
    pod = with_facts(origin="dra", claims=["web-cpu"], numaNodes=nodes, cpus="1-2")
    assert ("decision", f"main has the CPUs of claim web-cpu (2 CPUs, {place})") in entries_of(pod)


def test_damaged_status_of_a_claim_is_shown_without_a_number() -> None:
    """An invalid CPU list is shown without a count; without the admission policy users can write the annotation."""
    pod = with_facts(origin="dra", claims=["x"], numaNodes=[0], cpus="zzz")
    assert ("decision", "main has the CPUs of claim x (NUMA node 0)") in entries_of(pod)


def test_claim_that_the_scheduler_does_not_count_is_shown_once() -> None:
    """An uncounted claim is one entry of the timeline: from its event, or from the status once the event expired."""
    pod = with_facts(uncounted="it requests 0 corepin.io/isolated-cores")

    def told(container: str) -> list[str]:
        message = f"container {container}: it requests 0 corepin.io/isolated-cores"
        event = {
            "source": {"component": "corepin"},
            "reason": "Uncounted",
            "message": message,
            "metadata": {},
        }
        return [it.message for it in timeline_of(pod, [event]).entries if "isolated-cores" in it.message]

    words = "the scheduler does not count the cores of main: it requests 0 corepin.io/isolated-cores"
    assert [it.message for it in timeline_of(pod, []).entries if "isolated-cores" in it.message] == [words]
    assert told("main") == ["Uncounted: container main: it requests 0 corepin.io/isolated-cores"]
    assert words in told("main2")


def test_refused_claim_says_what_it_waits_for() -> None:
    """A refusal with its remedy is in the timeline and among the waits."""
    full = bound("big", container("main", 6), annotations=EXCLUSIVE)
    timeline = timeline_of(*shown(bound("late", annotations=EXCLUSIVE), full))

    (refusal,) = (entry.message for entry in timeline.entries if entry.stage == "refusal")
    assert refusal.startswith("Unpinnable: ")
    (wait,) = timeline.waits
    assert wait.startswith("CPUs for main: wanted 2 free CPUs, found 0: wait")


def test_refused_pool_is_no_fault_of_the_annotations() -> None:
    """A pod whose pool gets no CPUs waits for CPUs, and its annotations are not blamed."""
    late: Any = bound("late", container("main"), annotations=ISOLATE)
    amounts = {"cpu": "64", "memory": "1Gi"}
    late["spec"]["resources"] = {"requests": amounts, "limits": amounts}
    (wait,) = timeline_of(*shown(late)).waits
    assert wait.startswith("CPUs for its pool: wanted 64 wholly free cores, found ")


def test_pod_without_a_node_waits_for_the_scheduler() -> None:
    """A pod without a node waits for the scheduler, with its message if there is one."""
    pod = {**bound("web", annotations=EXCLUSIVE)}
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}

    assert timeline_of(pod | {"status": {"conditions": [condition]}}, []).waits == (
        "a node: 0/1 nodes are available",
    )
    assert timeline_of(pod | {"status": {}}, []).waits == (
        "a node: the scheduler has not reported anything yet",
    )


def test_an_unreadable_status_annotation_is_ignored() -> None:
    """A status annotation that cannot be parsed, such as 100,000 nested brackets, counts as none."""
    deep, _ = shown(bound("web", annotations=ISOLATE))
    deep["metadata"]["annotations"][STATUS_CPUS] = '{"x": ' + "[" * 100_000
    assert agent_status(deep) is None


def test_silent_agent_is_named() -> None:
    """A claim without a status from the agent waits for the agent; a pod without claims waits for nothing."""
    pod, _ = shown(bound("web", annotations=EXCLUSIVE))
    for text in ("{", "[]", '{"containers": []}'):
        pod["metadata"]["annotations"][STATUS_CPUS] = text
        (wait,) = timeline_of(pod, []).waits
        assert wait.startswith("the agent of node node-1")
    plain, _ = shown(bound("plain", annotations={}))
    assert timeline_of(plain, []).waits == ()
    assert timeline_of(plain, []).entries[0].message == "none: its containers have no CPUs of their own"


def test_claims_that_containers_name_are_in_the_timeline() -> None:
    """A pod whose CPUs come from ResourceClaims has CPUs of its own; a template's claim may not be made yet."""
    pod, _ = shown(bound("plain", annotations={}))
    pod["spec"]["resourceClaims"] = [
        {"name": "cpus", "resourceClaimName": "team-cpus"},
        {"name": "gpu", "resourceClaimTemplateName": "gpu"},
    ]
    names = [{"name": "cpus"}, {"name": "gpu"}]
    pod["spec"]["containers"][0]["resources"] = {"claims": names}

    def claims(pod: dict[str, Any]) -> list[str]:
        return [entry.message for entry in timeline_of(pod, []).entries if entry.stage == "claim"]

    assert claims(pod) == [
        "main names ResourceClaim team-cpus",
        "ResourceClaims that are not created from their templates yet: 1",
    ]
    made = changed(pod, resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "plain-gpu-x7"}])
    assert claims(made) == ["main names ResourceClaims plain-gpu-x7, team-cpus"]
    pod["spec"]["containers"][0]["resources"] = {}
    assert claims(pod) == ["ResourceClaims that are not created from their templates yet: 1"]


def test_everything_that_can_be_waited_for_is_named() -> None:
    """Waits have the cause: invalid annotations, CPUs not applied, foreign tasks, the gate or the kubelet."""
    pod, _ = shown(bound("web", annotations=EXCLUSIVE))
    main_status = {"policy": "exclusive", "cpus": "1,5", "smtPolicy": "prefer", "numaPolicy": "packed"}
    main_status |= {"pinned": False, "drift": True, "intruders": ["a/b/c"]}  # type: ignore[dict-item]
    status = {"refusal": {"message": "'x' is not a policy"}, "containers": {"main": main_status}}
    pod["metadata"]["annotations"][STATUS_CPUS] = json.dumps(status)
    gate = {"name": GATE_CONTAINER, "state": {"running": {}}}
    held = {"name": "main", "state": {"waiting": {"reason": "CreateContainerError", "message": "no CPUs"}}}
    usual = {"name": "other", "state": {"waiting": {"reason": "PodInitializing"}}}
    waits = timeline_of(changed(pod, initContainerStatuses=[gate], containerStatuses=[held, usual]), []).waits

    assert [wait.partition(":")[0].partition(",")[0] for wait in waits] == [
        "its annotations",
        "the kernel to confine main to CPUs 1",
        "tasks of main that may run outside of its CPUs",
        "a/b/c to leave the CPUs of main",
        GATE_CONTAINER,
        "main (CreateContainerError)",
    ]
    assert timeline_of(changed(pod, phase="Failed"), []).waits == ()


def test_timeline_has_what_the_webhook_added() -> None:
    """The timeline names what the webhook added: CMK's contract, the guard's mark and the gate."""
    pod, _ = shown(bound("web", annotations={**ISOLATE, CMK_INJECTED: "1", GUARDED: "true"}))
    pod["spec"]["initContainers"] = [{"name": GATE_CONTAINER}]

    added = [entry.message for entry in timeline_of(pod, []).entries if entry.stage == "admission"]
    assert [message.split()[-1] for message in added] == ["toleration", "CPUs", GATE_CONTAINER]
    assert "a runtime with corepin's guard" in added[1]
    pod["metadata"]["annotations"][GUARDED] = "false"
    assert not any("guard" in entry.message for entry in timeline_of(pod, []).entries)


@pytest.mark.parametrize(
    ("window", "words"),
    [(0.0, "before its first instruction"), (0.25, "it may have run elsewhere for 0.25 s"), (None, "cgroup")],
)
def test_timeline_shows_how_long_a_container_ran_unpinned(window: float | None, words: str) -> None:
    """The proof shows how long the container ran before it got its CPUs, if that is known."""
    pod, _ = shown(bound("web", annotations=ISOLATE))
    status = json.loads(pod["metadata"]["annotations"][STATUS_CPUS])
    if window is not None:
        status["containers"]["main"]["applied"]["windowSeconds"] = window
    status["vm"] = {"time": LATER, "vcpus": ["1", "2"]}
    pod["metadata"]["annotations"][STATUS_CPUS] = json.dumps(status)

    proofs = [entry.message for entry in timeline_of(pod, []).entries if entry.stage == "proof"]
    assert proofs[0].endswith(words)
    assert proofs[1] == "the kernel keeps its vCPUs on these CPUs: 0 on 1, 1 on 2"


def test_warnings_of_others_are_part_of_it() -> None:
    """Warnings of scheduler and kubelet are shown with their count; their other events are not."""
    pod, _ = shown(bound("web", annotations=ISOLATE))
    warning = {"metadata": {}, "type": "Warning", "reason": "FailedScheduling", "message": "full", "count": 3}
    usual = {"metadata": {}, "type": "Normal", "reason": "Pulled", "message": "image"}
    timeline = timeline_of(
        pod, [{**warning, "eventTime": "2026-11-20T10:00:00.5Z", "lastTimestamp": LATER}, usual]
    )

    told = [entry.message for entry in timeline.entries if entry.stage == "event"]
    assert told == [f"FailedScheduling: full (3 times, last {LATER})"]


def test_the_guide_shows_it_so(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The timeline in the user guide is what the command prints about the guide's first pod."""
    containers = container("app", {"cpu": 2, "memory": "1Gi"}), container("log")
    pod, events = shown(bound("web", *containers, annotations={CRANE_CPU_MANAGER: "exclusive"}), when=LATER)
    monkeypatch.setenv("COLUMNS", "200")
    serve(served(pod, events))
    assert kubectl(["why", "web", "-n", "default"]) == 0

    shown_there = f"$ kubectl corepin why web\n{capsys.readouterr().out}```\n"
    assert shown_there in Path("docs/user-guide.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [("web",), ("web", "-n", "default"), ("default/web",), ("web", "--context", "x")]
)
def test_command_prints_the_timeline(
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
) -> None:
    """Each way to name the pod gives its timeline, wrapped to the terminal's width, with escaped control characters."""
    pod, events = shown(bound("web", annotations=ISOLATE))
    events.append({"metadata": {}, "type": "Warning", "reason": "Odd", "message": "\x1b[31mred"})
    events.append({"metadata": {}, "type": "Warning", "firstTimestamp": "\x1b[2J"})
    monkeypatch.setenv("COLUMNS", "70")
    serve(served(pod, events))
    assert main(["why", *words]) == 0
    text = capsys.readouterr().out
    assert main(["why", *words, "-o", "json"]) == 0

    assert max(map(len, text.splitlines())) <= 70
    assert f"{WHEN}  claim      main wants 2 CPUs" in text
    assert "\\x1b[31mred" in text
    assert "\x1b" not in text
    assert text.endswith("\nIt waits for nothing.\n")
    told = json.loads(capsys.readouterr().out)
    assert (told["pod"], told["waits"]) == ("pod default/web, Running, on node node-1", [])
    assert told["story"][0]["stage"] == "claim" or told["story"][0]["time"] == ""


def test_failures_are_one_line(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing pod, and an annotation of another version, are errors in one line."""
    pod, _ = shown(bound("web", annotations=ISOLATE))
    pod["metadata"]["annotations"][STATUS_CPUS] = '{"version": 2, "containers": {}}'
    serve(served(pod, []))
    assert main(["why", "none"]) == 2
    assert main(["why", "web"]) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first == "corepin why: pod default/none: the API server answered 404 (Not Found)"
    assert "by another version of corepin" in second


@pytest.mark.parametrize("name", ["", "ns/", "/", ".", "ns/..", "a?b", "a/b/c"])
def test_name_of_no_pod_is_refused(serve: Serve, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """An empty name, as from an unset shell variable, would make the API server list all pods."""
    pods = {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []}
    paths = [f"/api/v1/namespaces/{namespace}/pods/" for namespace in ("default", "ns")]
    serve(dict.fromkeys(paths, pods))
    assert main(["why", name]) == 2
    assert capsys.readouterr().err == f"corepin why: {name!r} names no pod: write POD or NAMESPACE/POD\n"


def test_two_namespaces_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A namespace in the pod's name that differs from --namespace is an error, because both may have such a pod."""
    assert main(["why", "a/web", "-n", "b"]) == 2
    error = "corepin why: 'a/web' and --namespace 'b' name two namespaces: leave one out\n"
    assert capsys.readouterr().err == error


def test_refused_pod_shows_what_to_do(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """The output ends with what a refused pod waits for."""
    full = bound("big", container("main", 6), annotations=EXCLUSIVE)
    pod, events = shown(bound("late", annotations=EXCLUSIVE), full)
    serve(served(pod, events))
    assert main(["why", "late"]) == 0

    assert "\nIt waits for:\n- CPUs for main: wanted 2 free CPUs" in capsys.readouterr().out


def with_claim(**facts: Any) -> dict[str, Any]:
    """Return a pod with a ResourceClaim that holds CPUs."""
    pod, _ = shown(bound("vmi-1", namespace="team", annotations=EXCLUSIVE))
    claim = {"name": "vmi-1-cpu", "cpus": 12, "asked": 11, "numaNodes": [0], **facts}
    pod["metadata"]["annotations"][STATUS_CPUS] = json.dumps({"version": 1, "claims": [claim]})
    return pod


def test_claim_of_a_pod_has_its_number_place_and_age() -> None:
    """The entry of a claim has its CPUs, the requested number if it was rounded up, NUMA nodes and age."""
    now = datetime(2026, 11, 20, 10, 0, 3, tzinfo=UTC)
    timeline = timeline_of(with_claim(prepared=WHEN), [], now)
    words = "claim team/vmi-1-cpu: 12 CPUs (asked for 11), numa 0, prepared 3 s ago"
    assert Entry(WHEN, "decision", words) in timeline.entries


@pytest.mark.parametrize(("tries", "often"), [(1, "1 time"), (3, "3 times")])
def test_claim_that_the_kubelet_does_not_ask_for_is_what_the_pod_waits_for(tries: int, often: str) -> None:
    """The wait has the time at which the claim got its CPUs, and the number of reminders to the kubelet."""
    timeline = timeline_of(with_claim(waits=WHEN, tries=tries), [])
    assert timeline.waits == (
        f"the kubelet to prepare claim vmi-1-cpu, which has its CPUs since {WHEN}; the agent reminded it {often}",
    )
