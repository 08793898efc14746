"""The start state of a container, from the names and ages of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import agent.kernel.cgroupfs
import agent.kernel.tasks
from agent.errors import Gone, TooMany
from agent.kernel.cgroupfs import MOST_CGROUPS, V2, Hierarchy, read_text
from agent.kernel.cpusets import KernelCpusets
from agent.kernel.tasks import KernelTasks, start_state_of
from tests.environments.node.cgroup_trees import small_stack

# Takes a name as runc's processes do, reports it, and ends with its input.
NAMED = """
import sys
open("/proc/self/comm", "w").write(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def process(name: str) -> Iterator[int]:
    """Run a process with this name until the block ends."""
    command = [sys.executable, "-c", NAMED, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout
        running.stdout.readline()
        yield running.pid
        running.communicate()


@pytest.mark.parametrize("name", ["runc", "exe", "6", "runc:[0:PARENT]", "runc:[1:CHILD]", "runc:[2:INIT]"])
def test_container_with_runc_processes_only_has_not_begun(name: str) -> None:
    """A container has begun when it has a process that is not runc's."""
    with process(name) as own:
        assert not start_state_of([own]).has_begun
        assert start_state_of([own]).seconds is not None
        with process("sleep") as command:
            assert start_state_of([own, command]).has_begun


def test_age_is_that_of_the_oldest_process() -> None:
    """The age is the time since the oldest process started, in hundredths of a second."""
    with process("sleep") as first:
        since = time.monotonic()
        with process("sleep") as second:
            age = start_state_of([second, first]).seconds
            passed = time.monotonic() - since
    assert age is not None
    assert age >= int(passed * 100) / 100 - 0.01


def cgroup_of(folder: Path, *processes: int) -> None:
    """Create a cgroup folder with some processes."""
    folder.mkdir()
    (folder / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in processes))


def test_processes_in_child_cgroups_count(tmp_path: Path) -> None:
    """Processes in crun's child cgroup count, also beside a thousand other child cgroups."""
    hierarchy = Hierarchy(V2, tmp_path, tmp_path)
    tasks = KernelTasks(hierarchy, KernelCpusets(hierarchy))
    cgroup_of(tmp_path / "scope")
    assert tasks.start_state("/scope") == (None, False)
    with process("sleep") as first:
        cgroup_of(tmp_path / "scope/container", first)
        for number in range(1000):
            cgroup_of(tmp_path / f"scope/container/{number}")
        (tmp_path / "scope/container/7/cgroup.procs").unlink()
        begun = tasks.start_state("/scope")
    assert begun.has_begun
    assert begun.seconds is not None
    with pytest.raises(Gone):
        tasks.start_state("/gone")


def test_cgroups_may_be_nested_deeper_than_the_stack(tmp_path: Path) -> None:
    """Tasks of a container are found in cgroups of any depth."""
    hierarchy, deepest = Hierarchy(V2, tmp_path, tmp_path), tmp_path / "one"
    tasks = KernelTasks(hierarchy, KernelCpusets(hierarchy))
    cgroup_of(deepest)
    with process("sleep") as first, small_stack(100):
        for _ in range(150):
            (deepest / "cgroup.threads").write_text("")
            cgroup_of(deepest := deepest / "d", first)
        (deepest / "cgroup.threads").write_text("7\n")
        assert tasks.below("/one") == [7]
        assert tasks.start_state("/one").has_begun


def crowd(folder: Path, first: int, children: int, nested: int = 0) -> KernelTasks:
    """Make a container's cgroup with this many children, each with as many of its own."""
    cgroup_of(folder, first)
    folders = [folder, *(folder / str(at) for at in range(children))]
    folders += [it / str(at) for it in folders[1:] for at in range(nested)]
    for found in folders:
        found.mkdir(exist_ok=True)
        (found / "cgroup.threads").write_text(f"{first}\n")
        (found / "cgroup.procs").write_text(f"{first}\n")
    hierarchy = Hierarchy(V2, folder.parent, folder.parent)
    return KernelTasks(hierarchy, KernelCpusets(hierarchy))


@pytest.mark.parametrize("nested", [0, MOST_CGROUPS // 2 + 1], ids=["flat", "nested"])
def test_look_at_a_container_of_many_cgroups_is_bounded(
    tmp_path: Path, nested: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the tasks of a container with too many child cgroups is refused before the tasks are read."""
    tasks = crowd(tmp_path / "one", os.getpid(), 2 if nested else 2 * MOST_CGROUPS, nested)
    reads: list[object] = []

    def read(path: Path | str) -> str:
        reads.append(path)
        return read_text(path)

    for module in (agent.kernel.tasks, agent.kernel.cgroupfs):
        monkeypatch.setattr(module, "read_text", read)
    with pytest.raises(TooMany, match="has made 1024 cgroups or more; let it remove those"):
        tasks.below("/one")
    assert len(reads) == 1
    assert tasks.start_state("/one") == (None, True)
    assert len(reads) < 2 * MOST_CGROUPS


def test_container_whose_processes_are_in_cgroups_that_are_not_read_has_begun(tmp_path: Path) -> None:
    """A container with too many child cgroups counts as started, with unknown age.

    If it counted as created and without unpinned time, the proof would claim what was not read.
    """
    folder = tmp_path / "one"
    tasks = crowd(folder, os.getpid(), MOST_CGROUPS)
    for procs in folder.rglob("cgroup.procs"):
        procs.write_text("")
    assert tasks.start_state("/one") == (None, True)
    (folder / "0/cgroup.procs").unlink()
    (folder / "0/cgroup.threads").unlink()
    (folder / "0").rmdir()
    assert tasks.start_state("/one") == (None, False)


def test_as_many_cgroups_as_are_looked_at_are_no_crowd(tmp_path: Path) -> None:
    """The limit of cgroups includes the container's own cgroup."""
    tasks = crowd(tmp_path / "one", os.getpid(), MOST_CGROUPS - 1)
    assert len(tasks.below("/one")) == MOST_CGROUPS
    (tmp_path / "one/more").mkdir()
    with pytest.raises(TooMany):
        tasks.below("/one")


def test_container_without_processes_has_not_begun() -> None:
    """An empty cgroup, or one with exited processes, has not begun and has no age."""
    with process("sleep") as gone:
        pass
    assert start_state_of([]) == start_state_of([gone]) == (None, False)
    assert start_state_of([os.getpid()]).has_begun
