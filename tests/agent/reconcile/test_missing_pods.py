"""Pods of running containers that the watch has not shown: the agent looks them up by name."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from agent.errors import AgentError, Gone, Refused, Unavailable
from agent.reconcile.missing_pods import PAUSE_SECONDS, MissingPodLookup
from pinning.pods.phase import is_final
from tests.agent.fakes import FakeNode
from tests.environments.waiting import background, settle
from tests.pinning.world import Wish, pod_document

TWO = Wish("2", policy="exclusive")


def answer(node: FakeNode) -> list[float]:
    """Answer every open lookup; return the delays between them."""
    waits: list[float] = []
    lookup = node.agent.reconciler.observer.missing_pods

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    async def run() -> None:
        lookup._sleep = sleep
        async with background(lookup.run()):
            await settle()

    node.runner.run(run())
    return waits


def miss(node: FakeNode, uid: str, *, known_as: str = "") -> None:
    """Add a pod to the API that the watch does not show."""
    node.pods.missed[f"test/pod-{uid}"] = pod_document(known_as or uid, [TWO], created=1)


def test_missed_pod_is_found_and_counts_as_seen(node: FakeNode) -> None:
    """A pod that a lookup finds is treated like a listed one: its claim is granted and a pass is requested."""
    miss(node, "a")
    number = node.start("a")
    node.run()
    assert node.cpus(number) == "0-7"
    node.agent.trigger.clear()
    answer(node)

    assert node.agent.trigger.is_set
    state = node.run()
    assert node.cpus(number) == "1,5"
    assert [pod.name for pod in state.pods] == ["pod-a"]


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(None, id="no such pod"),
        pytest.param(Gone("404"), id="no such namespace"),
        pytest.param(Refused("400: no such name is possible"), id="no possible name"),
    ],
)
def test_missing_pod_is_looked_up_once(node: FakeNode, failure: AgentError | None) -> None:
    """A pod that does not exist is looked up once, and its container gets the shared set."""
    node.pods.failures = [failure] if failure else []
    node.add("b", TWO)
    owner, number = node.start("b"), node.start("a")
    node.run()
    answer(node)
    node.run(passes=2)
    answer(node)

    assert node.pods.asked == ["test/pod-a"]
    assert (node.cpus(owner), node.cpus(number)) == ("1,5", "0,2-4,6-7")


def test_pod_of_the_same_name_with_another_uid_is_not_taken(node: FakeNode) -> None:
    """A pod with the same name and another uid is ignored."""
    miss(node, "a", known_as="later")
    number = node.start("a")
    node.run()
    answer(node)
    node.run()

    assert node.pods.asked == ["test/pod-a"]
    assert node.cpus(number) == "0-7"


def test_pod_whose_container_returns_is_looked_up_again(node: FakeNode) -> None:
    """When the runtime no longer lists containers of a pod, the result of its lookup is dropped."""
    number = node.start("a")
    node.run()
    answer(node)
    node.stop(number)
    del node.containers[number]
    node.run()
    node.start("a")
    node.run()
    answer(node)

    assert node.pods.asked == ["test/pod-a"] * 2


def test_no_lookup_before_the_pod_list_is_complete(node: FakeNode) -> None:
    """No pod is looked up while the first list is still in progress."""
    node.add("a", TWO)
    node.run()
    node.pods.complete = False
    node.start("b")
    node.run()
    answer(node)

    assert node.pods.asked == []


def test_failed_lookup_is_retried_with_backoff(node: FakeNode) -> None:
    """A lookup that fails because the API server is unavailable is retried with backoff."""
    miss(node, "a")
    node.pods.failures = [Unavailable("503") for _ in range(4)]
    number = node.start("a")
    node.run()
    waits = answer(node)
    node.run()

    assert len(node.pods.asked) == 5
    assert waits[3] > waits[0]
    assert node.cpus(number) == "1,5"


def test_lookups_of_unknown_pods_run_one_after_the_other(node: FakeNode) -> None:
    """Lookups run one after the other with a pause, so that they do not overload the API server."""
    for uid in "abcde":
        node.start(uid)
    node.run()

    assert answer(node) == [PAUSE_SECONDS] * 5
    assert sorted(node.pods.asked) == [f"test/pod-{uid}" for uid in "abcde"]


def test_found_pod_keeps_its_cpus_between_two_of_its_containers(node: FakeNode) -> None:
    """A pod found by a lookup keeps its CPUs over a restart, while the runtime still lists its exited container."""
    miss(node, "a")
    number = node.start("a")
    node.run()
    answer(node)
    node.run()
    node.stop(number)
    node.run()
    again = node.start("a")
    node.run()

    assert node.cpus(again) == "1,5"


def test_found_pod_is_gone_with_its_last_container(node: FakeNode) -> None:
    """The CPUs of a pod found by a lookup are freed when the runtime lists none of its containers."""
    miss(node, "a")
    node.add("b", Wish())
    number, other = node.start("a"), node.start("b")
    node.run()
    answer(node)
    node.run()
    assert node.cpus(other) == "0,2-4,6-7"
    node.stop(number)
    del node.containers[number]
    node.run(passes=2)

    assert node.cpus(other) == "0-7"


def test_version_of_the_watch_replaces_a_found_pod() -> None:
    """Once the watch shows a pod that a lookup found, the watch's version and deletion apply."""
    lookup = MissingPodLookup(Answers({"u": 1}), lambda: None)
    lookup.want({"u": ("n", "p")}, {"u"})
    asyncio.run(ask_all(lookup))
    newer: Any = {"u": {"metadata": {"uid": "u"}, "spec": {"nodeName": "shown"}}}
    assert lookup.completed({}).keys() == {"u"}

    assert lookup.completed(newer) == newer
    assert lookup.completed({}) == {}


