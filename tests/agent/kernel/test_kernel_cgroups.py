"""Cgroups of the running kernel, v1 or v2, without a runtime."""

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
from tests.environments.node.cgroup_trees import OpenCgroups, opened

ROOT = Path("/sys/fs/cgroup")
HERE = CPUSet(os.sched_getaffinity(0))
LOW, HIGH = CPUSet([HERE.lowest()]), CPUSet([max(HERE)])
# Prints the id of its second thread, which runs on CPU argv[1]; ends with its input.
TWO_THREADS = """
import os, sys, threading
def second():
    os.sched_setaffinity(0, {int(sys.argv[1])})
    print(threading.get_native_id(), flush=True)
    threading.Event().wait()
threading.Thread(target=second, daemon=True).start()
sys.stdin.read()
"""
# Moves process argv[1] of cgroup argv[2] to CPU argv[3], as an agent in a cgroup namespace of its own.
PLACE = """
import sys
from agent.kernel.execs import place_exec
from pinning.machine.cpuset import CPUSet
print(place_exec(int(sys.argv[1]), sys.argv[2], CPUSet([int(sys.argv[3])])) is not None)
"""
pytestmark = [
    pytest.mark.runtime,
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are written by root"),
    pytest.mark.skipif(len(HERE) == 1, reason="moving a task takes two CPUs"),
]


class Pod:
    """A cgroup of this test with a child for the container."""

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.hierarchy = hierarchy
        self.name = f"/corepin-test-{os.getpid()}"
        self.container = f"{self.name}/one"
        self.processes: list[subprocess.Popen[str]] = []
        self.make(self.name)
        self.make(self.container)

    def folder(self, cgroup: str) -> Path:
        """Return the folder of a cgroup."""
        return self.hierarchy.folder(cgroup)

    def make(self, cgroup: str) -> None:
        """Create a cgroup as a runtime does: with the controller, and on v1 with CPUs and memory nodes."""
        folder = self.folder(cgroup)
        if self.hierarchy.version == V2:
            (folder.parent / "cgroup.subtree_control").write_text("+cpuset")
        folder.mkdir()
        if self.hierarchy.version == V1:
            for name in ("cpuset.cpus", "cpuset.mems"):
                (folder / name).write_text((folder.parent / name).read_text())

    def start(self) -> tuple[int, int]:
        """Start a process with two threads in the container; return their ids.

        The second is on the lowest CPU.
        """
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
    """Return a pod in this machine's cgroups."""
    try:
        hierarchy = find_hierarchy(ROOT)
    except AgentError as error:
        pytest.skip(str(error))
    pod = Pod(hierarchy)
    yield pod
    pod.remove()


@pytest.fixture
def cgroups() -> Iterator[OpenCgroups]:
    """Return the agent's interface to this machine's cgroups."""
    cgroups = opened()
    yield cgroups
    cgroups.watch.close()


@pytest.mark.skipif(
    kernel_forgets_pins(os.uname().release) and len(HERE) == 2, reason="with two CPUs a pin is the whole set"
)
def test_pinned_thread_keeps_its_cpu(pod: Pod, cgroups: OpenCgroups) -> None:
    """A pinned thread keeps its CPU while the container's CPUs change, and its process follows."""
    process, thread = pod.start()
    cgroups.cpusets.write(pod.container, HERE)

    for cpus in (HERE - HIGH, HERE, HERE - HIGH, HERE):
        cgroups.cpusets.write(pod.container, cpus)

        assert cgroups.cpusets.read(pod.container) == cpus
        assert os.sched_getaffinity(process) == set(cpus)
        assert os.sched_getaffinity(thread) == set(LOW)
    assert cgroups.tasks.stray_tasks(pod.container, HERE) == StrayTasks(narrowed=(thread,))
    assert cgroups.tasks.stray_tasks(pod.container, HIGH) == StrayTasks(outside=(process, thread))


def test_pin_outside_the_container_is_dropped(pod: Pod, cgroups: OpenCgroups) -> None:
    """A thread pinned to a CPU that the container loses gets the container's CPUs."""
    _, thread = pod.start()

    cgroups.cpusets.write(pod.container, HIGH)

    assert os.sched_getaffinity(thread) == set(HIGH)
    assert cgroups.tasks.stray_tasks(pod.container, HIGH) == StrayTasks()


def test_exec_is_placed_from_a_cgroup_namespace_of_the_agents_own(pod: Pod) -> None:
    """An exec is placed although the agent's own cgroup namespace shows other paths than the runtime."""
    process, _ = pod.start()
    agent = f"{pod.name}/agent"
    pod.make(agent)
    enter = f'echo $$ >"{pod.folder(agent)}/cgroup.procs" && exec unshare --cgroup "$@"'
    place = [sys.executable, "-c", PLACE, str(process), pod.container, str(max(HERE))]
    found = subprocess.run(["sh", "-c", enter, "sh", *place], capture_output=True, text=True, check=False)
    if "unshare failed" in found.stderr:
        pytest.skip(found.stderr)

    assert (found.stdout, found.stderr) == ("True\n", "")
    assert os.sched_getaffinity(process) == set(HIGH)


def test_child_cgroups_follow_every_change(pod: Pod, cgroups: OpenCgroups) -> None:
    """Child cgroups with all of the container's CPUs follow each change."""
    below = [f"{pod.container}/a", f"{pod.container}/a/b"]
    for cgroup in below:
        pod.make(cgroup)
        cgroups.cpusets.write(cgroup, HERE)
    cgroups.cpusets.write(pod.container, HERE)

    for cpus in (LOW, HIGH, HERE, HIGH):
        cgroups.cpusets.write(pod.container, cpus)
        assert [cgroups.cpusets.read(cgroup) for cgroup in below] == [cpus, cpus]


