"""The CRI client against a fake runtime that fails on request; `test_containerd` has real ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from cri_api.v1 import api_pb2

from agent.cri.environments import largest_environments
from agent.cri.runtime import CRI
from agent.errors import AgentError, Gone, Refused, Unavailable
from agent.interfaces import ContainerExit, RuntimeContainer
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.cri.fake_cri import FakeRuntime
from tests.agent.cri.playing import INFO, SECONDS, event, play, slow_door, watching
from tests.environments.waiting import background

ONE = CPUSet.parse("1")


async def test_cri_o_listing(tmp_path: Path) -> None:
    """CRI-O's containers have the cgroup of the systemd driver; one in a VM has no cgroup of the host."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        fake.add("vm", INFO, handler="kata")
        fake.add("lost", {}, state=api_pb2.CONTAINER_UNKNOWN)
        container, vm, lost = await runtime.containers()
        cgroup = "/kubepods.slice/kubepods-pod1.slice/crio-one.scope"
        assert container == RuntimeContainer(
            "one", "uid-one", "ns", "pod-one", "one", State.RUNNING, 42, cgroup, pod_sandbox="s-one"
        )
        assert (vm.in_vm, vm.cgroup, vm.pid) == (True, None, 42)
        assert (lost.state, lost.pid, lost.cgroup) == (State.RUNNING, 0, None)


async def test_status_is_requested_once_for_each_state(tmp_path: Path) -> None:
    """A list costs two calls; a status is requested for new containers and when they start."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO | {"pid": 0}, state=api_pb2.CONTAINER_CREATED)
        fake.add("old", INFO, state=api_pb2.CONTAINER_EXITED)
        for _ in range(3):
            assert [container.pid for container in await runtime.containers()] == [0, 0]
        assert fake.asked["ContainerStatus"] == 1
        fake.containers[0].state, fake.infos["one"] = api_pb2.CONTAINER_RUNNING, INFO
        for _ in range(3):
            assert [container.pid for container in await runtime.containers()] == [42, 0]
        fake.containers[0].state = api_pb2.CONTAINER_EXITED
        assert [container.pid for container in await runtime.containers()] == [0, 0]
    asked = fake.asked
    assert asked == {"ContainerStatus": 2, "ListContainers": 7, "ListPodSandbox": 7}


async def test_status_is_requested_again_when_a_container_starts(tmp_path: Path) -> None:
    """CRI-O's created container has a pid and no start time, which is read once when it runs."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO, state=api_pb2.CONTAINER_CREATED)
        for _ in range(2):
            [container] = await runtime.containers()
            assert (container.pid, container.started) == (42, 0.0)
        assert fake.asked["ContainerStatus"] == 1
        fake.containers[0].state, fake.started["one"] = api_pb2.CONTAINER_RUNNING, 5 * 10**9
        for _ in range(2):
            [container] = await runtime.containers()
            assert (container.pid, container.started) == (42, 5.0)
    assert fake.asked["ContainerStatus"] == 2


@pytest.mark.parametrize(
    ("error", "names"),
    [
        pytest.param(grpc.StatusCode.NOT_FOUND, [], id="removed-meanwhile"),
        pytest.param(grpc.StatusCode.INTERNAL, ["one"], id="cannot-tell"),
    ],
)
async def test_failed_status_does_not_fail_the_list(
    tmp_path: Path, error: grpc.StatusCode, names: list[str]
) -> None:
    """A removed container is left out, and one whose status fails is listed without details."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        fake.errors["ContainerStatus"] = (error, "broken")
        assert [container.name for container in await runtime.containers()] == names


@pytest.mark.parametrize("method", ["ListContainers", "ListPodSandbox", "ContainerStatus"])
async def test_unavailable_runtime_fails_the_whole_list(tmp_path: Path, method: str) -> None:
    """If the runtime becomes unavailable during a list, no partial list is returned."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        fake.errors[method] = (grpc.StatusCode.UNAVAILABLE, "starting")
        with pytest.raises(Unavailable, match=f"{method}: UNAVAILABLE: starting"):
            await runtime.containers()


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.NOT_FOUND, "no such container", Gone),
        (grpc.StatusCode.UNKNOWN, "container is in CONTAINER_EXITED state", Gone),
        (grpc.StatusCode.UNKNOWN, "container one is not running or created state: stopped", Gone),
        (grpc.StatusCode.UNKNOWN, "container with ID starting with 1a not found: ID does not exist", Gone),
        (grpc.StatusCode.UNAVAILABLE, "", Unavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", Unavailable),
        (grpc.StatusCode.UNKNOWN, "Requested CPUs are not available", Refused),
        (grpc.StatusCode.PERMISSION_DENIED, "", Refused),
        (grpc.StatusCode.UNIMPLEMENTED, "", Refused),
    ],
)
async def test_errors_of_an_update(
    tmp_path: Path, code: grpc.StatusCode, details: str, kind: type[AgentError]
) -> None:
    """Each gRPC status becomes the agent's error type with the runtime's message."""
    async with play(tmp_path) as (fake, runtime):
        fake.errors["UpdateContainerResources"] = (code, details)
        with pytest.raises(kind, match=f"{code.name}: {details}"):
            await runtime.update_cpus("one", ONE)