@pytest.mark.parametrize("end", ["Succeeded", "Failed", None])
async def test_found_pod_missing_in_the_watch_is_dropped_when_it_ended(end: str | None) -> None:
    """A pod that the watch never shows is looked up again, and dropped when it has ended."""
    source = Ending(end)

    lookup = MissingPodLookup(source, lambda: None)
    lookup.want({"u": ("n", "p")}, {"u"})
    async with background(lookup.run()):
        async with asyncio.timeout(60):
            while not lookup.completed({}):
                await asyncio.sleep(0)
            await lookup.ask_again()
            await source.asked_twice.wait()
    running = [pod for pod in lookup.completed({}).values() if not is_final(pod)]
    assert running == []


class Ending:
    """A source whose first lookup finds a running pod, and whose second one a finished pod or none."""

    complete = True

    def __init__(self, end: str | None) -> None:
        self._end = end
        self._asked = 0
        self.asked_twice = asyncio.Event()

    def pods(self) -> Any:
        """Return no pods."""
        return {}

    async def watch(self, changed: object) -> None:
        """Report no changes."""

    async def look_up(self, namespace: str, name: str) -> Any:
        """Return the pod in its current phase."""
        self._asked += 1
        if self._asked == 1:
            return self._pod("Running")
        asyncio.get_running_loop().call_soon(self.asked_twice.set)
        return self._pod(self._end) if self._end else None

    @staticmethod
    def _pod(phase: str) -> Any:
        return {"metadata": {"uid": "u", "namespace": "n", "name": "p"}, "status": {"phase": phase}}


class Answers:
    """A source whose lookups find every pod."""

    complete = True

    def __init__(self, uids: Any) -> None:
        self._uids: Iterator[str] = iter(uids)

    def pods(self) -> Any:
        """Return no pods."""
        return {}

    async def watch(self, changed: object) -> None:
        """Report no changes."""

    async def look_up(self, namespace: str, name: str) -> Any:
        """Return the next pod."""
        return {"metadata": {"uid": next(self._uids), "namespace": namespace, "name": name}}


async def ask_all(lookup: MissingPodLookup) -> None:
    """Answer every open lookup."""
    async with background(lookup.run()):
        for _ in range(5):
            await asyncio.sleep(0)
