"""What the plain folders of `test_cpusets` cannot tell: the kernel this runs on, cgroup v1 or v2, without a runtime."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.errors import AgentError, Gone, Refused
from agent.interfaces import StrayTasks
from agent.kernel.cgroupfs import V1, V2, Hierarchy, find_hierarchy
from agent.kernel.thread_pins import kernel_forgets_pins
from pinning.machine.cpuset import CPUSet
from tests.agent.cgroup_trees import OpenCgroups, opened

ROOT = Path("/sys/fs/cgroup")
HERE = CPUSet(os.sched_getaffinity(0))
LOW, HIGH = CPUSet([HERE.lowest()]), CPUSet([max(HERE)])
# Prints its second thread's id, which runs on CPU argv[1] alone; ends when its input does.
TWO_THREADS = """
import os, sys, threading
def second():
    os.sched_setaffinity(0, {int(sys.argv[1])})
    print(threading.get_native_id(), flush=True)
    threading.Event().wait()
threading.Thread(target=second, daemon=True).start()
sys.stdin.read()
"""
pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are written by root"),
    pytest.mark.skipif(len(HERE) == 1, reason="moving a task takes two CPUs"),
]


class Pod:
    """A cgroup of this test's own, with one more below it that is the container's."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy
        self.name = f"/corepin-test-{os.getpid()}"
        self.container = f"{self.name}/one"
        self.processes: list[subprocess.Popen[str]] = []
        self.make(self.name)
        self.make(self.container)

    def folder(self, cgroup: str) -> Path:
        """Return where a cgroup is."""
        return self.hierarchy.folder(cgroup)

    def make(self, cgroup: str) -> None:
        """Make a cgroup as a runtime does: with the controller, and on v1 with CPUs and memory nodes."""
        folder = self.folder(cgroup)
        if self.hierarchy.version == V2:
            (folder.parent / "cgroup.subtree_control").write_text("+cpuset")
        folder.mkdir()
        if self.hierarchy.version == V1:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((folder.parent / name).read_text())

    def start(self) -> tuple[int, int]:
        """Start a process of two threads in the container and return their ids; the second is on the lowest CPU."""
        command = [sys.executable, "-c", TWO_THREADS, str(HERE.lowest())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        (self.folder(self.container) / "cgroup.procs").write_text(str(process.pid))
        assert process.stdout is not None
        return process.pid, int(process.stdout.readline())

    def remove(self) -> None:
        """End the processes and remove the cgroups."""
        for process in self.processes:
            process.communicate()
        for folder, _, _ in os.walk(self.folder(self.name), topdown=False):
            Path(folder).rmdir()


@pytest.fixture
def pod() -> Iterator[Pod]:
    """Return a pod in the cgroups of this machine."""
    try:
        hierarchy = find_hierarchy(ROOT)
    except AgentError as error:
        pytest.skip(str(error))
    pod = Pod(hierarchy)
    yield pod
    pod.remove()


@pytest.fixture
def cgroups() -> Iterator[OpenCgroups]:
    """Return the agent's view of this machine."""
    cgroups = opened()
    yield cgroups
    cgroups.watch.close()


@pytest.mark.skipif(
    kernel_forgets_pins(os.uname().release) and len(HERE) == 2, reason="with two CPUs a pin is the whole set"
)
def test_pins_of_threads_outlive_changes(pod: Pod, cgroups: OpenCgroups) -> None:
    """A thread that pinned itself stays there while its container shrinks and grows; its process moves."""
    process, thread = pod.start()
    cgroups.cpusets.write(pod.container, HERE)

    for cpus in (HERE - HIGH, HERE, HERE - HIGH, HERE):
        cgroups.cpusets.write(pod.container, cpus)

        assert cgroups.cpusets.read(pod.container) == cpus
        assert os.sched_getaffinity(process) == set(cpus)
        assert os.sched_getaffinity(thread) == set(LOW)
    assert cgroups.tasks.stray_tasks(pod.container, HERE) == StrayTasks(narrowed=(thread,))
    assert cgroups.tasks.stray_tasks(pod.container, HIGH) == StrayTasks(outside=(process, thread))


def test_pin_that_does_not_fit_gives_way(pod: Pod, cgroups: OpenCgroups) -> None:
    """A container moved away from its thread's pin takes the thread along."""
    _, thread = pod.start()

    cgroups.cpusets.write(pod.container, HIGH)

    assert os.sched_getaffinity(thread) == set(HIGH)
    assert cgroups.tasks.stray_tasks(pod.container, HIGH) == StrayTasks()


def test_cgroups_below_are_in_no_ones_way(pod: Pod, cgroups: OpenCgroups) -> None:
    """A cgroup that holds all CPUs of the container, and one below that, follow it everywhere."""
    below = [f"{pod.container}/a", f"{pod.container}/a/b"]
    for cgroup in below:
        pod.make(cgroup)
        cgroups.cpusets.write(cgroup, HERE)
    cgroups.cpusets.write(pod.container, HERE)

    for cpus in (LOW, HIGH, HERE, HIGH):
        cgroups.cpusets.write(pod.container, cpus)
        assert [cgroups.cpusets.read(cgroup) for cgroup in below] == [cpus, cpus]


@pytest.mark.skipif(not (ROOT / "cgroup.controllers").exists(), reason="cgroup v1 has no threaded cgroups")
def test_threads_in_a_cgroup_of_their_own_are_compared(pod: Pod, cgroups: OpenCgroups) -> None:
    """A threaded cgroup below the container lists no processes, and its threads are found."""
    process, thread = pod.start()
    below = pod.folder(pod.container) / "threads"
    below.mkdir()
    (below / "cgroup.type").write_text("threaded")
    (below / "cgroup.threads").write_text(str(thread))

    assert cgroups.tasks.stray_tasks(pod.container, HIGH) == StrayTasks(outside=(process, thread))


def test_foreign_write_is_told_after_the_cgroup_came_again(pod: Pod, cgroups: OpenCgroups) -> None:
    """A removed cgroup ends no watch, and one of the same name is watched anew."""
    cgroups.watch.follow([pod.container])
    pod.folder(pod.container).rmdir()
    cgroups.watch.follow([pod.container])
    pod.make(pod.container)
    cgroups.watch.follow([pod.container])

    async def interfere() -> str:
        written: asyncio.Queue[str] = asyncio.Queue()
        watch = asyncio.create_task(cgroups.watch.watch(written.put_nowait))
        await asyncio.sleep(0)
        cgroups.cpusets.write(pod.container, HERE)
        (pod.folder(pod.container) / "cpuset.cpus").write_text(str(LOW))
        try:
            return await asyncio.wait_for(written.get(), 60)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    assert asyncio.run(interfere()) == pod.container


def test_cgroup_that_came_again_is_read_anew(pod: Pod, cgroups: OpenCgroups) -> None:
    """The file of a removed cgroup stays open and tells nothing of the one that has its name now."""
    cgroups.cpusets.write(pod.container, LOW)
    assert cgroups.cpusets.read(pod.container) == LOW

    pod.folder(pod.container).rmdir()
    with pytest.raises(Gone):
        cgroups.cpusets.read(pod.container)
    pod.make(pod.container)

    assert cgroups.cpusets.read(pod.container) == HERE
    cgroups.cpusets.write(pod.container, HIGH)
    assert cgroups.cpusets.read(pod.container) == HIGH


@pytest.mark.skipif(
    not (ROOT / "cpuset").exists(), reason="cgroup v2 lets a cgroup have more than the one above"
)
def test_cpus_that_the_pod_lost_are_given_back(pod: Pod, cgroups: OpenCgroups) -> None:
    """On v1, where a CPU that was offline is in no cgroup any more, the container's write widens its pod."""
    for cgroup in (pod.container, pod.name):
        cgroups.cpusets.write(cgroup, LOW)

    cgroups.cpusets.write(pod.container, HERE)

    assert (cgroups.cpusets.read(pod.name), cgroups.cpusets.read(pod.container)) == (HERE, HERE)


@pytest.mark.parametrize("cpus", ["8000", "0,8000"])
def test_cpus_that_do_not_exist(pod: Pod, cgroups: OpenCgroups, cpus: str) -> None:
    """The kernel's no is told in words, and what was stays."""
    with pytest.raises(Refused, match=r"refuses .*: choose CPUs that"):
        cgroups.cpusets.write(pod.container, CPUSet.parse(cpus))
    assert cgroups.cpusets.read(pod.container) == HERE


def test_first_process_born_narrower_is_widened(pod: Pod, cgroups: OpenCgroups) -> None:
    """It runs on all of its cgroup then, and follows it; threads on CPUs of their own choice stay there."""
    process, thread = pod.start()
    os.sched_setaffinity(process, HIGH)

    assert cgroups.tasks.widen_tasks(pod.container, process) == 1
    assert os.sched_getaffinity(process) == set(HERE)
    assert os.sched_getaffinity(thread) == set(LOW)
    assert cgroups.tasks.widen_tasks(pod.container, process) == 0
    for cpus in (HIGH, LOW, HERE):
        cgroups.cpusets.write(pod.container, cpus)
        assert os.sched_getaffinity(process) == set(cpus)


def test_widened_process_follows_when_its_cgroup_grows(pod: Pod, cgroups: OpenCgroups) -> None:
    """The kernel does not remember the CPUs it had when it was widened as its own choice."""
    if len(HERE) == 2:
        pytest.skip("narrower than less than everything takes three CPUs")
    process, _ = pod.start()
    cgroups.cpusets.write(pod.container, HERE - LOW)
    os.sched_setaffinity(process, HIGH)

    assert cgroups.tasks.widen_tasks(pod.container, process)
    assert os.sched_getaffinity(process) == set(HERE - LOW)
    cgroups.cpusets.write(pod.container, HERE)
    assert os.sched_getaffinity(process) == set(HERE)


def test_process_of_another_cgroup_is_not_widened(pod: Pod, cgroups: OpenCgroups) -> None:
    """The number of a process that ended may be anybody's."""
    pod.start()
    os.sched_setaffinity(0, LOW)
    try:
        assert cgroups.tasks.widen_tasks(pod.container, os.getpid()) == 0
        assert os.sched_getaffinity(0) == set(LOW)
    finally:
        os.sched_setaffinity(0, HERE)


def test_ended_container_is_gone(pod: Pod, cgroups: OpenCgroups) -> None:
    """What was removed is told as gone by every call."""
    pod.folder(pod.container).rmdir()
    calls: list[Callable[[], object]] = [
        lambda: cgroups.cpusets.read(pod.container),
        lambda: cgroups.cpusets.write(pod.container, HERE),
        lambda: cgroups.tasks.stray_tasks(pod.container, HERE),
        lambda: cgroups.tasks.widen_tasks(pod.container, os.getpid()),
    ]
    for call in calls:
        with pytest.raises(Gone):
            call()
