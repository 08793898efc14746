"""The container list that events keep current."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st

from agent.cri import listing_pb2 as pb
from agent.cri.followed import MOST_OWNERS, FollowedList, OwnersInEvents
from agent.cri.lists import ListedContainer, ListedSandbox
from agent.interfaces import RuntimeChange
from pinning.planning.observed import Owner, State
from tests.agent.cri.playing import INFO, SECONDS, play, watching
from tests.agent.cri.playing import event as send_event

CREATED, RUNNING, EXITED = pb.CONTAINER_CREATED, pb.CONTAINER_RUNNING, pb.CONTAINER_EXITED
STATES = {CREATED: State.CREATED, RUNNING: State.RUNNING, EXITED: State.EXITED}
Statuses = dict[str, pb.ContainerState]


def event(
    pod: str,
    statuses: Statuses,
    kind: pb.EventType = pb.CONTAINER_STARTED_EVENT,
    of: str = "",
    handler: str = "",
) -> pb.ContainerEvent:
    """Return an event of a pod, or of its container `of`."""
    return pb.ContainerEvent(
        container_id=of or f"s-{pod}",
        container_event_type=kind,
        pod_sandbox_status=pb.EventSandbox(
            id=f"s-{pod}", metadata=pb.SandboxMetadata(uid=f"uid-{pod}"), runtime_handler=handler
        ),
        containers_statuses=[
            pb.ContainerStatus(id=key, metadata=pb.ContainerMetadata(name="main"), state=state)
            for key, state in statuses.items()
        ],
    )


def listed(followed: FollowedList, pods: dict[str, Statuses], handler: str = "") -> None:
    """Apply a full list of these containers."""
    followed.begin()
    followed.listed(
        [
            ListedContainer(key, f"s-{pod}", "main", STATES[state], 0)
            for pod, statuses in pods.items()
            for key, state in statuses.items()
        ],
        {f"s-{pod}": ListedSandbox(f"s-{pod}", f"uid-{pod}", "ns", pod, True, handler) for pod in pods},
    )


def current(pods: dict[str, Statuses] | None = None) -> FollowedList:
    """Return a list that events keep current."""
    followed = FollowedList()
    followed.take(event("first", {}))
    listed(followed, pods or {})
    followed.changes()
    assert followed.is_current
    return followed


def change(key: str, state: State, pod: str = "a") -> RuntimeChange:
    """Return a change of a container."""
    return RuntimeChange(key, Owner(f"uid-{pod}", "main"), state)


@pytest.mark.parametrize(
    ("before", "told", "expected"),
    [
        pytest.param({}, event("a", {}), (), id="sandbox"),
        pytest.param({}, event("a", {"1": CREATED}), (change("1", State.CREATED),), id="created"),
        pytest.param({"1": CREATED}, event("a", {"1": RUNNING}), (change("1", State.RUNNING),), id="started"),
        pytest.param({"1": RUNNING}, event("a", {"1": RUNNING}), (), id="known"),
        pytest.param({"1": RUNNING}, event("a", {"1": EXITED}), (change("1", State.EXITED),), id="ended"),
        pytest.param({"1": EXITED}, event("a", {"1": EXITED}), (), id="sandbox-stopped"),
        pytest.param(
            {"1": RUNNING},
            event("a", {}, pb.CONTAINER_DELETED_EVENT, "1"),
            (change("1", State.EXITED),),
            id="removed",
        ),
        pytest.param(
            {"1": EXITED}, event("a", {}, pb.CONTAINER_DELETED_EVENT, "1"), (), id="removed-after-its-end"
        ),
        pytest.param({"1": RUNNING}, event("a", {"1": CREATED}), (), id="older-than-the-list"),
    ],
)
def test_event_changes_the_list(
    before: Statuses, told: pb.ContainerEvent, expected: tuple[RuntimeChange, ...]
) -> None:
    """Starts, exits and creations are changes; stale events do not reset a container's state."""
    followed = current({"a": before, "b": {"2": RUNNING}})
    assert followed.take(told) == bool(expected)
    assert followed.changes() == expected
    assert followed.changes() == ()
    assert followed.is_current
    assert followed.containers["2"].state is State.RUNNING


