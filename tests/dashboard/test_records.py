"""Decoding of valid, damaged and irrelevant nodes, pods and events."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from dashboard.model.records import (
    LARGE_STATUSES,
    MOST_ASKS,
    MOST_LARGE_STATUS,
    MOST_MESSAGE,
    MOST_STATUS,
    MOST_WORD,
    TEXT_BYTES,
    TOO_LARGE,
    UNREADABLE,
    NodeDecoder,
    Pod,
    PodDecoder,
)
from drawing.picture import Use
from pinning.contract import STATUS_CPUS, STATUS_POOLS, STATUS_TOPOLOGY
from tests.dashboard.clusters import a_node, a_pod, an_event
from tests.dashboard.documents import NOW, TIME, container, event, grid, node, owner, pod, pools
from tests.tables import table

MACHINE = grid(2, 1, 1, 4)  # CPUs 0-7, siblings 8-15


def test_every_cpu_of_a_node_is_counted_once() -> None:
    """Each CPU is counted under exactly one use."""
    owners = {"default/a/main": owner("1,9"), "default/b/main": owner("2", smt="isolate", idle="10")}
    found = a_node(node("n", MACHINE, pools(MACHINE, owners)))
    assert found.counts == {Use.EXCLUSIVE: 3, Use.IDLE: 1, Use.RESERVED: 2, Use.SHARED: 10}
    assert sum(found.counts.values()) == len(MACHINE.cpus)


def test_node_without_annotations_has_no_agent() -> None:
    """A node without annotations has no agent and no problem."""
    found = a_node(node("n"))
    assert (found.pools, found.picture, found.problem) == (None, None, "")


@table(
    "topology, sets",
    {
        "no JSON": ("{", "{}"),
        "sets of another shape": (json.dumps(MACHINE.to_dict()), "[]"),
        "a machine without cores": ("{}", json.dumps(pools(MACHINE))),
        "no CPU list": (json.dumps(MACHINE.to_dict()), json.dumps(pools(MACHINE) | {"reserved": "x"})),
        "free backwards": (json.dumps(MACHINE.to_dict()), json.dumps(pools(MACHINE) | {"free": "9-1"})),
        "too many CPUs": (
            json.dumps(MACHINE.to_dict()),
            json.dumps(pools(MACHINE) | {"owners": {"a/b/c": owner("0-99999999")}}),
        ),
        "deep": ("{}", '{"x": ' + "[" * 10_000),
    },
)
def test_damaged_annotations_of_a_node_are_a_problem_and_no_failure(topology: str, sets: str) -> None:
    """Damaged annotations of a node are a problem on its page, and raise no exception."""
    document = {"metadata": {"name": "n", "annotations": {STATUS_TOPOLOGY: topology, STATUS_POOLS: sets}}}
    found = NodeDecoder().decode(json.dumps(document).encode())
    assert (found.name, found.pools, found.problem) == ("n", None, UNREADABLE)


def test_pods_that_ask_for_nothing_are_not_kept() -> None:
    """Only pods with corepin's annotations stay in memory."""
    assert (
        PodDecoder().decode(json.dumps(pod("other", annotations={"example.com/note": "x"})).encode()) is None
    )
    asking = a_pod(
        pod(
            "asks",
            annotations={"smt-policy.corepin.io/pod": "require", "qos.gocrane.io/cpu-manager": "share"},
        )
    )
    assert (asking.key, asking.status, len(asking.asks)) == ("default/asks", None, 2)


def test_status_of_a_pod_is_read() -> None:
    """The status has the containers with their proofs and the virtual machine; values that are not known yet are left out."""
    found = a_pod(pod("web", {"main": container("1,9", intruders=["x/y/z"], newer={"field": 1})}))
    assert found.status is not None
    main = found.status.containers["main"]
    assert (main.policy, main.cpus, main.pinned, main.intruders) == ("exclusive", "1,9", True, ("x/y/z",))
    assert main.applied is not None
    assert (main.applied.time, main.applied.window_seconds) == (TIME, 0.0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "{", '{"containers": {"a": 5}}', '{"containers": {"a": {"cpus": 5}}}'),
        pytest.param('{"x": ' + "[" * 10_000 + "]" * 10_000 + "}", id="deep"),
    ],
)
def test_damaged_status_of_a_pod_is_a_problem_and_no_failure(text: str) -> None:
    """A damaged status of a pod is a problem on its page, and raises no exception."""
    found = a_pod(pod("web", annotations={STATUS_CPUS: text}))
    assert (found.status, found.problem) == (None, UNREADABLE)


@table(
    "text",
    {
        "vcpus": '{"vm": {"vcpus": [' + ",".join(['"0-9"'] * 3000) + "]}}",
        "long": '{"x": "' + "x" * MOST_LARGE_STATUS + '"}',
        "containers": '{"containers": {' + ",".join(f'"{at}":{{}}' for at in range(600)) + "}}",
    },
)
def test_status_that_would_take_much_memory_is_not_read(text: str) -> None:
    """A status that would take too much memory once parsed is not read; the page names the remedy."""
    found = a_pod(pod("web", annotations={STATUS_CPUS: text}))
    assert (found.status, found.problem) == (None, TOO_LARGE)


