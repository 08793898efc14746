"""The client of the container runtime against a runtime that misbehaves at will; `test_containerd` has real ones."""

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
from tests.agent.cri.playing import INFO, SECONDS, play, slow_door, watching

ONE = CPUSet.parse("1")


def test_cri_o_listing(tmp_path: Path) -> None:
    """CRI-O's containers are told with the cgroup of the systemd driver; a VM's cgroup is not the host's."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO)
        fake.add("vm", INFO, handler="kata")
        fake.add("lost", {}, state=api_pb2.CONTAINER_UNKNOWN)
        container, vm, lost = await runtime.containers()
        cgroup = "/kubepods.slice/kubepods-pod1.slice/crio-one.scope"
        assert container == RuntimeContainer(
            "one", "uid-one", "ns", "pod-one", "one", State.RUNNING, 42, cgroup
        )
        assert (vm.in_vm, vm.cgroup, vm.pid) == (True, None, 42)
        assert (lost.state, lost.pid, lost.cgroup) == (State.RUNNING, 0, None)

    play(tmp_path, scenario)


def test_status_is_asked_once_a_state(tmp_path: Path) -> None:
    """A full listing costs two calls; a status is asked when a container is new, and when it starts to run."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
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

    asked = play(tmp_path, scenario).asked
    assert asked == {"ContainerStatus": 2, "ListContainers": 7, "ListPodSandbox": 7}


def test_created_container_with_a_pid_is_asked_about_again(tmp_path: Path) -> None:
    """CRI-O's created container has a pid and no start: its start is read once, when it runs."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO, state=api_pb2.CONTAINER_CREATED)
        for _ in range(2):
            [container] = await runtime.containers()
            assert (container.pid, container.started) == (42, 0.0)
        assert fake.asked["ContainerStatus"] == 1
        fake.containers[0].state, fake.started["one"] = api_pb2.CONTAINER_RUNNING, 5 * 10**9
        for _ in range(2):
            [container] = await runtime.containers()
            assert (container.pid, container.started) == (42, 5.0)

    assert play(tmp_path, scenario).asked["ContainerStatus"] == 2


@pytest.mark.parametrize(
    ("error", "names"),
    [
        pytest.param(grpc.StatusCode.NOT_FOUND, [], id="removed-meanwhile"),
        pytest.param(grpc.StatusCode.INTERNAL, ["one"], id="cannot-tell"),
    ],
)
def test_one_odd_container_spoils_no_listing(
    tmp_path: Path, error: grpc.StatusCode, names: list[str]
) -> None:
    """A container that is removed meanwhile is left out, one without a status is listed as far as it is known."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO)
        fake.errors["ContainerStatus"] = (error, "broken")
        assert [container.name for container in await runtime.containers()] == names

    play(tmp_path, scenario)


@pytest.mark.parametrize("method", ["ListContainers", "ListPodSandbox", "ContainerStatus"])
def test_no_listing_is_better_than_a_part(tmp_path: Path, method: str) -> None:
    """A runtime that fails in the middle of a listing is out of reach."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO)
        fake.errors[method] = (grpc.StatusCode.UNAVAILABLE, "starting")
        with pytest.raises(Unavailable, match=f"{method}: UNAVAILABLE: starting"):
            await runtime.containers()

    play(tmp_path, scenario)


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
def test_errors_of_an_update(
    tmp_path: Path, code: grpc.StatusCode, details: str, kind: type[AgentError]
) -> None:
    """Each gRPC status becomes the agent's word for it, with the runtime's text."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.errors["UpdateContainerResources"] = (code, details)
        with pytest.raises(kind, match=f"{code.name}: {details}"):
            await runtime.update_cpus("one", ONE)

    play(tmp_path, scenario)