@pytest.mark.parametrize(
    "told",
    [
        pytest.param(event("a", {}), id="container-missing"),
        pytest.param(event("b", {}, of="2"), id="no-status-of-its-own-container"),  # as by CRI-O
        pytest.param(event("a", {"1": RUNNING}, handler="kata"), id="machine"),
        pytest.param(pb.ContainerEvent(container_id="s-a"), id="no-sandbox"),
        pytest.param(
            pb.ContainerEvent(container_id="s-a", container_event_type=pb.CONTAINER_DELETED_EVENT),
            id="sandbox-with-container",
        ),
        pytest.param(
            pb.ContainerEvent(container_id="1", container_event_type=pb.CONTAINER_DELETED_EVENT),
            id="container-alone",
        ),
    ],
)
def test_inconsistent_event_invalidates_the_list(told: pb.ContainerEvent) -> None:
    """An event that lacks a known container, its own one or its sandbox makes the list stale until the next full list."""
    followed = current({"a": {"1": RUNNING}})
    assert followed.take(told)
    assert (followed.is_current, followed.changes()) == (False, None)
    listed(followed, {"a": {"1": RUNNING}})
    assert followed.is_current


def test_removed_sandbox_is_forgotten() -> None:
    """A removed sandbox is deleted from the list, which stays current."""
    followed = current({"a": {}})
    gone = pb.ContainerEvent(container_id="s-a", container_event_type=pb.CONTAINER_DELETED_EVENT)
    assert not followed.take(gone)
    assert followed.is_current
    assert followed.sandboxes == {}


def test_list_is_not_current_before_events_arrive() -> None:
    """The list is current only after an event and then a full list, as events could be lost."""
    followed = FollowedList()
    listed(followed, {"a": {"1": RUNNING}})
    assert not followed.is_current
    assert followed.take(event("a", {"1": RUNNING}))
    assert not followed.is_current
    listed(followed, {"a": {"1": RUNNING}})
    assert followed.is_current


def test_event_during_a_list_makes_it_stale() -> None:
    """An event that arrives during a full list may not be in it, so the list is stale."""
    followed = current()
    followed.begin()
    assert followed.take(event("a", {"1": RUNNING}))
    followed.listed([], {})
    assert (followed.is_current, followed.changes()) == (False, None)


@pytest.mark.parametrize("end", [FollowedList.lost, FollowedList.doubt])
def test_lost_or_doubted_events_make_the_list_stale(end: Callable[[FollowedList], None]) -> None:
    """A lost stream, or a poll with another result, requires a new full list."""
    followed = current({"a": {"1": RUNNING}})
    end(followed)
    assert (followed.is_current, followed.changes()) == (False, None)


def test_failed_list_is_not_current() -> None:
    """A list that was started and not completed is not current."""
    followed = current({"a": {"1": RUNNING}})
    followed.begin()
    assert not followed.is_current


def test_sandbox_in_a_vm_makes_the_list_stale() -> None:
    """Sandboxes in virtual machines change without container events, so the list is not current."""
    followed = current()
    listed(followed, {"a": {"1": RUNNING}}, handler="kata")
    assert not followed.is_current


def test_owners_in_events_are_bounded_by_what_a_node_can_hold() -> None:
    """While lists fail, the oldest containers are forgotten, so that the runtime is asked for them."""
    owners = OwnersInEvents()
    for number in range(MOST_OWNERS + 1):
        owners.take(event(f"{number}", {f"c{number}": RUNNING}))

    assert (owners.get("c0"), owners.get("c1")) == (None, Owner("uid-1", "main"))
    assert owners.get(f"c{MOST_OWNERS}") == Owner(f"uid-{MOST_OWNERS}", "main")


def test_owner_of_a_deleted_container_is_forgotten() -> None:
    """Containers that come and go while lists fail leave no owner, also if their last event still has their status."""
    owners = OwnersInEvents()
    owners.take(event("a", {"1": RUNNING, "2": RUNNING}))
    owners.take(event("a", {"1": EXITED, "2": RUNNING}, pb.CONTAINER_DELETED_EVENT, of="1"))

    assert (owners.get("1"), owners.get("2")) == (None, Owner("uid-a", "main"))


