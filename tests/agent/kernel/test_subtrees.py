"""Cgroups below a container's: moved a bounded number at once, with open files, and named as by systemd and the kubelet."""

from __future__ import annotations

import os
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import agent.kernel.subtrees
from agent.errors import Gone, Refused, Unfinished
from agent.kernel import open_files
from agent.kernel.cgroup_names import is_within, pod_of, pod_roots, pod_uid
from agent.kernel.cgroupfs import DEFAULT_ROOT, find_hierarchy, write_text
from agent.kernel.open_files import OpenFiles
from agent.kernel.subtrees import TURN_SECONDS, Subtrees
from pinning.machine.cpuset import CPUSet
from tests.environments.node.cgroup_trees import ONE, make_cgroup, make_root, opened, written
from tests.tables import table

MOST = 5


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cgroup of a container on CPUs 0-5; a move writes five cgroups below it at once."""
    monkeypatch.setattr(agent.kernel.subtrees, "MOST_CGROUPS", MOST)
    folder = make_root(tmp_path, 1) / ONE[1:]
    for above in (folder.parent.parent, folder.parent):
        make_cgroup(above, 1)
    return make_cgroup(folder, 1, "0-5")


def sets(folder: Path) -> Counter[str]:
    """Count the cgroups below one by their CPUs."""
    return Counter(str(written(found.parent)) for found in folder.glob("*/**/cpuset.cpus"))


def moved(subtrees: Subtrees, folder: Path, cpus: str, before: str = "") -> int:
    """Move a cgroup, and return the number of calls."""
    for calls in range(1, 100):
        try:
            subtrees.move(folder, CPUSet.parse(cpus), CPUSet.parse(before))
        except Unfinished:
            continue
        return calls
    raise AssertionError(f"{folder} was not moved")


@pytest.mark.parametrize("cpus", ["4-7", "6-7", "0-7", "1"], ids=["partly", "elsewhere", "larger", "smaller"])
@pytest.mark.parametrize("nested", [0, 3])
def test_a_move_continues_where_it_reached_its_bound(one: Path, nested: int, cpus: str) -> None:
    """A move above the limit continues at the next call; until it ends the container keeps its old CPUs too."""
    children = 12 if not nested else 4
    for number in range(children):
        child = make_cgroup(one / f"{number:02}", 1, "0-5")
        for below in range(nested):
            make_cgroup(child / str(below), 1, "0-5")
    subtrees = Subtrees()
    with pytest.raises(Unfinished, match="has more cgroups below it than are moved at once"):
        subtrees.move(one, CPUSet.parse(cpus))
    assert written(one) == CPUSet.parse("0-5") | CPUSet.parse(cpus)
    assert sets(one)["0-5"] >= children * (1 + nested) - MOST - 1
    assert moved(subtrees, one, cpus) <= children * (1 + nested)
    assert (str(written(one)), set(sets(one))) == (cpus, {cpus})


def test_a_parent_has_the_cpus_of_its_children_at_every_moment(
    one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a move each parent has the CPUs of its children, because the kernel refuses other writes on v1."""
    for number in range(12):
        make_cgroup(make_cgroup(one / f"{number:02}", 1, "0-5") / "below", 1, "0-5")

    def checked(path: str, text: str) -> None:
        write_text(path, text)
        for found in one.glob("**/cpuset.cpus"):
            if found.parent != one:
                assert written(found.parent) <= written(found.parent.parent)

    monkeypatch.setattr(agent.kernel.subtrees, "write_text", checked)
    assert moved(Subtrees(), one, "4-7") > 2
    assert set(sets(one)) == {"4-7"}


def test_other_cpus_begin_the_move_again(one: Path) -> None:
    """If the target CPUs change during a move, children already moved follow; one with its own CPUs keeps them."""
    for number in range(12):
        make_cgroup(one / f"{number:02}", 1, "0-5")
    make_cgroup(one / "99", 1, "4-5")
    subtrees = Subtrees()
    with pytest.raises(Unfinished):
        subtrees.move(one, CPUSet.parse("4-7"))
    assert moved(subtrees, one, "2-5") > 1
    assert sets(one) == {"2-5": 12, "4-5": 1}
    with pytest.raises(Unfinished):
        subtrees.move(one, CPUSet.parse("4-7"))
    subtrees.keep(())
    assert moved(subtrees, one, "4-7") > 1
    assert str(written(one)) == "4-7"