def test_child_cgroups_follow_the_write_of_a_runtime(pod: Pod, cgroups: OpenCgroups) -> None:
    """When a runtime widens the container's cgroup, children with all of its CPUs follow; narrower ones do not."""
    for name, cpus in (("all", HERE), ("some", LOW)):
        pod.make(f"{pod.container}/{name}")
        cgroups.cpusets.write(f"{pod.container}/{name}", cpus)
    narrow = HERE - HIGH if len(HERE) > 2 else LOW
    cgroups.cpusets.write(pod.container, narrow)
    (pod.folder(pod.container) / "cpuset.cpus").write_text(str(HERE))

    cgroups.cpusets.write(pod.container, HERE, narrow)

    assert cgroups.cpusets.read(f"{pod.container}/all") == HERE
    if narrow != LOW:
        assert cgroups.cpusets.read(f"{pod.container}/some") == LOW


@pytest.mark.skipif(not (ROOT / "cgroup.controllers").exists(), reason="cgroup v1 has no threaded cgroups")
def test_threads_of_a_threaded_cgroup_are_compared(pod: Pod, cgroups: OpenCgroups) -> None:
    """A threaded child cgroup lists no processes, and its threads are found."""
    process, thread = pod.start()
    below = pod.folder(pod.container) / "threads"
    below.mkdir()
    (below / "cgroup.type").write_text("threaded")
    (below / "cgroup.threads").write_text(str(thread))

    assert cgroups.tasks.stray_tasks(pod.container, HIGH) == StrayTasks(outside=(process, thread))


def test_foreign_write_to_a_recreated_cgroup_is_reported(pod: Pod, cgroups: OpenCgroups) -> None:
    """Removing a cgroup does not end the watch, and a new one of the same name is watched."""
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


def test_recreated_cgroup_is_read_again(pod: Pod, cgroups: OpenCgroups) -> None:
    """The open file of a removed cgroup is not used for a new one of the same name."""
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
def test_cpus_that_the_pod_lost_are_restored(pod: Pod, cgroups: OpenCgroups) -> None:
    """On v1 a CPU that was offline is missing in the pod's cgroup, and the container's write adds it."""
    for cgroup in (pod.container, pod.name):
        cgroups.cpusets.write(cgroup, LOW)

    cgroups.cpusets.write(pod.container, HERE)

    assert (cgroups.cpusets.read(pod.name), cgroups.cpusets.read(pod.container)) == (HERE, HERE)


@pytest.mark.skipif(
    not (ROOT / "cpuset").exists(), reason="on cgroup v2 a new cgroup has the CPUs of the one above"
)
def test_a_pod_that_its_maker_has_not_filled_gets_all_cpus(pod: Pod, cgroups: OpenCgroups) -> None:
    """On v1 writing a container's cgroup fills an empty pod cgroup with all CPUs, because CRI-O creates both empty."""
    new, container = f"{pod.name}/new", f"{pod.name}/new/one"
    for cgroup in (new, container):
        pod.folder(cgroup).mkdir()
    try:
        cgroups.cpusets.write(container, LOW)
        assert (cgroups.cpusets.read(new), cgroups.cpusets.read(container)) == (HERE, LOW)
    finally:
        for cgroup in (container, new):
            pod.folder(cgroup).rmdir()


@pytest.mark.parametrize("cpus", ["8000", "0,8000"])
def test_nonexistent_cpus_are_refused(pod: Pod, cgroups: OpenCgroups, cpus: str) -> None:
    """The kernel's error has a message, and the cpuset is unchanged."""
    with pytest.raises(Refused, match=r"refuses .*: choose CPUs that"):
        cgroups.cpusets.write(pod.container, CPUSet.parse(cpus))
    assert cgroups.cpusets.read(pod.container) == HERE


def test_first_process_with_fewer_cpus_is_widened(pod: Pod, cgroups: OpenCgroups) -> None:
    """The process then has its cgroup's CPUs and follows it; threads with their own affinity keep it."""
    process, thread = pod.start()
    os.sched_setaffinity(process, HIGH)

    assert cgroups.tasks.widen_tasks(pod.container, process) == 1
    assert os.sched_getaffinity(process) == set(HERE)
    assert os.sched_getaffinity(thread) == set(LOW)
    assert cgroups.tasks.widen_tasks(pod.container, process) == 0
    for cpus in (HIGH, LOW, HERE):
        cgroups.cpusets.write(pod.container, cpus)
        assert os.sched_getaffinity(process) == set(cpus)


def test_widened_process_follows_its_growing_cgroup(pod: Pod, cgroups: OpenCgroups) -> None:
    """A widened process follows its growing cgroup, because the kernel does not keep the widening as its choice."""
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
    """A process of another cgroup is not widened, because the pid of an ended process may be reused."""
    pod.start()
    os.sched_setaffinity(0, LOW)
    try:
        assert cgroups.tasks.widen_tasks(pod.container, os.getpid()) == 0
        assert os.sched_getaffinity(0) == set(LOW)
    finally:
        os.sched_setaffinity(0, HERE)


def test_removed_container_raises_gone(pod: Pod, cgroups: OpenCgroups) -> None:
    """Each call for a removed cgroup raises Gone."""
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
