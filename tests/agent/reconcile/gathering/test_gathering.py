"""Delay from a change to the next pass, by the kind of the change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from agent.interfaces import NewContainer, RuntimeChange
from agent.plain_pods import GATHER_SECONDS, NOW, SETTLE_SECONDS, PodChange, seconds_for_pod
from agent.process import Agent
from agent.reconcile import between_passes
from pinning.contract import GUARDED
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner, SeenPod, State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.serving import quiet, serving
from tests.pinning.world import Wish

PLAIN, TWO = Wish("500m"), Wish("2", policy="exclusive")
Watched = tuple[Agent, list[float]]


@pytest.fixture
def watch(node: FakeNode) -> FakeWatch:
    """Return an NRI watch that creates containers on the CPUs of the last table."""
    node.container_watch = watch = FakeWatch(node)
    node.add("plain", PLAIN)
    node.add("owner", TWO)
    node.start("plain")
    node.start("owner")
    return watch


@asynccontextmanager
async def requested(node: FakeNode) -> AsyncIterator[tuple[Agent, list[float]]]:
    """Run the block between two passes of a serving agent; yield it, and the delays of the passes that it requests."""
    waits: list[float] = []
    async with serving(node) as (agent, reports):
        await reports.until(lambda state: state.is_synchronised)
        node.pods.changed()
        await quiet(agent)
        node.time.now += 2 * GATHER_SECONDS
        with noting(agent, waits):
            yield agent, waits


@contextmanager
def noting(agent: Agent, waits: list[float]) -> Iterator[None]:
    """Record the delays of requested passes instead of running the passes."""
    between = agent.reconciler.between_passes
    request = between._request_pass
    between._request_pass = lambda within=0.0: waits.append(within)
    try:
        yield
    finally:
        between._request_pass = request


def told(node: FakeNode, key: str, state: State, uid: str) -> None:
    """Send an event of the runtime."""
    node.runtime.told = (RuntimeChange(key, Owner(uid, "c0"), state),)
    node.runtime.changed()


def running(node: FakeNode, uid: str) -> str:
    """Return the id of a container of a pod."""
    return next(key for key, container in node.containers.items() if container.pod_uid == uid)


def gone(node: FakeNode, uid: str) -> None:
    """Delete a pod from the API."""
    del node.documents[uid]
    node.pods.changed()


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize(
    ("act", "waits"),
    [
        pytest.param(lambda node: node.add("new", PLAIN), [SETTLE_SECONDS], id="plain-comes"),
        pytest.param(lambda node: node.documents.pop("plain"), [SETTLE_SECONDS], id="plain-goes"),
        pytest.param(lambda node: node.add("new", TWO), [NOW], id="owner-comes"),
        pytest.param(lambda node: node.documents.pop("owner"), [SETTLE_SECONDS], id="running-owner-goes"),
        pytest.param(lambda node: node.add("owner", PLAIN), [NOW], id="owner-edited-to-none"),
        pytest.param(lambda node: node.add("plain", TWO), [NOW], id="plain-edited-to-exclusive"),
        pytest.param(lambda node: None, [], id="nothing"),
        pytest.param(lambda node: [node.add("new", PLAIN), node.add("own", TWO)], [NOW], id="both-come"),
    ],
)
async def test_change_of_the_api(
    node: FakeNode, act: Callable[[FakeNode], object], waits: list[float]
) -> None:
    """Only changes that concern exclusive CPUs request an immediate pass; plain pods are coalesced."""
    async with requested(node) as (_, found):
        act(node)
        node.pods.changed()
    assert found == waits


async def test_plain_pod_comes_and_starts_with_one_pass(node: FakeNode, watch: FakeWatch) -> None:
    """If the runtime calls the agent over NRI, one pass serves a new pod and its start; otherwise each gets one."""
    async with requested(node) as (_, waits):
        for uid, watch.holds in (("asked", True), ("not-asked", False)):
            node.add(uid, PLAIN)
            node.pods.changed()
            table = watch.tables[-1]
            assert table is not None
            watch.births[uid] = table.shared
            told(node, uid, State.RUNNING, uid)
    assert waits == [SETTLE_SECONDS, SETTLE_SECONDS, GATHER_SECONDS, GATHER_SECONDS]


@pytest.mark.usefixtures("watch")
async def test_pod_that_changes_all_the_time_delays_no_other(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many changes of one pod within 50 ms are coalesced; a new owner among them gets a pass at once."""
    read: list[str] = []

    def reading(change: PodChange, seen: Callable[[Any], SeenPod], **options: bool) -> float | None:
        read.append(change.uid)
        return seconds_for_pod(change, seen, **options)

    monkeypatch.setattr(between_passes, "seconds_for_pod", reading)
    async with requested(node) as (_, waits):
        read.clear()
        for number in range(1000):
            node.add("plain", Wish(f"{number + 1}m"))
            if number == 500:
                node.add("new-owner", TWO)
            node.pods.changed()
        node.time.now += 2 * GATHER_SECONDS
        node.add("plain", TWO)
        node.pods.changed()
    assert waits.count(NOW) == 2
    assert set(waits) == {NOW, GATHER_SECONDS}
    assert read == ["plain", "new-owner", "plain"]