async def test_at_most_two_updates_are_in_flight(tmp_path: Path) -> None:
    """Ten concurrent updates are sent two at a time, with the CPUs only."""
    async with play(tmp_path) as (fake, runtime):
        fake.release.clear()
        updates = asyncio.gather(*(runtime.update_cpus(f"c{number}", ONE) for number in range(10)))
        while fake.in_flight < 2:
            await asyncio.sleep(0.001)
        fake.release.set()
        await updates
    assert fake.most_in_flight == 2
    assert sorted(fake.updates) == [(f"c{number}", "1") for number in range(10)]


async def test_memory_nodes_are_sent_if_given(tmp_path: Path) -> None:
    """Memory nodes are sent with the CPUs if given, otherwise the field is empty."""
    async with play(tmp_path) as (_, runtime):
        await runtime.update_cpus("one", ONE, CPUSet.parse("1"))
        await runtime.update_cpus("one", ONE)
    assert _.mems == ["1", ""]


async def test_empty_cpuset_raises(tmp_path: Path) -> None:
    """An empty cpuset raises, because in CRI it means unchanged."""
    async with play(tmp_path) as (_, runtime):
        with pytest.raises(ValueError, match="an empty set is not a cpuset"):
            await runtime.update_cpus("one", EMPTY)
    assert _.asked == {}


async def test_slow_runtime_times_out(tmp_path: Path) -> None:
    """A call without an answer raises Unavailable at its deadline."""
    async with play(tmp_path) as (fake, _):
        fake.release.clear()
        impatient = CRI(fake.socket, timeout_seconds=0.1)
        with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
            await impatient.update_cpus("one", ONE)


async def polled(fake: FakeRuntime, times: int) -> None:
    """Wait for this many more list calls."""
    wanted = fake.asked["ListContainers"] + times
    while fake.asked["ListContainers"] < wanted:
        await asyncio.sleep(0.001)


async def test_polling_reports_changes_only(tmp_path: Path) -> None:
    """A poll with the same result as the last list reports nothing."""
    async with play(tmp_path) as (fake, runtime), watching(runtime) as changes:
        fake.add("one", INFO)
        await asyncio.wait_for(changes.acquire(), SECONDS)
        fake.containers[0].state = api_pb2.CONTAINER_EXITED
        await runtime.containers()
        await polled(fake, 2)  # a poll that runs while the list is made may still report a change
        while not changes.locked():
            await changes.acquire()
        await polled(fake, 3)
        assert changes.locked()
    assert fake.asked["Version"] == 1


@pytest.mark.parametrize("handler", ["", "kata-qemu"])
async def test_pods_are_polled_often_where_there_are_virtual_machines(tmp_path: Path, handler: str) -> None:
    """Sandboxes are polled every time if there are virtual machines, otherwise rarely."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO, handler=handler)
        async with watching(runtime):
            await runtime.containers()
            before = fake.asked.copy()
            await polled(fake, 20)
            containers, pods = (
                fake.asked[name] - before[name] for name in ("ListContainers", "ListPodSandbox")
            )
            assert containers - 1 <= pods if handler else 1 <= pods <= containers / 10 + 1


async def test_events_are_reported_without_a_poll(tmp_path: Path) -> None:
    """An event is reported without waiting for the next poll."""
    async with play(tmp_path, events=True, poll_seconds=60) as (fake, runtime):
        async with watching(runtime) as changes:
            for _ in range(2):
                await event(fake, changes, "one")
        assert fake.asked["ListContainers"] == 0


async def test_owner_is_known_from_the_last_listing(tmp_path: Path) -> None:
    """Owners of listed containers, and that an id is a sandbox, are known without a call."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        await runtime.containers()
        asked = dict(fake.asked)
        assert await runtime.owner("one") == runtime.known("one") == Owner("uid-one", "one")
        assert runtime.known("two") is None
        with pytest.raises(Gone):
            await runtime.owner("s-one")
        assert fake.asked == asked


