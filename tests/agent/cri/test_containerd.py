"""The agent's runtime client and cgroups with real containers on a real kernel."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from cri_api.v1 import api_pb2

from agent.cri.runtime import CRI
from agent.errors import Gone, Refused, Unavailable
from agent.kernel.cgroupfs import find_hierarchy
from agent.kernel.tasks import tasks_below
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import State
from pinning.planning.quota import Bandwidth
from tests.environments.node.cgroup_trees import opened
from tests.environments.node.containerd import CGROUP_ROOT, FOREVER, Containerd
from tests.environments.node.containerd_fixture import CRIO, EVERY_RUNTIME
from tests.environments.waiting import background

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from agent.interfaces import RuntimeContainer

ONE, ALL = CPUSet.parse("0"), CPUSet(os.sched_getaffinity(0))
FORKING = ("/bin/sh", "-c", "sleep 1000000 & wait")
NARROW = ("/bin/sh", "-c", "taskset 1 sleep 1000000 & wait")  # affinity mask 1: CPU 0
SECONDS = 60.0
pytestmark = [
    pytest.mark.skipif(len(ALL) == 1, reason="moving a container takes two CPUs"),
    # Not with crun's layout: on cgroup v1 runc itself cannot narrow a cgroup that has a child.
    pytest.mark.parametrize("containerd_session", EVERY_RUNTIME[:3], indirect=True),
]


@asynccontextmanager
async def watched(watch: Callable[[Any], Any]) -> AsyncIterator[asyncio.Queue[Any]]:
    """Run a `watch` method and put its reports into the queue."""
    changes: asyncio.Queue[Any] = asyncio.Queue()
    async with background(watch(lambda *said: changes.put_nowait(said))):
        yield changes


async def listed(runtime: CRI) -> dict[str, RuntimeContainer]:
    """Return the containers by name."""
    return {container.name: container for container in await runtime.containers()}


def containers(containerd: Containerd) -> dict[str, RuntimeContainer]:
    """Return the containers by name over a new connection."""

    async def ask() -> dict[str, RuntimeContainer]:
        runtime = CRI(containerd.socket, timeout_seconds=SECONDS)
        return await listed(runtime)

    return asyncio.run(ask())


def update(containerd: Containerd, container_id: str, cpus: CPUSet) -> None:
    """Update a container's CPUs over CRI, as the agent does."""

    async def ask() -> None:
        runtime = CRI(containerd.socket, timeout_seconds=SECONDS)
        await runtime.update_cpus(container_id, cpus)

    asyncio.run(ask())


def cgroup_of(container: RuntimeContainer) -> str:
    """Return the container's cgroup, which must be known."""
    assert container.cgroup is not None
    return container.cgroup


def wait_until(is_true: Callable[[], bool]) -> None:
    """Poll until a condition holds that no event reports."""
    deadline = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def running(containerd: Containerd, command: Sequence[str] = FOREVER) -> RuntimeContainer:
    """Run a container in a pod of its own; return it as the client lists it."""
    containerd.run_pod("web", "uid-1").run("one", command)
    return containers(containerd)["one"]


def tasks(container: RuntimeContainer) -> list[int]:
    """Return the tasks of a container, as the kernel lists them."""
    hierarchy = find_hierarchy(CGROUP_ROOT)
    return tasks_below(hierarchy.folder(cgroup_of(container)), hierarchy.tasks)


def commands(container: RuntimeContainer) -> list[str]:
    """Return the commands of a container's tasks; runc's own tasks have ended once its command runs."""
    found = []
    for task in tasks(container):
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append(Path(f"/proc/{task}/comm").read_text().strip())
    return sorted(found)


def test_list_has_pod_pid_and_cgroup_of_containers(containerd: Containerd) -> None:
    """Created, running and exited containers are listed with pod, pid and cgroup, and sandboxes are not."""
    pod = containerd.run_pod("web", "uid-1")
    pod.create("created")
    pod.run("running")
    pod.stop(pod.run("exited"))

    found = containers(containerd)

    assert {name: container.state for name, container in found.items()} == {
        "created": State.CREATED,
        "running": State.RUNNING,
        "exited": State.EXITED,
    }
    running = found["running"]
    assert (running.pod_uid, running.namespace, running.pod) == ("uid-1", "default", "web")
    assert running.cgroup == found["created"].cgroup.replace(found["created"].id, running.id)  # type: ignore[union-attr]
    below = "/container" if containerd.programs.version == CRIO[1] else ""
    assert f":{running.cgroup}{below}\n" in Path(f"/proc/{running.pid}/cgroup").read_text()
    assert found["exited"].pid == 0
    # CRI-O's created container already has its process
    assert bool(found["created"].pid) is (containerd.programs.version in CRIO)
    assert not running.in_vm