def test_at_most_two_updates_are_in_flight(tmp_path: Path) -> None:
    """Ten updates at once reach the runtime two by two, with nothing but the CPUs."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.release.clear()
        updates = asyncio.gather(*(runtime.update_cpus(f"c{number}", ONE) for number in range(10)))
        while fake.in_flight < 2:
            await asyncio.sleep(0.001)
        fake.release.set()
        await updates

    fake = play(tmp_path, scenario)
    assert fake.most_in_flight == 2
    assert sorted(fake.updates) == [(f"c{number}", "1") for number in range(10)]


def test_memory_nodes_are_sent_where_there_are_some(tmp_path: Path) -> None:
    """The NUMA nodes go with the CPUs; without any CRI is told nothing of memory."""

    async def scenario(_: FakeRuntime, runtime: CRI) -> None:
        await runtime.update_cpus("one", ONE, CPUSet.parse("1"))
        await runtime.update_cpus("one", ONE)

    assert play(tmp_path, scenario).mems == ["1", ""]


def test_empty_set_is_never_sent(tmp_path: Path) -> None:
    """An empty cpuset means "leave it" to CRI, so it is a bug of the caller."""

    async def scenario(_: FakeRuntime, runtime: CRI) -> None:
        with pytest.raises(ValueError, match="an empty set is no cpuset"):
            await runtime.update_cpus("one", EMPTY)

    assert play(tmp_path, scenario).asked == {}


def test_slow_runtime_is_out_of_reach(tmp_path: Path) -> None:
    """A call that is not answered in time ends."""

    async def scenario(fake: FakeRuntime, _: CRI) -> None:
        fake.release.clear()
        impatient = CRI(fake.socket, timeout_seconds=0.1)
        with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
            await impatient.update_cpus("one", ONE)

    play(tmp_path, scenario)


async def polled(fake: FakeRuntime, times: int) -> None:
    """Wait until the runtime has been listed so often again."""
    wanted = fake.asked["ListContainers"] + times
    while fake.asked["ListContainers"] < wanted:
        await asyncio.sleep(0.001)


def test_polling_tells_of_changes_only(tmp_path: Path) -> None:
    """A runtime without events is polled; polls that find what a listing showed tell nothing."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
            fake.containers[0].state = api_pb2.CONTAINER_EXITED
            await runtime.containers()
            await polled(fake, 2)  # one may have been on its way before the listing, and have told
            while not changes.locked():
                await changes.acquire()
            await polled(fake, 3)
            assert changes.locked()

    assert play(tmp_path, scenario).asked["Version"] == 1


@pytest.mark.parametrize("handler", ["", "kata-qemu"])
def test_pods_are_polled_often_where_there_are_virtual_machines(tmp_path: Path, handler: str) -> None:
    """A new machine is seen before its first container; a node that has none is not asked at every poll."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO, handler=handler)
        async with watching(runtime):
            await runtime.containers()
            before = fake.asked.copy()
            await polled(fake, 20)
            containers, pods = (
                fake.asked[name] - before[name] for name in ("ListContainers", "ListPodSandbox")
            )
            assert containers - 1 <= pods if handler else 1 <= pods <= containers / 10 + 1

    play(tmp_path, scenario)


def test_events_are_told_at_once(tmp_path: Path) -> None:
    """Where the runtime has events, a change is told without waiting for the next poll."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        async with watching(runtime) as changes:
            assert fake.events is not None
            for _ in range(2):
                fake.events.put_nowait("one")
                await asyncio.wait_for(changes.acquire(), SECONDS)
        assert fake.asked["ListContainers"] == 0

    play(tmp_path, scenario, events=True, poll_seconds=60)


def test_owner_is_known_from_the_last_listing(tmp_path: Path) -> None:
    """Whose a listed container is, and that a listed sandbox is none, is answered without another call."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO)
        await runtime.containers()
        asked = dict(fake.asked)
        assert await runtime.owner("one") == runtime.known("one") == Owner("uid-one", "one")
        assert runtime.known("two") is None
        with pytest.raises(Gone):
            await runtime.owner("s-one")
        assert fake.asked == asked

    play(tmp_path, scenario)


def test_owner_of_what_is_new_is_asked_for(tmp_path: Path) -> None:
    """A container that no listing showed yet is asked for by its id; what the runtime does not have is gone."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO)
        fake.add("two", INFO)
        assert await runtime.owner("two") == Owner("uid-two", "two")
        with pytest.raises(Gone):
            await runtime.owner("s-two")
        with pytest.raises(Gone):
            await runtime.owner("three")

    play(tmp_path, scenario)


def test_owners_of_created_containers_are_asked_for_together(tmp_path: Path) -> None:
    """One list names those that were asked for and wait for their start; None stands for one in a VM."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO, state=api_pb2.CONTAINER_CREATED)
        fake.add("two", INFO, state=api_pb2.CONTAINER_CREATED, handler="kata-qemu")
        fake.add("three", INFO)
        fake.add("other", INFO, state=api_pb2.CONTAINER_CREATED)
        found = await runtime.created(["one", "two", "three", "four"])
        assert found == {"one": Owner("uid-one", "one"), "two": None}
        assert fake.asked["ListContainers"] == 1

    play(tmp_path, scenario)


def test_container_in_a_vm_is_none_of_the_host(tmp_path: Path) -> None:
    """Listed or not: whatever cgroup the runtime makes for it is not the agent's to write."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.add("one", INFO, handler="kata-qemu")
        with pytest.raises(Gone):
            await runtime.owner("one")
        await runtime.containers()
        with pytest.raises(Gone):
            await runtime.owner("one")

    play(tmp_path, scenario)