async def test_container_that_events_named_long_ago_is_looked_up_in_a_list(tmp_path: Path) -> None:
    """An owner that was forgotten while lists failed costs one list with its id."""
    async with (
        play(tmp_path, events=True, poll_seconds=60) as (fake, runtime),
        watching(runtime) as changes,
    ):
        fake.errors["ListContainers"] = (StatusCode.UNAVAILABLE, "busy")
        for name in ("one", *(f"{number}" for number in range(MOST_OWNERS))):
            await send_event(fake, changes, name)
        fake.add("one", INFO)
        fake.errors.clear()
        fake.asked.clear()
        assert (await runtime.owner("7"), fake.asked.total()) == (Owner("uid-7", "7"), 0)
        assert (await runtime.owner("one"), fake.asked["ListContainers"]) == (Owner("uid-one", "one"), 1)


async def test_events_replace_list_calls(tmp_path: Path) -> None:
    """Once the list is current, a container from an event costs one status call and no list."""
    async with play(tmp_path, events=True, poll_seconds=60) as (fake, runtime):
        fake.add("one", INFO)
        async with watching(runtime) as changes:
            assert await runtime.known_containers() is None
            await send_event(fake, changes, "one")
            assert runtime.changes() is None
            listed = await runtime.containers()
            assert await runtime.known_containers() == listed
            fake.asked.clear()

            fake.add("two", INFO)
            await send_event(fake, changes, "two")
            assert runtime.changes() == (RuntimeChange("two", Owner("uid-two", "two"), State.RUNNING),)
            known = await runtime.known_containers()
            assert (await runtime.owner("two")).pod_uid == "uid-two"
            assert fake.asked == {"ContainerStatus": 1}
            assert known == await runtime.containers()


async def test_list_of_followed_containers_asks_for_no_sandboxes(tmp_path: Path) -> None:
    """While events keep the list current, sandboxes are listed only if one of a listed container is unknown."""
    async with play(tmp_path, events=True, poll_seconds=60) as (fake, runtime):
        fake.add("one", INFO)
        async with watching(runtime) as changes:
            await send_event(fake, changes, "one")
            listed = await runtime.containers()
            fake.asked.clear()
            assert await runtime.containers() == listed
            assert fake.asked == {"ListContainers": 1}

            fake.add("two", INFO)
            assert [container.id for container in await runtime.containers()] == ["one", "two"]
            assert fake.asked["ListPodSandbox"] == 1


async def test_end_of_the_stream_makes_the_list_stale_at_once(tmp_path: Path) -> None:
    """Events may be missed from then on, though the runtime still answers and nothing has changed yet."""
    async with play(tmp_path, events=True, poll_seconds=60) as (fake, runtime):
        fake.add("one", INFO)
        async with watching(runtime) as changes:
            await send_event(fake, changes, "one")
            await runtime.containers()
            assert await runtime.known_containers() is not None
            fake.asked.clear()
            fake.send("")
            while not fake.asked["ListContainers"]:  # the poll right after the end
                await asyncio.sleep(0.001)
            assert (await runtime.known_containers(), runtime.changes()) == (None, None)
            assert fake.asked["Version"] == 0  # the next connection has not begun


async def test_poll_with_another_result_makes_the_list_stale(tmp_path: Path) -> None:
    """A container without an event is found by the poll, which makes the list stale."""
    async with play(tmp_path, events=True) as (fake, runtime):
        fake.add("one", INFO)
        async with watching(runtime) as changes:
            await send_event(fake, changes, "one")
            await runtime.containers()
            fake.add("two", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
            assert (await runtime.known_containers(), runtime.changes()) == (None, None)


CHANGES = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from("123"), st.sampled_from([CREATED, RUNNING, EXITED, None])
    )
)


@given(CHANGES)
def test_followed_list_equals_the_runtimes(
    steps: Iterable[tuple[str, str, pb.ContainerState | None]],
) -> None:
    """After any events of live containers the list equals a full list of the runtime."""
    followed, pods = current({"a": {}, "b": {}}), {"a": Statuses(), "b": Statuses()}
    for pod, number, state in steps:
        key, statuses = f"{pod}{number}", pods[pod]
        if state is None:
            if statuses.pop(key, None) is not None:
                followed.take(event(pod, statuses, pb.CONTAINER_DELETED_EVENT, key))
        elif statuses.get(key, CREATED) <= state:
            statuses[key] = state
            followed.take(event(pod, statuses))
    assert followed.is_current
    assert {key: each.state for key, each in followed.containers.items()} == {
        key: STATES[state] for statuses in pods.values() for key, state in statuses.items()
    }
