"""Cpusets and tasks of both cgroup versions in plain folders; `test_kernel_cgroups` has the kernel's."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.errors import Gone, Refused, Unfinished
from agent.interfaces import StrayTasks
from agent.kernel.cgroupfs import MOST_CGROUPS, Hierarchy, find_hierarchy, read_cpus, translated
from agent.kernel.thread_pins import kernel_forgets_pins, restore_pins, save_pins
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.quota import Bandwidth
from tests.environments.node.cgroup_trees import (
    NEW_KERNEL,
    ONE,
    POD,
    OpenCgroups,
    make_cgroup,
    make_root,
    opened,
    small_stack,
    written,
)

HERE = frozenset(os.sched_getaffinity(0))
two_cpus = pytest.mark.skipif(len(HERE) == 1, reason="narrowing a task takes two CPUs")


def test_hierarchy_is_found(tmp_path: Path, cpuset: Path, version: int) -> None:
    """Version 1 is recognized by its cpuset mount, version 2 by its list of controllers."""
    assert find_hierarchy(tmp_path).version == version
    assert find_hierarchy(tmp_path).cpuset == cpuset


def test_hybrid_host_has_its_controllers_in_version_1(tmp_path: Path) -> None:
    """With cpuset on v1 an empty v2 beside it is ignored; cpu and cpuacct may be mounted together."""
    make_root(tmp_path, 1)
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").write_text("")
    (tmp_path / "cpu,cpuacct").mkdir()

    assert find_hierarchy(tmp_path) == Hierarchy(1, tmp_path / "cpuset", tmp_path / "cpu,cpuacct")


def test_unified_beside_version_1_may_have_cpuset(tmp_path: Path) -> None:
    """If v1 has no cpuset controller, the v2 mounted at `unified` is used."""
    make_root(tmp_path / "unified", 2)

    assert find_hierarchy(tmp_path) == Hierarchy(2, tmp_path / "unified", tmp_path / "unified")


def test_no_cpuset_controller_is_refused_with_the_remedy(tmp_path: Path) -> None:
    """An empty /sys/fs/cgroup is reported as not mounted."""
    with pytest.raises(Refused, match=r"no cpuset controller: mount the host's /sys/fs/cgroup there"):
        find_hierarchy(tmp_path)


def test_memory_nodes_are_read(cgroups: OpenCgroups, cpuset: Path, version: int) -> None:
    """The effective memory nodes are read, and a missing cgroup raises Gone."""
    name = {1: "cpuset.effective_mems", 2: "cpuset.mems.effective"}[version]
    (cpuset / ONE[1:] / name).write_text("0,2\n")

    assert cgroups.cpusets.mems(ONE) == CPUSet.parse("0,2")
    with pytest.raises(Gone):
        cgroups.cpusets.mems(f"{POD}/other")


def test_write_changes_one_cgroup(cgroups: OpenCgroups, cpuset: Path) -> None:
    """Only the container's cgroup is written, not its parents."""
    assert cgroups.cpusets.writable

    cgroups.cpusets.write(ONE, CPUSet.parse("2,4-5"))

    assert written(cpuset / ONE[1:]) == CPUSet.parse("2,4-5")
    assert written(cpuset / POD[1:]) == CPUSet.parse("0-7")


def test_read_returns_the_effective_cpus(cgroups: OpenCgroups, cpuset: Path, version: int) -> None:
    """The effective CPUs are returned, which the kernel lets the tasks use."""
    make_cgroup(cpuset / ONE[1:], version, "1-2")
    (cpuset / ONE[1:] / "cpuset.cpus").write_text("")

    assert cgroups.cpusets.read(ONE) == CPUSet.parse("1-2")


def test_read_without_controller_returns_the_parents_cpus(tmp_path: Path) -> None:
    """On v2 a cgroup without cpuset files has its parent's CPUs, and cannot be written."""
    make_cgroup(make_root(tmp_path, 2) / "pods", 2, "4-5")
    (tmp_path / "pods/one").mkdir()
    (tmp_path / "pods/one/cgroup.controllers").write_text("memory pids\n")
    cgroups = opened(tmp_path, NEW_KERNEL)

    assert cgroups.cpusets.read("/pods/one") == CPUSet.parse("4-5")
    with pytest.raises(
        Refused, match=r"the cpuset controller is off for this cgroup: the kubelet or the runtime"
    ):
        cgroups.cpusets.write("/pods/one", CPUSet.parse("4"))