def test_owner_is_known_from_events(tmp_path: Path) -> None:
    """What an event told of is known without a call, until a listing began after it."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        async with watching(runtime) as changes:
            assert fake.events is not None
            fake.events.put_nowait("one")
            await asyncio.wait_for(changes.acquire(), SECONDS)
            assert await runtime.owner("one") == Owner("uid-one", "one")
        assert fake.asked["ListContainers"] == 0
        await runtime.containers()
        with pytest.raises(Gone):
            await runtime.owner("one")

    play(tmp_path, scenario, events=True, poll_seconds=60)


def test_lost_stream_is_connected_again(tmp_path: Path) -> None:
    """When the stream ends the runtime is asked anew, and the reconnection is told as a change."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        async with watching(runtime) as changes:
            assert fake.events is not None
            fake.events.put_nowait("one")
            fake.events.put_nowait("")
            for _ in range(2):  # the event, and the connection after the end
                await asyncio.wait_for(changes.acquire(), SECONDS)
        assert fake.asked["Version"] == 2

    play(tmp_path, scenario, events=True)


def test_refused_events_mean_polling(tmp_path: Path) -> None:
    """A runtime that refuses the stream is polled at the full pace."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.errors["GetContainerEvents"] = (grpc.StatusCode.UNKNOWN, "pod events are disabled")
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
        assert fake.asked["Version"] == fake.asked["GetContainerEvents"] == 1

    play(tmp_path, scenario, events=True)


def test_stream_that_ends_at_once_means_polling(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """CRI-O without pod events ends the stream with OK: it is polled, and neither warned about nor asked again."""
    caplog.set_level("INFO", "agent.cri.runtime")

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        assert fake.events is not None
        fake.events.put_nowait("")
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
            await polled(fake, 20)
            assert changes.locked()  # polls that find nothing new ask for no pass
        assert fake.asked["Version"] == fake.asked["GetContainerEvents"] == 1

    play(tmp_path, scenario, events=True)
    assert [record.getMessage() for record in caplog.records] == ["runtime has no events, polling"]


def test_events_of_containerd_1_are_left_to_the_kubelet(tmp_path: Path) -> None:
    """Each event of containerd 1.7 goes to one client only, so the agent takes none."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        fake.name, fake.version = "containerd", "v1.7.27"
        async with watching(runtime) as changes:
            fake.add("one", INFO)
            await asyncio.wait_for(changes.acquire(), SECONDS)
        assert runtime.name == "containerd 1.7.27"
        assert fake.asked["GetContainerEvents"] == 0

    play(tmp_path, scenario, events=True)


def test_watch_waits_for_a_runtime_that_is_not_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A watch that starts before the runtime connects when it comes, and again when it went."""

    async def scenario() -> None:
        fake = FakeRuntime(tmp_path / "cri.sock")
        runtime = CRI(fake.socket, poll_seconds=0.02)
        changes = asyncio.Semaphore(0)
        watch = asyncio.create_task(runtime.watch(changes.release))
        with pytest.raises(Unavailable):
            await runtime.containers()
        for _ in range(2):
            async with fake.serving():
                await asyncio.wait_for(changes.acquire(), SECONDS)
                while not fake.asked["ListContainers"]:
                    await asyncio.sleep(0.005)
            fake.asked.clear()
            failures = len(caplog.records)
            while len(caplog.records) == failures:  # an outage between two polls changes nothing
                await asyncio.sleep(0.005)
            while not changes.locked():
                await changes.acquire()
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)

    asyncio.run(scenario())


def test_runtime_that_is_slow_to_greet_is_waited_for(tmp_path: Path) -> None:
    """A runtime that takes 1.5 s to greet is waited for: each of the calls connects once."""

    async def scenario(fake: FakeRuntime, _: CRI) -> None:
        fake.add("one", INFO)
        async with slow_door(tmp_path / "slow.sock", fake.socket) as attempts:
            runtime = CRI(tmp_path / "slow.sock", poll_seconds=1, timeout_seconds=60)
            found = await runtime.containers()
        assert ([container.id for container in found], len(attempts)) == (
            ["one"],
            3,
        )  # two lists and a status

    play(tmp_path, scenario)


def test_exit_of_a_container(tmp_path: Path) -> None:
    """Code, reason and time of one that has exited; nothing of one that is created, runs, or is not known to."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
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

    play(tmp_path, scenario)


def test_largest_environments_are_named_by_size(tmp_path: Path) -> None:
    """Three of those above 256 KiB, the largest first; a status above 16 MiB counts as that, one that is refused not."""

    def info(size: int, **more: str) -> dict[str, object]:
        return {**INFO, "runtimeSpec": {"process": {"env": ["K=" + "x" * (size - 2)]}}, **more}

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
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

    play(tmp_path, scenario)


def test_search_for_environments_is_bounded(tmp_path: Path) -> None:
    """In number, beginning with the newest, and in time."""

    async def scenario(fake: FakeRuntime, runtime: CRI) -> None:
        for number in range(5):
            fake.add(f"c{number}", INFO)
        turn = asyncio.Semaphore(1)
        await largest_environments(runtime._calls, runtime._lists, turn, most=2)
        assert fake.asked["ContainerStatus"] == 2
        await largest_environments(runtime._calls, runtime._lists, turn, seconds=-1.0)
        assert fake.asked["ContainerStatus"] == 2

    play(tmp_path, scenario)