async def test_owner_of_a_new_container_is_requested(tmp_path: Path) -> None:
    """An unlisted container is requested by its id; an unknown one raises Gone."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        fake.add("two", INFO)
        assert await runtime.owner("two") == Owner("uid-two", "two")
        with pytest.raises(Gone):
            await runtime.owner("s-two")
        with pytest.raises(Gone):
            await runtime.owner("three")


async def test_owners_of_created_containers_are_requested_in_one_call(tmp_path: Path) -> None:
    """One call returns the requested containers that are created, with None for one in a VM."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO, state=api_pb2.CONTAINER_CREATED)
        fake.add("two", INFO, state=api_pb2.CONTAINER_CREATED, handler="kata-qemu")
        fake.add("three", INFO)
        fake.add("other", INFO, state=api_pb2.CONTAINER_CREATED)
        found = await runtime.created(["one", "two", "three", "four"])
        assert found == {"one": Owner("uid-one", "one"), "two": None}
        assert fake.asked["ListContainers"] == 1


async def test_container_in_a_vm_has_no_owner_on_the_host(tmp_path: Path) -> None:
    """A container in a VM raises Gone, because the agent must not write its cgroup."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO, handler="kata-qemu")
        with pytest.raises(Gone):
            await runtime.owner("one")
        await runtime.containers()
        with pytest.raises(Gone):
            await runtime.owner("one")


async def test_owner_is_known_from_events(tmp_path: Path) -> None:
    """An owner from an event is known until a list that started later does not have it."""
    async with play(tmp_path, events=True, poll_seconds=60) as (fake, runtime):
        async with watching(runtime) as changes:
            await event(fake, changes, "one")
            assert await runtime.owner("one") == Owner("uid-one", "one")
        assert fake.asked["ListContainers"] == 0
        await runtime.containers()
        with pytest.raises(Gone):
            await runtime.owner("one")


async def test_lost_stream_is_reconnected(tmp_path: Path) -> None:
    """When the event stream ends the client reconnects and reports a change."""
    async with play(tmp_path, events=True) as (fake, runtime):
        async with watching(runtime) as changes:
            fake.send("one")
            fake.send("")
            for _ in range(2):  # the event, and the connection after the end
                await asyncio.wait_for(changes.acquire(), SECONDS)
        assert fake.asked["Version"] == 2


async def test_refused_event_stream_falls_back_to_polling(tmp_path: Path) -> None:
    """A runtime that refuses the event stream is polled at the normal interval."""
    async with play(tmp_path, events=True) as (fake, runtime):
        fake.errors["GetContainerEvents"] = (grpc.StatusCode.UNKNOWN, "pod events are disabled")
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
        assert fake.asked["Version"] == fake.asked["GetContainerEvents"] == 1


async def test_stream_that_ends_at_once_falls_back_to_polling(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """CRI-O without pod events ends the stream with OK: it is polled, without warnings or reconnects."""
    caplog.set_level("INFO", "agent.cri.runtime")
    async with play(tmp_path, events=True) as (fake, runtime):
        fake.send("")
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
            await polled(fake, 20)
            assert changes.locked()  # polls without changes request no pass
        assert fake.asked["Version"] == fake.asked["GetContainerEvents"] == 1
    assert [record.getMessage() for record in caplog.records] == ["runtime has no events, polling"]


async def test_events_of_containerd_1_are_not_subscribed(tmp_path: Path) -> None:
    """Each event of containerd 1.7 goes to one client only, so the agent leaves them to the kubelet."""
    async with play(tmp_path, events=True) as (fake, runtime):
        fake.name, fake.version = "containerd", "v1.7.27"
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
        assert runtime.name == "containerd 1.7.27"
        assert fake.asked["GetContainerEvents"] == 0


async def test_watch_waits_for_the_runtime(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A watch that starts before the runtime connects later, and reconnects after an outage."""
    fake = FakeRuntime(tmp_path / "cri.sock")
    runtime = CRI(fake.socket, poll_seconds=0.02)
    changes = asyncio.Semaphore(0)
    async with background(runtime.watch(changes.release)):
        with pytest.raises(Unavailable):
            await runtime.containers()
        for _ in range(2):
            async with fake.serving():
                await asyncio.wait_for(changes.acquire(), SECONDS)
                while not fake.asked["ListContainers"]:
                    await asyncio.sleep(0.005)
            fake.asked.clear()
            failures = len(caplog.records)
            # The agent does not notice an outage that falls between two polls.
            while len(caplog.records) == failures:
                await asyncio.sleep(0.005)
            while not changes.locked():
                await changes.acquire()