def test_cgroup_without_files_is_gone(cgroups: OpenCgroups, cpuset: Path) -> None:
    """The kernel creates the folder before its files, and removes it after them."""
    (cpuset / f"{POD}/two"[1:]).mkdir()

    with pytest.raises(Gone):
        cgroups.cpusets.write(f"{POD}/two", CPUSet.parse("1"))
    if cgroups.cpusets.version == 1:
        with pytest.raises(Gone):
            cgroups.cpusets.read(f"{POD}/two")


def test_missing_cgroup_raises_gone(cgroups: OpenCgroups) -> None:
    """Reading, writing and comparing a missing cgroup raise Gone."""
    with pytest.raises(Gone):
        cgroups.cpusets.read(f"{POD}/two")
    with pytest.raises(Gone):
        cgroups.cpusets.write(f"{POD}/two", CPUSet.parse("1"))
    with pytest.raises(Gone):
        cgroups.tasks.stray_tasks(f"{POD}/two", CPUSet.parse("1"))


def test_cgroup_removed_during_a_read_is_gone(
    cgroups: OpenCgroups, cpuset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cgroup that is removed during a read raises Gone, and its parent's CPUs are not returned."""
    folder = cpuset / ONE[1:]

    def removed(path: str) -> CPUSet:
        shutil.rmtree(folder, ignore_errors=True)
        return read_cpus(path)

    next(folder.glob("cpuset*effective*")).unlink()
    monkeypatch.setattr("agent.kernel.cpusets.read_cpus", removed)
    with pytest.raises(Gone):
        cgroups.cpusets.read(ONE)


def test_empty_set_is_never_written(cgroups: OpenCgroups, cpuset: Path) -> None:
    """An empty set raises and changes nothing."""
    with pytest.raises(ValueError, match="an empty set is not a cpuset"):
        cgroups.cpusets.write(ONE, EMPTY)
    assert written(cpuset / ONE[1:]) == CPUSet.parse("0-7")


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        pytest.param(errno.EACCES, Refused, "run the agent as root", id="no-right"),
        pytest.param(errno.EROFS, Refused, "mounted read-only", id="read-only"),
        pytest.param(errno.EPERM, Refused, "not permitted", id="no-capability"),
        pytest.param(errno.ENOSPC, Refused, "without a CPU or a memory node", id="would-be-empty"),
        pytest.param(errno.EINVAL, Refused, "a CPU is offline", id="offline"),
        pytest.param(errno.EBUSY, Refused, "a cgroup below it", id="child-holds-it"),
        pytest.param(errno.ERANGE, Refused, "no CPU of that number", id="beyond-the-kernel"),
        pytest.param(errno.EIO, Refused, "Input/output error", id="anything-else"),
        pytest.param(errno.ENOENT, Gone, "does not exist any more", id="gone"),
        pytest.param(errno.ENODEV, Gone, "does not exist any more", id="gone-while-open"),
    ],
)
def test_kernel_errors_have_a_remedy(tmp_path: Path, error: int, kind: type[Exception], words: str) -> None:
    """Each kernel error is translated into a message with the remedy."""
    translation = translated(OSError(error, os.strerror(error)), tmp_path / "one/cpuset.cpus", "0-1")

    assert type(translation) is kind
    assert words in str(translation)


