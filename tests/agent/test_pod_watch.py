"""The pods of a node from the API server, and how long a change of one waits for a pass."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from agent.errors import Refused, Unavailable
from agent.kept_pod import PodDecoder
from agent.plain_pods import (
    GATHER_SECONDS,
    MOST_PARSED,
    NOW,
    SETTLE_SECONDS,
    ParsedPods,
    PodChange,
    changed_pods,
    is_plain,
    keeps_cpus,
    seconds_for_pod,
    soonest,
)
from agent.pod_watch import PodWatch
from apiserver.access import Access
from apiserver.client import Api
from pinning.contract import (
    CMK_INJECTED,
    CMK_MUTATE,
    CRANE_CPU_MANAGER,
    GUARDED,
    KUBEVIRT_LABEL,
    VIRT_LAUNCHER,
)
from pinning.planning.observed import SeenPod
from tests.apiserver.scripted import URL, Server, document, event, listed, streamed
from tests.environments.waiting import background
from tests.pinning.world import Wish, pod_document

UNFINISHED = "spec.nodeName=node-1,status.phase!=Succeeded,status.phase!=Failed"
EXCLUSIVE = {"qos.gocrane.io/cpu-manager": "exclusive"}


async def test_pods_are_listed_then_followed() -> None:
    """List and watch select this node's unfinished pods, and unread fields are dropped."""
    changed = event("ADDED", document("b", "11", note="1", **EXCLUSIVE))
    server = Server(listed(document("a", "9")), streamed(changed, stays=True))
    api = Api(Access(URL), "tests", httpx.MockTransport(server))
    source, seen = PodWatch(api, "node-1"), asyncio.Event()
    async with background(source.watch(lambda: seen.set() if "b" in source.pods() else None)):
        await asyncio.wait_for(seen.wait(), 60)
    await api.close()
    assert source.complete
    assert source.pods().keys() == {"a", "b"}
    assert (source.pods()["b"]["metadata"] or {})["annotations"] == EXCLUSIVE
    assert [request.url.params["fieldSelector"] for request in server.asked] == [UNFINISHED] * 2


def looked_up(server: Server, namespace: str = "team", name: str = "web") -> Any:
    """Look up one pod of node-1."""

    async def ask() -> Any:
        api = Api(Access(URL), "tests", httpx.MockTransport(server))
        try:
            return await PodWatch(api, "node-1").look_up(namespace, name)
        finally:
            await api.close()

    return asyncio.run(ask())


def test_lookup_selects_by_name_and_node() -> None:
    """The server selects by name and node, and the result is the pod or None."""
    server = Server(listed(document("a", "1")), listed())

    assert looked_up(server)["metadata"]["uid"] == "a"
    assert looked_up(server) is None
    assert server.asked[0].url.path == "/api/v1/namespaces/team/pods"
    assert server.asked[0].url.params["fieldSelector"] == "metadata.name=web,spec.nodeName=node-1"


def test_lookup_escapes_the_namespace() -> None:
    """A forged namespace of a container stays one component of the path."""
    server = Server(listed())
    looked_up(server, namespace="../nodes?x")

    assert server.asked[0].url.raw_path.startswith(b"/api/v1/namespaces/..%2Fnodes%3Fx/pods?")


def test_lookup_raises_unavailable_on_an_outage() -> None:
    """During an outage it is unknown whether the pod exists."""
    with pytest.raises(Unavailable):
        looked_up(Server(httpx.Response(503)))


def test_lookup_reports_refusal_and_retry_after() -> None:
    """A 403 raises Refused, and a 503 has the server's Retry-After."""
    with pytest.raises(Refused, match="403"):
        looked_up(Server(httpx.Response(403)))
    with pytest.raises(Unavailable) as caught:
        looked_up(Server(httpx.Response(503, headers={"retry-after": "7"})))
    assert caught.value.retry_seconds == 7


def pod(wish: Wish | None = None, *, phase: str = "Running", **metadata: Any) -> Any:
    """Return a pod of the API."""
    document = pod_document("a", [wish or Wish("500m")])
    document["status"] = {"phase": phase}
    document["metadata"] |= metadata
    return document


def kept(document: Any) -> Any:
    """Return the parts of a pod that the agent's watch keeps."""
    return document and PodDecoder().decode(json.dumps(document).encode())