def test_children_that_follow_a_runtime_continue_too(one: Path) -> None:
    """After a runtime's write to the container's cgroup, its children follow in several calls, none of them twice."""
    for number in range(12):
        make_cgroup(one / f"{number:02}", 1, "0-3")
    make_cgroup(one / "99", 1, "1")
    assert moved(Subtrees(), one, "0-5", "0-3") == 3
    assert sets(one) == {"0-5": 12, "1": 1}


def test_an_unfinished_move_is_no_foreign_write(tmp_path: Path, one: Path) -> None:
    """The old CPUs that a container keeps during an unfinished move do not count as a foreign write."""
    for number in range(12):
        make_cgroup(one / f"{number:02}", 1, "0-5")
    found = opened(tmp_path, "6.2.0")
    calls: list[Any] = []
    for _ in range(3):
        try:
            found.cpusets.write(ONE, CPUSet.parse("6-7"))
        except Unfinished as error:
            calls.append(error)
            assert found.cpusets.last_written[ONE] == written(one) == CPUSet.parse("0-7")
    assert len(calls) == 2
    assert found.cpusets.last_written[ONE] == written(one) == CPUSet.parse("6-7")
    found.watch.close()


def test_a_move_ends_its_turn_after_some_cpu_time(one: Path) -> None:
    """A call ends after a limit of CPU time and moves at least one cgroup; later calls finish the move."""
    for number in range(3):
        make_cgroup(make_cgroup(one / f"{number:02}", 1, "0-5") / "below", 1, "0-5")
    assert moved(Subtrees(count(step=TURN_SECONDS + 1).__next__), one, "4-7") == 3
    assert (str(written(one)), set(sets(one))) == ("4-7", {"4-7"})


def open_count() -> int:
    """Return the number of open files of this process."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with a CPU list."""
    path = tmp_path / "cpuset.cpus"
    path.write_text("0-7\n")
    return path


def test_shorter_list_replaces_a_longer_one(file: Path) -> None:
    """Each write replaces the whole list, the first and later ones."""
    files = OpenFiles()
    for text in ("0,2,4,6", "1", "0-3", "7"):
        files.write(str(file), text)
        assert file.read_text() == text
    files.keep(())


def test_file_stays_open_while_it_is_kept(file: Path) -> None:
    """A second write opens no file, and files that are not kept are closed."""
    files, before = OpenFiles(), open_count()
    files.write(str(file), "1")
    assert open_count() == before + 1
    files.write(str(file), "2")
    files.keep([str(file)])
    assert open_count() == before + 1
    files.keep(())
    assert open_count() == before


def test_number_of_open_files_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads and writes share a limit of open files; a file beyond it is opened and closed each time."""
    monkeypatch.setattr(open_files, "MOST", 4)
    files, before = OpenFiles(), open_count()
    paths = [tmp_path / str(number) for number in range(10)]
    for path in paths:
        path.write_text("0\n")
    for _ in range(2):
        for path in paths:
            files.write(str(path), "1")
            assert str(files.read_cpus(str(path))) == "1"
    assert open_count() <= before + 4
    files.keep(())
    assert open_count() == before


def test_files_for_reading_replace_files_for_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit files for writing are closed in favour of files that every pass reads."""
    monkeypatch.setattr(open_files, "MOST", 4)
    files, before = OpenFiles(), open_count()
    paths = [tmp_path / str(number) for number in range(4)]
    for path in paths:
        path.write_text("0\n")
        files.write(str(path), "1")
    for path in paths:
        files.read_cpus(str(path))
    assert open_count() == before + 4
    for path in paths:
        path.unlink()
        assert str(files.read_cpus(str(path))) == "1"
    files.keep(())
    assert open_count() == before


def test_missing_file_is_gone(tmp_path: Path) -> None:
    """Writing a missing file raises Gone and does not create it."""
    with pytest.raises(Gone):
        OpenFiles().write(str(tmp_path / "none" / "cpuset.cpus"), "1")


@pytest.mark.skipif(os.geteuid() != 0, reason="cgroups are root's")
def test_kernel_accepts_and_refuses_writes_of_an_open_file() -> None:
    """Later writes through the same file succeed, invalid ones are refused, and a removed cgroup is gone."""
    hierarchy = find_hierarchy(DEFAULT_ROOT)
    folder = hierarchy.cpuset / f"corepin-open-files-{os.getpid()}"
    folder.mkdir()
    files, before = OpenFiles(), open_count()
    path = str(folder / "cpuset.cpus")
    try:
        for text in ("0", "0-1"[: 1 + 2 * (len(os.sched_getaffinity(0)) > 1)], "0"):
            files.write(path, text)
            assert Path(path).read_text().strip() == text
        with pytest.raises(Refused):
            files.write(path, "100000")
        files.write(path, "0")
        assert Path(path).read_text().strip() == "0"
    finally:
        folder.rmdir()
    with pytest.raises(Gone):
        files.write(path, "0")
    assert open_count() == before