def test_annotations_of_a_pod_make_no_machine_of_it(containerd: Containerd) -> None:
    """A tenant's annotations and labels for Kata leave an ordinary container in its cgroup, where it is moved."""
    words = {"io.katacontainers.config.hypervisor.default_vcpus": "1", "io.kubernetes.cri-o.kata": "x"}
    containerd.run_pod("web", "uid-1", words, labels=words).run("main")

    found = containers(containerd)["main"]

    assert not found.in_vm
    assert found.cgroup
    assert found.pid


async def test_name_has_the_version(containerd: Containerd) -> None:
    """The name of the runtime includes its version."""
    runtime = CRI(containerd.socket, timeout_seconds=SECONDS)
    assert (await runtime.identify()).startswith(containerd.name)


async def test_second_list_has_the_pid_of_a_started_container(containerd: Containerd) -> None:
    """A second list has the pid of a container that started since, and its known cgroup."""
    pod = containerd.run_pod("web", "uid-1")
    created = pod.create("one")
    runtime = CRI(containerd.socket, timeout_seconds=SECONDS)
    before = (await listed(runtime))["one"]
    pod.start(created)
    after = (await listed(runtime))["one"]
    assert before.state is State.CREATED
    assert (after.state, after.cgroup) == (State.RUNNING, before.cgroup)
    assert after.pid in tasks(after)


def test_updated_created_container_starts_on_its_cpus(containerd: Containerd) -> None:
    """A cpuset sent between creation and start is in effect when the container starts."""
    pod = containerd.run_pod("web", "uid-1")
    created = pod.create("one")

    update(containerd, created, ONE)
    pod.start(created)

    assert os.sched_getaffinity(containers(containerd)["one"].pid) == {0}


def test_update_moves_every_process(containerd: Containerd) -> None:
    """After an update over CRI the cgroup and all processes have the new CPUs."""
    container = running(containerd, FORKING)
    wait_until(lambda: commands(container) == ["sh", "sleep"])

    update(containerd, container.id, ONE)

    assert opened().cpusets.read(cgroup_of(container)) == ONE
    assert [os.sched_getaffinity(task) for task in tasks(container)] == [{0}, {0}]


def test_written_cgroup_is_read_back(containerd: Containerd) -> None:
    """A write of the container's cgroup moves its process and is read back."""
    container, cgroups = running(containerd), opened()

    for cpus in (ONE, ALL - ONE, ALL):
        cgroups.cpusets.write(cgroup_of(container), cpus)

        assert cgroups.cpusets.read(cgroup_of(container)) == cpus
        assert os.sched_getaffinity(container.pid) == set(cpus)


def test_child_cgroup_of_a_container_follows(containerd: Containerd) -> None:
    """A child cgroup inside the container does not block a change, and gets the new CPUs."""
    container, cgroups = running(containerd), opened()
    child = find_hierarchy(CGROUP_ROOT).folder(cgroup_of(container)) / "child"
    child.mkdir()
    try:
        cgroups.cpusets.write(f"{container.cgroup}/child", ALL)
        for cpus in (ONE, ALL - ONE, ALL):
            cgroups.cpusets.write(cgroup_of(container), cpus)
            assert cgroups.cpusets.read(f"{container.cgroup}/child") == cpus
    finally:
        child.rmdir()


def test_cpus_missing_in_parent_cgroups_are_added_first(containerd: Containerd) -> None:
    """A CPU that the parent cgroups lack is added to them first, from the top."""
    container, cgroups = running(containerd), opened()
    above = [str(path) for path in list(Path(cgroup_of(container)).parents)[:-1]]
    cgroups.cpusets.write(above[-1], ONE)
    assert cgroups.cpusets.read(cgroup_of(container)) == ONE

    cgroups.cpusets.write(cgroup_of(container), ALL)

    assert cgroups.cpusets.read(cgroup_of(container)) == ALL
    if cgroups.cpusets.version == 1:
        assert [cgroups.cpusets.read(cgroup) for cgroup in above] == [ALL] * len(above)


def test_stray_tasks_finds_every_process(containerd: Containerd) -> None:
    """Tasks outside the CPUs and tasks on fewer CPUs are returned by task id."""
    pod = containerd.run_pod("web", "uid-1")
    pod.run("wide", FORKING)
    pod.run("narrow", NARROW)
    found, cgroups = containers(containerd), opened()
    wide, narrow = found["wide"], found["narrow"]
    for container in (wide, narrow):
        wait_until(lambda container=container: commands(container) == ["sh", "sleep"])  # type: ignore[misc]

    strays = cgroups.tasks.stray_tasks(cgroup_of(wide), ONE)
    assert (set(strays.outside), strays.narrowed) == (set(tasks(wide)), ())
    strays = cgroups.tasks.stray_tasks(cgroup_of(narrow), ALL)
    assert (strays.outside, strays.narrowed) == ((), tuple(set(tasks(narrow)) - {narrow.pid}))


