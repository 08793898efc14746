"""The container of a process by /proc/PID/cgroup, as seen from different cgroup namespaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.kernel.cgroupfs import V1, V2, Hierarchy
from agent.wrappers.peer import CgroupIndex, cgroup_in

SLICE = "/kubepods.slice/kubepods-pod1.slice"
CGROUPS = {f"{SLICE}/cri-a.scope": "a", f"{SLICE}/cri-b.scope": "b", "/kubepods/pod2/c": "c"}


@pytest.mark.parametrize(
    ("text", "version", "path"),
    [
        ("0::/kubepods/pod2/c\n", V2, "/kubepods/pod2/c"),
        ("12:cpuset:/x\n3:cpu,cpuacct:/y\n0::/z\n", V1, "/x"),
        ("4:cpu,cpuset:/a:b\n", V1, "/a:b"),
        ("12:cpuset:/x\n0::/z\n", V2, "/z"),
        ("1:name=cpuset:/x\n", V1, ""),
        ("0::/x (deleted)\n", V2, "/x (deleted)"),
        ("", V2, ""),
        ("rubbish", V1, ""),
        ("9:pids:/a/x\x0b3:cpuset:/b\n4:cpuset:/c\n", V1, "/c"),
    ],
)
def test_the_line_of_the_cpuset_hierarchy_counts(text: str, version: int, path: str) -> None:
    """The path comes from the line of the cpuset hierarchy, on version 1 and 2."""
    assert cgroup_in(text, version) == path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"{SLICE}/cri-a.scope", ["a"]),
        (f"{SLICE}/cri-a.scope/deep/down", ["a"]),
        (f"{SLICE}/cri-ab.scope", []),
        (SLICE, []),
        ("/", []),
        ("", []),
        ("/cri-a.scope", []),
        ("/kubepods/pod2/c/kubepods.slice/kubepods-pod1.slice/cri-a.scope", ["c"]),
    ],
)
def test_the_nearest_cgroup_above_counts(path: str, found: list[str]) -> None:
    """A cgroup below a container's belongs to this container, whatever its name."""
    assert [container for container, _ in CgroupIndex(CGROUPS).candidates(path)] == found


def hierarchy(root: Path) -> Hierarchy:
    """Return a hierarchy of plain files."""
    return Hierarchy(V2, root, root)


@pytest.mark.parametrize(
    ("path", "container"),
    [
        ("/../../kubepods-pod1.slice/cri-a.scope/deep", "a"),
        ("/../cri-a.scope/deep", "a"),
        ("/../../../../kubepods/pod2/c/kubepods.slice/kubepods-pod1.slice/cri-a.scope", "c"),
        ("/../pod2/c/deep/cri-b.scope", "c"),
        ("/../x.scope", None),
        ("/../deep/cri-b.scope", None),
        ("/..", None),
    ],
)
def test_path_from_a_namespace_of_the_agents_own_names_one_container(
    tmp_path: Path, path: str, container: str | None
) -> None:
    """A path relative to the agent's own cgroup namespace is found without a listing of the container's threads."""
    assert CgroupIndex(CGROUPS).container_of(42, path, hierarchy(tmp_path)) == container


def test_the_kernel_is_asked_which_of_several_containers_it_is(tmp_path: Path) -> None:
    """If two containers' cgroups have the same name, the one counts that lists the pid."""
    cgroups = {f"/{parent}/pod1/c": parent for parent in ("burstable", "besteffort")}
    for parent, threads in (("burstable", "7\n42\n"), ("besteffort", "420\n")):
        (tmp_path / parent / "pod1/c/deep").mkdir(parents=True)
        (tmp_path / parent / "pod1/c/deep/cgroup.threads").write_text(threads)

    def found(pid: int, path: str) -> str | None:
        return CgroupIndex(cgroups).container_of(pid, path, hierarchy(tmp_path))

    assert found(42, "/../pod1/c/deep") == "burstable"
    assert found(420, "/../pod1/c/deep") == "besteffort"
    assert found(4, "/../pod1/c/deep") is None
    assert found(42, "/../pod1/c") is None  # no cgroup there
    assert found(4, "/burstable/pod1/c") == "burstable"