PLAIN = pod()
OWNER = pod(Wish("1", policy="exclusive"))


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        pytest.param(None, PLAIN, GATHER_SECONDS, id="plain-comes"),
        pytest.param(PLAIN, None, SETTLE_SECONDS, id="plain-goes"),
        pytest.param(PLAIN, pod(phase="Failed"), SETTLE_SECONDS, id="plain-ends"),
        pytest.param(pod(phase="Pending"), PLAIN, None, id="plain-runs"),
        pytest.param(PLAIN, pod(resourceVersion="7"), None, id="nothing-that-is-read"),
        pytest.param(PLAIN, pod(Wish("600m")), GATHER_SECONDS, id="plain-resized"),
        pytest.param(None, OWNER, NOW, id="owner-comes"),
        pytest.param(OWNER, None, NOW, id="owner-goes"),
        pytest.param(OWNER, pod(Wish("1", policy="exclusive"), phase="Failed"), NOW, id="owner-ends"),
        pytest.param(
            pod(Wish("1", policy="exclusive"), phase="Failed"), None, SETTLE_SECONDS, id="ended-goes"
        ),
        pytest.param(PLAIN, OWNER, NOW, id="edited-to-exclusive"),
        pytest.param(OWNER, PLAIN, NOW, id="edited-to-none"),
        pytest.param(OWNER, pod(Wish("2", policy="exclusive")), NOW, id="owner-resized"),
        pytest.param(None, pod(annotations={CRANE_CPU_MANAGER: "none"}), NOW, id="policy-none"),
        pytest.param(None, pod(annotations={CRANE_CPU_MANAGER: "typo"}), NOW, id="unknown-policy"),
        pytest.param(None, pod(labels={KUBEVIRT_LABEL: VIRT_LAUNCHER}), NOW, id="launcher"),
        pytest.param(None, pod(annotations={"other.io/key": "x"}), GATHER_SECONDS, id="foreign-annotation"),
    ],
)
def test_wait_of_a_change(before: Any, after: Any, seconds: float | None) -> None:
    """A pod with a current or earlier request for CPUs, or one that may be held back, gets a pass at once."""
    assert seconds_for_pod(PodChange("a", before, after)) == seconds
    assert seconds_for_pod(PodChange("a", kept(before), kept(after))) == seconds


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        pytest.param(None, PLAIN, SETTLE_SECONDS, id="plain-comes"),
        pytest.param(PLAIN, pod(Wish("600m")), GATHER_SECONDS, id="plain-resized"),
        pytest.param(None, OWNER, NOW, id="owner-comes"),
        pytest.param(None, pod(annotations={CRANE_CPU_MANAGER: "none"}), NOW, id="policy-none"),
        pytest.param(None, pod(annotations={CMK_MUTATE: "true"}), GATHER_SECONDS, id="cmk-without-cores"),
        pytest.param(None, pod(annotations={CMK_INJECTED: "true"}), GATHER_SECONDS, id="cmk-was-injected"),
        pytest.param(None, pod(annotations={GUARDED: "true"}), GATHER_SECONDS, id="held-back-until-known"),
    ],
)
def test_wait_of_a_change_where_the_runtime_asks_first(
    before: Any, after: Any, seconds: float | None
) -> None:
    """A new plain pod can wait if its containers get the same CPUs from the last table, unless it may be held back."""
    assert seconds_for_pod(PodChange("a", kept(before), kept(after)), asks_first=True) == seconds


def test_pod_with_a_runtime_class_is_not_plain() -> None:
    """A pod with a runtime class gets a pass at once, because its virtual machine must be confined while it boots."""
    document = pod()
    document["spec"]["runtimeClassName"] = "kata"
    assert not is_plain(document, SeenPod.of(document))
    assert is_plain(PLAIN, SeenPod.of(PLAIN))


@pytest.mark.parametrize(
    ("document", "keeps"),
    [
        pytest.param(OWNER, True, id="owner"),
        pytest.param(pod_document("a", [Wish(), Wish("1", policy="exclusive")]), True, id="one-of-two-owns"),
        pytest.param(pod(Wish("1", policy="exclusive"), phase="Failed"), False, id="ended"),
        pytest.param(
            pod_document("a", [Wish("1", policy="exclusive", init=""), Wish()]), False, id="init-container"
        ),
        pytest.param(pod(Wish(cores=1)), False, id="cmk"),
        pytest.param(pod(labels={KUBEVIRT_LABEL: VIRT_LAUNCHER}), False, id="launcher"),
        pytest.param(pod(runtime_class="kata"), False, id="runtime-class"),
    ],
)
def test_pod_that_keeps_its_cpus(document: Any, *, keeps: bool) -> None:
    """A pod keeps its CPUs over exits if they follow the pod alone; the annotation's policy is such a claim."""
    document["spec"]["runtimeClassName"] = document["metadata"].pop("runtime_class", "")
    assert keeps_cpus(SeenPod.of(document)) is keeps


def test_readiness_of_a_guard_is_a_change() -> None:
    """A change of a guard's readiness requests a pass, though no claim changes."""
    statuses = [{"name": "guard", "ready": False}]
    unready: Any = {**PLAIN, "status": {"phase": "Running", "containerStatuses": statuses}}
    assert seconds_for_pod(PodChange("a", PLAIN, unready)) == GATHER_SECONDS


def test_changed_pods_are_found_by_object_identity() -> None:
    """New, removed and replaced pods are changes."""
    same, other = pod(), pod()
    before, after = {"a": same, "b": PLAIN, "c": OWNER}, {"a": same, "b": other, "d": PLAIN}
    assert sorted(changed_pods(before, after), key=str) == sorted(
        [PodChange("b", PLAIN, other), PodChange("c", OWNER, None), PodChange("d", None, PLAIN)], key=str
    )


def test_shortest_delay_counts() -> None:
    """The shortest delay is used, and None if no change needs a pass."""
    assert soonest([None, SETTLE_SECONDS, GATHER_SECONDS]) == GATHER_SECONDS
    assert soonest([None]) is None


def test_a_version_of_a_pod_is_parsed_once() -> None:
    """A change and the pass after it read the same object; another object is parsed anew."""
    parsed = ParsedPods()
    seen = parsed.read("uid", PLAIN)
    assert parsed.read("uid", PLAIN) is seen
    assert seen == SeenPod.of(PLAIN, "uid")
    assert parsed.read("uid", OWNER) == SeenPod.of(OWNER, "uid")
    assert parsed.read("uid", PLAIN) is not seen


def test_pods_that_a_pass_did_not_see_are_forgotten() -> None:
    """Pods that were deleted before a pass saw them are dropped, also if no pass succeeds."""
    parsed = ParsedPods()
    kept, gone = parsed.read("kept", PLAIN), parsed.read("gone", PLAIN)
    parsed.keep({"kept"})
    assert parsed.read("kept", PLAIN) is kept
    assert parsed.read("gone", PLAIN) is not gone
    for number in range(MOST_PARSED):
        parsed.read(str(number), PLAIN)
    assert parsed.read("kept", PLAIN) is not kept