@pytest.mark.usefixtures("watch")
async def test_owner_that_changes_all_the_time_is_coalesced_too(node: FakeNode) -> None:
    """Label changes of a pod that owns CPUs are coalesced into few passes, and cause no list of the runtime."""
    lists: list[int] = []
    async with requested(node) as (agent, waits):
        agent.reconciler.observer.list_next = lambda: lists.append(1)  # type: ignore[method-assign]
        for _ in range(1000):
            node.documents["owner"] = {**node.documents["owner"]}
            node.pods.changed()
    assert set(waits) == {GATHER_SECONDS}
    assert lists == []


@pytest.mark.usefixtures("watch")
async def test_edit_and_end_of_an_owner_wait_for_nothing(node: FakeNode) -> None:
    """The first edit of an owner in 50 ms requests an immediate pass, later ones a delayed one.

    The deletion of the pod after the exit of its container requests an immediate pass.
    """
    async with requested(node) as (_, waits):
        node.add("owner", Wish("3", policy="exclusive"))
        node.pods.changed()
        node.add("owner", TWO)
        node.pods.changed()
        told(node, running(node, "owner"), State.EXITED, "owner")
        del node.documents["owner"]
        node.pods.changed()
    assert waits == [NOW, GATHER_SECONDS, SETTLE_SECONDS, NOW]


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize("exits_first", [True, False])
async def test_end_of_an_owner_lists_once(node: FakeNode, *, exits_first: bool) -> None:
    """When a container has exited and its pod was deleted, the next pass lists the runtime to free the CPUs."""
    lists: list[int] = []
    async with requested(node) as (agent, waits):
        agent.reconciler.observer.list_next = lambda: lists.append(1)  # type: ignore[method-assign]
        key = running(node, "owner")
        steps: list[Callable[[], None]] = [
            lambda: told(node, key, State.EXITED, "owner"),
            lambda: gone(node, "owner"),
        ]
        first, second = steps if exits_first else steps[::-1]
        first()
        assert lists == []
        second()
    assert waits == [SETTLE_SECONDS, NOW]
    assert lists == [1]


@pytest.mark.usefixtures("watch")
async def test_deleted_owner_with_one_container_left_keeps_its_cpus(node: FakeNode) -> None:
    """If one of two containers of a deleted pod exits, its CPUs are not freed, so no list of the runtime is requested."""
    lists: list[int] = []
    node.start("owner")
    async with requested(node) as (agent, _):
        agent.reconciler.observer.list_next = lambda: lists.append(1)  # type: ignore[method-assign]
        gone(node, "owner")
        told(node, running(node, "owner"), State.EXITED, "owner")
    assert lists == []