def test_status_of_a_large_pod_and_of_a_large_machine_is_read() -> None:
    """The statuses of large pods and machines are read: 64 containers with findings, or 256 vCPUs."""
    assert a_pod(pod("web", pinned(12))).status
    findings = {
        "drift": True,
        "intruders": ["default/other/main"],
        "memoryNote": "x" * 60,
        "uncounted": "x" * 170,
    }
    status = a_pod(pod("web", pinned(64, **findings))).status
    assert status
    assert len(status.containers) == 64
    vcpus = json.dumps({"vm": {"vcpus": [f"{at}" for at in range(256)]}})
    assert a_pod(pod("vm", annotations={STATUS_CPUS: vcpus})).status


def pinned(count: int, **more: Any) -> dict[str, Any]:
    """Return `count` container statuses with CPUs."""
    return {f"container-{at}": container("1-2,65-66", **more) for at in range(count)}


def test_large_statuses_share_a_budget() -> None:
    """Large statuses share a memory budget: beyond it one is not read until another is freed; small ones always are."""
    decoder = PodDecoder()

    def decode(number: int, containers: int = 64, **more: Any) -> Pod:
        document = pod(f"p{number}", pinned(containers, **more))
        document["metadata"]["uid"] = str(number)
        found = decoder.decode(msgspec.json.encode(document))
        assert found
        return found

    kept: list[Pod] = []
    while not kept or kept[-1].status:
        kept.append(decode(len(kept)))
    late = kept.pop()
    assert (late.problem, len(kept) > 300) == (TOO_LARGE, True)
    assert decode(1000, 12).status
    kept[0] = decode(0, drift=True)
    assert kept[0].status
    assert not decode(len(kept)).status
    del kept[1:3]
    again = decode(len(kept) + 2)
    assert again.status
    assert decode(len(kept) + 2) is again


HOSTILE = {
    "large": lambda at: {STATUS_CPUS: json.dumps({"containers": {f"c{at}-{n}": {} for n in range(300)}})},
    "asks": lambda at: {
        f"cpu-manager.corepin.io/container.{at}-{number}-{'x' * 200}": "y" * 60 for number in range(110)
    },
    "status": lambda at: {STATUS_CPUS: json.dumps({"containers": {f"c{at}-{n}": {} for n in range(60)}})},
    "filled": lambda at: {STATUS_CPUS: json.dumps({"x": f"{at}{'x' * 30_000}"})},
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_five_thousand_large_pods_stay_within_the_dashboards_memory(kind: str) -> None:
    """The memory of 5,000 pods with up to 30 kB of annotations stays in its budget, measured on a tenth of them."""
    decoder = PodDecoder()
    pods = [pod(f"p{at}", annotations=HOSTILE[kind](at)) for at in range(500)]
    for number, document in enumerate(pods):
        document["metadata"]["uid"] = str(number)
    documents = [msgspec.json.encode(document) for document in pods]
    tracemalloc.start()
    kept = [decoder.decode(document) for document in documents]
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert all(kept)
    assert taken < 500 * (MOST_STATUS + MOST_ASKS) + LARGE_STATUSES


@pytest.mark.parametrize(
    ("change", "time", "count"),
    [
        *(({}, TIME, 1), ({"lastTimestamp": None, "count": 7}, "", 7), ({"count": None}, TIME, 1)),
        pytest.param({"lastTimestamp": "9999-01-01T00:00:00Z"}, NOW, 1, id="from the future"),
    ],
)
def test_events_are_read(change: dict[str, Any], time: str, count: int) -> None:
    """An event has its pod, the node of its agent, its last time and its count."""
    found = an_event(event("web", "Drift", "text", kind="Warning") | change)
    assert (found.pod, found.node, found.reason, found.message) == ("default/web", "node-1", "Drift", "text")
    assert (found.time, found.count, found.is_warning) == (time, count, True)


def test_long_event_is_cut() -> None:
    """Long event messages are truncated, because the API server does not limit them and viewers get a hundred each."""
    assert len(an_event(event("web", "Drift", "x" * 2**20)).message) == MOST_MESSAGE


def test_words_that_mean_nothing_are_cut() -> None:
    """Annotations shown on a pod's page are bounded in length and total size, because each viewer is sent them."""
    names = [f"cpu-manager.corepin.io/container.c{number}" for number in range(200)]
    asks = a_pod(pod("web", annotations=dict.fromkeys(names, "x" * 1000))).asks
    assert set(map(len, asks.values())) == {MOST_WORD}
    assert (
        MOST_ASKS / 2
        < sum(len(name) + len(text) + 2 * TEXT_BYTES for name, text in asks.items())
        <= MOST_ASKS
    )


def test_what_is_no_object_is_refused() -> None:
    """A watch event without an object is refused, and the watch is repeated."""
    with pytest.raises(msgspec.DecodeError):
        NodeDecoder().decode(b"[]")


def test_objects_that_did_not_change_for_us_are_the_same() -> None:
    """If no relevant field of a node or pod changes, the decoder returns the same object, so that views stay cached."""
    nodes, pods_ = NodeDecoder(), PodDecoder()
    first = json.dumps(node("n", MACHINE)).encode()
    beating = node("n", MACHINE)
    beating["metadata"]["resourceVersion"] = "2"
    one = nodes.decode(first)
    assert nodes.decode(json.dumps(beating).encode()) is one
    assert nodes.decode(json.dumps(node("n")).encode()) is not one
    mine = pod("web", {"main": container("1")})
    two = pods_.decode(json.dumps(mine).encode())
    mine["metadata"]["labels"] = {"a": "b"}
    assert pods_.decode(json.dumps(mine).encode()) is two