@table(
    "cgroup_root, systemd, cgroupfs",
    {
        "default": ("/", "/kubepods.slice", "/kubepods"),
        "empty": ("", "/kubepods.slice", "/kubepods"),
        "one": ("/k8s", "/k8s.slice/k8s-kubepods.slice", "/k8s/kubepods"),
        "slashes": ("k8s/", "/k8s.slice/k8s-kubepods.slice", "/k8s/kubepods"),
        "nested, with a dash": ("/a-b/c", "/a_b.slice/a_b-c.slice/a_b-c-kubepods.slice", "/a-b/c/kubepods"),
    },
)
def test_pods_are_below_the_kubelets_cgroup_root(cgroup_root: str, systemd: str, cgroupfs: str) -> None:
    """Both drivers put pods below `cgroupRoot`; systemd's joins the names."""
    assert pod_roots(cgroup_root) == (systemd, cgroupfs)


UID = "0e5b0b3c-1d2a-4c51-9b7f-6f8d1c2b3a40"


@table(
    "folder, uid",
    {
        "cgroupfs": (f"pod{UID}", UID),
        "systemd": (f"kubepods-burstable-pod{UID.replace('-', '_')}.slice", UID),
        "systemd, guaranteed": (f"kubepods-pod{UID.replace('-', '_')}.slice", UID),
        "static pod": ("kubepods-pod3f1c9a.slice", "3f1c9a"),
        "cgroupRoot like a pod's": ("pods-kubepods-burstable-pod1234_5678.slice", "1234-5678"),
        "root of the pods below such a cgroupRoot": ("pods-kubepods.slice", None),
        "QoS class": ("kubepods-burstable.slice", None),
        "root of the pods": ("kubepods", None),
        "QoS class of cgroupfs": ("burstable", None),
    },
)
def test_pod_uid_is_read_from_the_cgroup_name(folder: str, uid: str | None) -> None:
    """The uid is in the cgroup's name, with "_" for "-" under systemd."""
    assert pod_uid(folder) == uid


POD = f"/kubepods/burstable/pod{UID}"


@table(
    "seen, is_one",
    {
        "its own": (f"{POD}/one", True),
        "below it": (f"{POD}/one/init", True),
        "from a pod of another class": (f"/burstable/pod{UID}/one", True),
        "from a pod of its class": (f"/pod{UID}/one/init", True),
        "from a container of its pod": ("/one", True),
        "another container": (f"{POD}/two", False),
        "a longer name": (f"{POD}/one-more", False),
        "another pod": ("/kubepods/burstable/podother/one", False),
        "another pod, from a pod": ("/podother/one", False),
        "that name below another one": (f"/podother/two{POD}/one", False),
        "part of a name": (f"/d{UID}/one", False),
        "above it": (POD, False),
        "the root": ("/", False),
    },
)
def test_cgroup_is_found_from_any_namespace(seen: str, is_one: bool) -> None:
    """A namespace hides the part that a path shares with the reader's own cgroup, never the end."""
    assert is_within(seen, f"{POD}/one") is is_one


OTHER = "ffffffff-ffff-4fff-9fff-ffffffffffff"


@table(
    "path, pod",
    {
        "cgroupfs": (f"/kubepods/burstable/pod{UID}/a", UID),
        "systemd": (f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-a.scope", UID),
        "namespace of the reader": (f"/../../pod{UID}/a", UID),
        "static pod": ("/kubepods/pod3f1c9a/a", ""),
        "outside": ("/system.slice/kubelet.service", None),
        "child named like another pod": (f"/kubepods/pod{UID}/a/pod{OTHER}", UID),
        "child named like another slice": (
            f"/kubepods/pod{UID}/a/kubepods-pod{OTHER.replace('-', '_')}.slice",
            UID,
        ),
    },
)
def test_pod_is_the_outermost_in_the_path(path: str, pod: str | None) -> None:
    """The kubelet makes the first folders; a container names those below its own as it likes."""
    assert pod_of(path) == pod