@pytest.mark.parametrize(
    ("uid", "state", "born", "waits"),
    [
        pytest.param("plain", State.RUNNING, "shared", [SETTLE_SECONDS], id="runs-in-the-shared-set"),
        pytest.param("marked", State.RUNNING, "shared", [GATHER_SECONDS], id="pod-with-a-mark-runs"),
        pytest.param("plain", State.CREATED, "shared", [], id="made-in-the-shared-set"),
        pytest.param("plain", State.EXITED, "", [SETTLE_SECONDS], id="ends"),
        pytest.param("plain", State.RUNNING, "0-7", [NOW], id="made-by-an-older-table"),
        pytest.param("plain", State.RUNNING, "", [NOW], id="not-made-over-nri"),
        pytest.param("plain", State.CREATED, "", [NOW], id="created-without-nri"),
        pytest.param("owner", State.RUNNING, "shared", [NOW], id="owner-runs-in-the-shared-set"),
        pytest.param("owner", State.CREATED, "own", [], id="owner-made-on-its-own"),
        pytest.param("owner", State.RUNNING, "own", [GATHER_SECONDS], id="owner-runs-on-its-own"),
        pytest.param("machine", State.RUNNING, "shared", [NOW], id="pod-of-a-machine"),
        pytest.param("owner", State.EXITED, "", [SETTLE_SECONDS], id="owner-ends"),
        pytest.param("cmk", State.EXITED, "", [NOW], id="owner-with-wrappers-ends"),
        pytest.param("gone", State.EXITED, "", [NOW], id="owner-ends-after-its-pod"),
        pytest.param("unknown", State.RUNNING, "shared", [NOW], id="pod-that-the-api-has-not-shown"),
    ],
)
async def test_event_of_the_runtime(
    node: FakeNode, watch: FakeWatch, uid: str, state: State, born: str, waits: list[float]
) -> None:
    """A pass may be delayed only for a container created on its planned CPUs, and for the exit of one without own CPUs.

    The delay after an event of a plain pod is as long as after the exit of its container, unless the pod has
    the guard's mark.
    """
    node.add("machine", PLAIN)
    node.documents["machine"]["spec"]["runtimeClassName"] = "kata"
    node.add("cmk", Wish(cores=1))
    node.add("marked", PLAIN)
    node.documents["marked"]["metadata"].setdefault("annotations", {})[GUARDED] = "true"
    async with requested(node) as (_, found):
        table = watch.tables[-1]
        assert table is not None
        if born:
            named = {"shared": table.shared, "own": table.ledger.cpus_of(Owner("owner", "c0"), CPUSet())}
            watch.births["new"] = named.get(born) or CPUSet.parse(born)
        told(node, "new", state, uid)
    assert found == waits


@pytest.mark.usefixtures("watch")
async def test_exit_beside_the_deletion_of_its_pod_waits_for_nothing(node: FakeNode) -> None:
    """The exit of an owner whose pod was deleted requests an immediate pass, which frees the CPUs."""
    async with requested(node) as (_, waits):
        del node.documents["owner"]
        told(node, "new", State.EXITED, "owner")
    assert waits == [NOW]


@pytest.mark.usefixtures("watch")
async def test_unknown_change_of_the_runtime_requests_a_pass(node: FakeNode) -> None:
    """A change without details, as after a lost event stream, requests an immediate pass."""
    async with requested(node) as (_, waits):
        node.runtime.changed()
    assert waits == [NOW]


@pytest.mark.usefixtures("watch")
async def test_changes_are_not_coalesced_while_observing(node: FakeNode) -> None:
    """Under the kubelet's static policy plain pods may hold CPUs too, so each change requests an immediate pass."""
    node.settings = replace(node.settings, config=replace(node.config, observe=True))
    async with requested(node) as (_, waits):
        node.add("new", PLAIN)
        node.pods.changed()
    assert waits == [NOW]


async def test_changes_are_not_coalesced_for_the_local_runtime(node: FakeNode) -> None:
    """The `local` runtime starts containers only when the agent lists them, so each change requests an immediate pass."""
    async with requested(node) as (_, waits):
        node.add("new", PLAIN)
        node.pods.changed()
    assert waits == [NOW]


@pytest.mark.usefixtures("watch")
@pytest.mark.parametrize(("has_begun", "wait"), [(False, GATHER_SECONDS), (True, NOW)])
async def test_container_pinned_before_its_start_may_wait(
    node: FakeNode, *, has_begun: bool, wait: float
) -> None:
    """The pass for a container pinned before its command ran may be delayed; a running one gets one at once."""
    key = node.start("plain", state=State.RUNNING)
    cgroup = node.cgroup(key)
    if not has_begun:
        node.containers[key] = replace(node.containers[key], state=State.CREATED)
        node.cgroups.begun.clear()
        node.cgroups.ages[cgroup] = 0.0
    waits: list[float] = []
    async with serving(node) as (agent, reports):
        await reports.until(lambda state: state.is_synchronised)
        await quiet(agent)
        with noting(agent, waits):
            node.cpusets[cgroup] = node.topology.online
            agent.reconciler.between_passes.prestart.pin(NewContainer(key, Owner("plain", "c0"), cgroup))
            for _ in range(100):
                await asyncio.sleep(0)
    assert waits[-1:] == [wait]