def test_missing_cpus_are_added_to_parents_on_version_1(
    cgroups: OpenCgroups, cpuset: Path, version: int
) -> None:
    """On v1 missing CPUs are added to the parents, from the top; on v2 they are not."""
    for cgroup in ("/kubepods", "/kubepods/burstable", POD, ONE):
        make_cgroup(cpuset / cgroup[1:], version, "0-3")
    (cpuset / ONE[1:] / "cpuset.cpus").unlink()
    (cpuset / ONE[1:] / "cpuset.cpus").mkdir()  # refuses every write

    with pytest.raises(Refused):
        cgroups.cpusets.write(ONE, CPUSet.parse("3-4"))

    above = [written(cpuset / cgroup) for cgroup in ("kubepods", "kubepods/burstable", POD[1:])]
    assert above == [CPUSet.parse("0-4" if version == 1 else "0-3")] * 3


@pytest.mark.parametrize(
    ("had", "expected"),
    [
        pytest.param("0-7", "4-6", id="all-of-it"),
        pytest.param("5,7", "5", id="some-of-it"),
        pytest.param("0-1", "4-6", id="nothing-left-of-its-choice"),
        pytest.param("", "", id="not-set"),
    ],
)
def test_child_cgroups_follow_the_container(
    cgroups: OpenCgroups, cpuset: Path, version: int, had: str, expected: str
) -> None:
    """A child with all of the container's CPUs gets all new ones; another keeps the rest of its own."""
    child = make_cgroup(cpuset / ONE[1:] / "child", version, had)
    grandchild = make_cgroup(child / "grandchild", version, had)

    cgroups.cpusets.write(ONE, CPUSet.parse("4-6"))

    assert (written(child), written(grandchild)) == (CPUSet.parse(expected), CPUSet.parse(expected))
    assert written(cpuset / ONE[1:]) == CPUSet.parse("4-6")


def test_cgroups_nested_deeper_than_the_stack_are_refused(
    cgroups: OpenCgroups, cpuset: Path, version: int
) -> None:
    """A container whose cgroups are nested too deep is refused, so that the runtime moves it instead."""
    folder = cpuset / ONE[1:]
    for _ in range(80):
        folder = make_cgroup(folder / "d", version)
    with small_stack(100), pytest.raises(Refused, match="nested too deeply"):
        cgroups.cpusets.write(ONE, CPUSet.parse("1,5"))


@pytest.mark.parametrize("release", [NEW_KERNEL, "6.1.0"])
def test_container_of_many_cgroups_is_moved_all_the_same(
    tmp_path: Path, cpuset: Path, version: int, release: str
) -> None:
    """A container of many cgroups leaves its CPUs: on v2 its own cgroup is enough, on v1 each child is written."""
    for number in range(MOST_CGROUPS):
        make_cgroup(cpuset / ONE[1:] / str(number), version)
    found = opened(tmp_path, release)
    for _ in range(MOST_CGROUPS):
        try:
            found.cpusets.write(ONE, CPUSet.parse("4-6"))
        except Unfinished:
            continue
        break
    found.watch.close()
    assert written(cpuset / ONE[1:]) == CPUSet.parse("4-6")
    below = {str(written(cpuset / ONE[1:] / str(number))) for number in range(MOST_CGROUPS)}
    assert below == {"4-6" if version == 1 else "0-7"}


def test_every_task_of_the_subtree_is_compared(
    cgroups: OpenCgroups, cpuset: Path, version: int, process: Callable[..., int]
) -> None:
    """Tasks of the container and of child cgroups are compared; ended tasks and zombies are ignored."""
    below, own = process(), process()
    zombie = process(command="false")
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    here = str(CPUSet(HERE))
    make_cgroup(cpuset / ONE[1:], version, here, (own, zombie, 4_000_000))
    make_cgroup(cpuset / ONE[1:] / "a/b", version, here, (below,))
    make_cgroup(cpuset / ONE[1:] / "a", version, here)

    assert cgroups.tasks.stray_tasks(ONE, CPUSet(HERE)) == StrayTasks()
    elsewhere = cgroups.tasks.stray_tasks(ONE, CPUSet([max(HERE) + 1]))
    assert (set(elsewhere.outside), elsewhere.narrowed) == ({own, below}, ())