def test_foreign_update_is_reported(containerd: Containerd) -> None:
    """An update by another CRI client is reported, and the agent's own write is not."""
    container, cgroups = running(containerd), opened()
    cgroup = cgroup_of(container)
    linux = api_pb2.LinuxContainerResources(cpuset_cpus=str(ALL - ONE))
    request = api_pb2.UpdateContainerResourcesRequest(container_id=container.id, linux=linux)

    async def interfere() -> tuple[str]:
        async with watched(cgroups.watch.watch) as changes:
            cgroups.watch.follow([cgroup])
            cgroups.cpusets.write(cgroup, ONE)
            await asyncio.to_thread(
                containerd.call, "UpdateContainerResources", request, api_pb2.UpdateContainerResourcesResponse
            )
            said: tuple[str] = await asyncio.wait_for(changes.get(), SECONDS)
            cgroups.cpusets.write(cgroup, ONE)
            await asyncio.sleep(0)
            assert changes.empty()
            return said

    assert asyncio.run(interfere()) == (cgroup,)


def test_quota_of_a_container(containerd: Containerd) -> None:
    """The quota and the count of throttled periods are read, and the quota can be unset and restored."""
    container, cgroups = running(containerd), opened()
    cgroup = cgroup_of(container)
    original = cgroups.quotas.quota(cgroup)
    assert original == Bandwidth(50000, 100000)
    assert cgroups.quotas.times_throttled(cgroup) >= 0

    cgroups.quotas.unset_quota(cgroup)

    assert cgroups.quotas.quota(cgroup) is None
    cgroups.quotas.set_quota(cgroup, original)
    assert cgroups.quotas.quota(cgroup) == original


def test_missing_containers_and_invalid_cpus_raise_different_errors(containerd: Containerd) -> None:
    """A missing container raises Gone, nonexistent CPUs raise Refused, over cgroup and CRI."""
    pod = containerd.run_pod("web", "uid-1")
    pod.run("one")
    container, cgroups = containers(containerd)["one"], opened()
    beyond = CPUSet.parse("4000")

    with pytest.raises(Refused):
        cgroups.cpusets.write(cgroup_of(container), beyond)
    with pytest.raises(Refused):
        update(containerd, container.id, beyond)
    with pytest.raises(Gone):
        update(containerd, "f" * 64, ONE)
    pod.stop(container.id)
    with suppress(Gone):  # raised by CRI-O
        update(containerd, container.id, ONE)
    pod.remove(container.id)  # CRI-O keeps the cgroup until the removal
    with pytest.raises(Gone):
        cgroups.cpusets.write(cgroup_of(container), ONE)
    with pytest.raises(Gone):
        cgroups.cpusets.read(cgroup_of(container))


async def test_watch_reports_creation_start_and_stop(containerd: Containerd) -> None:
    """Each change of state is reported, by events or by polling."""
    pod = containerd.run_pod("web", "uid-1")
    states: list[State] = []

    async def until(state: State) -> None:
        while (found := await listed(runtime)).get("one") is None or found["one"].state is not state:
            await asyncio.wait_for(changes.get(), SECONDS)
        states.append(found["one"].state)

    runtime = CRI(containerd.socket, poll_seconds=0.05, timeout_seconds=SECONDS)
    async with watched(runtime.watch) as changes:
        await asyncio.wait_for(changes.get(), SECONDS)
        container = await asyncio.to_thread(pod.create, "one")
        await until(State.CREATED)
        await asyncio.to_thread(pod.start, container)
        await until(State.RUNNING)
        await asyncio.to_thread(pod.stop, container)
        await until(State.EXITED)
    assert states == [State.CREATED, State.RUNNING, State.EXITED]


def test_containers_survive_a_kill_of_containerd(containerd: Containerd) -> None:
    """Calls to a killed containerd raise Unavailable; afterwards process and CPUs are kept."""
    pod = containerd.run_pod("web", "uid-1")
    pod.run("one")

    async def through() -> tuple[RuntimeContainer, RuntimeContainer]:
        runtime = CRI(containerd.socket, poll_seconds=0.05, timeout_seconds=SECONDS)
        async with watched(runtime.watch) as changes:
            await asyncio.wait_for(changes.get(), SECONDS)
            before = (await listed(runtime))["one"]
            await runtime.update_cpus(before.id, ONE)
            containerd.kill()
            with pytest.raises(Unavailable):
                await runtime.containers()
            with pytest.raises(Unavailable):
                await runtime.update_cpus(before.id, ALL)
            containerd.start()
            while not changes.empty():
                changes.get_nowait()
            await asyncio.to_thread(pod.create, "two")
            await asyncio.wait_for(changes.get(), SECONDS)
            after = (await listed(runtime))["one"]
            await runtime.update_cpus(after.id, ALL - ONE)
            return before, after

    before, after = asyncio.run(through())
    assert before == after
    assert os.sched_getaffinity(after.pid) == set(ALL - ONE)