async def test_slow_connection_is_waited_for(tmp_path: Path) -> None:
    """If a connection takes 1.5 s, each call still connects only once."""
    async with play(tmp_path) as (fake, _):
        fake.add("one", INFO)
        async with slow_door(tmp_path / "slow.sock", fake.socket) as attempts:
            runtime = CRI(tmp_path / "slow.sock", poll_seconds=1, timeout_seconds=60)
            found = await runtime.containers()
        assert ([container.id for container in found], len(attempts)) == (
            ["one"],
            3,
        )  # two lists and a status


async def test_exit_of_a_container(tmp_path: Path) -> None:
    """An exited container has code, reason and time; one in another state has None."""
    async with play(tmp_path) as (fake, runtime):
        states = {
            "killed": api_pb2.CONTAINER_EXITED,
            "runs": api_pb2.CONTAINER_RUNNING,
            "made": api_pb2.CONTAINER_CREATED,
            "lost": api_pb2.CONTAINER_UNKNOWN,
        }
        for name, state in states.items():
            fake.add(name, INFO, state=state)
            fake.exits[name] = (137, "OOMKilled", 1_790_000_000_500_000_000)
        assert await runtime.exit_of("killed") == ContainerExit(137, "OOMKilled", 1_790_000_000.5)
        assert [await runtime.exit_of(name) for name in ("runs", "made", "lost")] == [None] * 3
        fake.errors["ContainerStatus"] = (grpc.StatusCode.NOT_FOUND, "removed")
        with pytest.raises(Gone):
            await runtime.exit_of("killed")


async def test_largest_environments_are_sorted_by_size(tmp_path: Path) -> None:
    """The three largest above 256 KiB are returned; a status above 16 MiB counts with that size."""

    def info(size: int, **more: str) -> dict[str, object]:
        return {**INFO, "runtimeSpec": {"process": {"env": ["K=" + "x" * (size - 2)]}}, **more}

    async with play(tmp_path) as (fake, runtime):
        for name, size in {"a": 300 << 10, "b": 2 << 20, "c": 1 << 20, "d": 1000}.items():
            fake.add(name, info(size))
        fake.add("e", info(1000, config="x" * (17 << 20)))
        found = await runtime.largest_environments()
        assert found is not None
        assert [(large.container, large.size) for large in found] == [
            ("e", 16 << 20),
            ("b", 2 << 20),
            ("c", 1 << 20),
        ]
        fake.errors["ContainerStatus"] = (grpc.StatusCode.INTERNAL, "broken")
        assert await runtime.largest_environments() == ()
        fake.errors["ContainerStatus"] = (grpc.StatusCode.UNAVAILABLE, "away")
        assert await runtime.largest_environments() is None


async def test_search_for_environments_is_limited(tmp_path: Path) -> None:
    """The search is limited in number, newest first, and in time."""
    async with play(tmp_path) as (fake, runtime):
        for number in range(5):
            fake.add(f"c{number}", INFO)
        turn = asyncio.Semaphore(1)
        await largest_environments(runtime._calls, runtime._lists, turn, most=2)
        assert fake.asked["ContainerStatus"] == 2
        await largest_environments(runtime._calls, runtime._lists, turn, seconds=-1.0)
        assert fake.asked["ContainerStatus"] == 2