@two_cpus
def test_task_on_fewer_cpus_is_narrowed(
    cgroups: OpenCgroups, cpuset: Path, version: int, process: Callable[..., int]
) -> None:
    """A task on fewer CPUs is reported as narrowed, unless the other CPUs are offline."""
    narrow = process(frozenset({min(HERE)}))
    make_cgroup(cpuset / ONE[1:], version, str(CPUSet(HERE)), (process(), narrow))
    assert cgroups.tasks.stray_tasks(ONE, CPUSet(HERE)) == StrayTasks(narrowed=(narrow,))

    make_cgroup(cpuset / ONE[1:], version, str(min(HERE)), (narrow,))
    assert cgroups.tasks.stray_tasks(ONE, CPUSet(HERE)) == StrayTasks()


@pytest.mark.parametrize(
    ("release", "forgets"),
    [
        ("4.18.0-553.el8", True),
        ("6.1.0-56-amd64", True),
        ("6.2.0", False),
        ("6.18.44", False),
        ("7.0-rc1", False),
    ],
)
def test_kernels_before_6_2_forget_pins(release: str, forgets: bool) -> None:
    """Kernels before 6.2 are recognized, because they drop affinities when the cpuset changes."""
    assert kernel_forgets_pins(release) is forgets


def test_release_without_version_is_refused() -> None:
    """An unreadable kernel release raises an error."""
    with pytest.raises(ValueError, match="does not start with a version"):
        kernel_forgets_pins("linux")


@two_cpus
def test_pins_are_saved_and_restored(process: Callable[..., int]) -> None:
    """Affinities are restored where the CPUs still allow it, and other tasks are not changed."""
    low, high = min(HERE), max(HERE)
    pinned, outside, free = process(frozenset({low})), process(frozenset({high})), process()
    pins = save_pins([pinned, outside, free, 4_000_000], CPUSet(HERE))
    assert pins == {pinned: CPUSet([low]), outside: CPUSet([high])}
    for task in (pinned, outside):
        os.sched_setaffinity(task, HERE)  # kernels before 6.2 reset the affinity so

    assert restore_pins(pins, [pinned, outside, free], CPUSet([low])) == (pinned,)
    assert [os.sched_getaffinity(task) for task in (pinned, outside, free)] == [{low}, HERE, HERE]


@two_cpus
def test_write_keeps_pins_on_old_kernels(
    tmp_path: Path, cpuset: Path, version: int, process: Callable[..., int]
) -> None:
    """On a kernel before 6.2 a write restores the affinities of the container's threads."""
    pinned = process(frozenset({min(HERE)}))
    make_cgroup(cpuset / ONE[1:], version, str(CPUSet(HERE)), (pinned, process()))
    cgroups = opened(tmp_path, "6.1.0-56-amd64")

    cgroups.cpusets.write(ONE, CPUSet(HERE))

    assert os.sched_getaffinity(pinned) == {min(HERE)}
    assert written(cpuset / ONE[1:]) == CPUSet(HERE)
    cgroups.watch.close()


def test_quota_is_read_unset_and_set(tmp_path: Path, cgroups: OpenCgroups, version: int) -> None:
    """Quota and throttled periods are read from the cpu controller, and the quota can be unset and set."""
    folder = tmp_path / ("cpu" if version == 1 else ".") / ONE[1:]
    folder.mkdir(parents=True, exist_ok=True)
    quota = folder / ("cpu.cfs_quota_us" if version == 1 else "cpu.max")
    quota.write_text("200000\n" if version == 1 else "200000 100000\n")
    (folder / "cpu.stat").write_text("nr_periods 40\nnr_throttled 7\nthrottled_time 12\n")
    period = folder / "cpu.cfs_period_us"
    if version == 1:
        period.write_text("100000\n")
    assert cgroups.quotas.quota(ONE) == Bandwidth(200000, 100000)
    assert cgroups.quotas.times_throttled(ONE) == 7

    cgroups.quotas.unset_quota(ONE)

    assert quota.read_text() == ("-1" if version == 1 else "max")
    assert cgroups.quotas.quota(ONE) is None

    cgroups.quotas.set_quota(ONE, Bandwidth(150000, 50000))

    assert cgroups.quotas.quota(ONE) == Bandwidth(150000, 50000)
