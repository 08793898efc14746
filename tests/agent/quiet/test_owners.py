"""Threads of containers, and processes that entered them from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.quiet.owners import find_owners
from pinning.machine.cpuset import CPUSet

CONTAINER = "/kubepods/pod1/abc"
CPUS = CPUSet([0])  # where processes ran last


class Proc:
    """A folder in the form of /proc."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(
        self, pid: int, name: str, parent: int, *, cgroup: str = CONTAINER, pids: str = "", threads: int = 1
    ) -> None:
        """Add a process; `pids` are its ids in PID namespaces below the reader's."""
        folder = self.root / str(pid)
        stat = f"{pid} ({name}) S {parent} " + " ".join(["0"] * 48)
        status = f"Name:\t{name}\nNSpid:\t{pid}{pids}\nvoluntary_ctxt_switches:\t5\n"
        for task in (folder, *(folder / "task" / str(pid + number) for number in range(threads))):
            task.mkdir(parents=True)
            (task / "stat").write_text(stat)
            (task / "status").write_text(f"{status}nonvoluntary_ctxt_switches:\t3\n")
            (task / "schedstat").write_text("100 2000 7\n")
            (task / "cgroup").write_text(f"0::{cgroup}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """Return a /proc with a container whose first process is a shim's child."""
    proc = Proc(tmp_path)
    proc.process(1, "systemd", 0, cgroup="/init.scope")
    proc.process(50, "shim", 1, cgroup="/system.slice")
    proc.process(100, "server", 50, pids="\t1", threads=3)
    return proc


@pytest.mark.parametrize(
    ("parent", "pids", "entered"),
    [
        pytest.param(100, "\t7", False, id="a child of the first process"),
        pytest.param(101, "\t8", False, id="a grandchild"),
        pytest.param(50, "\t9", True, id="started by the shim, as exec is"),
        pytest.param(0, "\t9", True, id="a parent outside of the reader's namespace"),
        pytest.param(50, "", False, id="in the node's PID namespace, where the shim adopts orphans"),
    ],
)
def test_entered_process_is_recognized_by_its_ancestors(
    proc: Proc, parent: int, pids: str, *, entered: bool
) -> None:
    """A process entered if none of its ancestors is in the container."""
    proc.process(101, "child", 100, pids="\t2")
    proc.process(200, "curl", parent, pids=pids)

    owner = find_owners(proc.root, {"ns/a/c": 100}, CPUS)["ns/a/c"]

    assert [it.name for it in owner.entered.values()] == ["curl"] * entered


@pytest.mark.parametrize("end", ["\r", "\v", "\x1c", "\x85", "\u2028"])
def test_process_that_entered_is_not_hidden_by_its_name(proc: Proc, end: str) -> None:
    """A process that entered a container is found whatever its name, in which only newlines are escaped."""
    proc.process(200, f"a{end}NSpid:\t1", 50, pids="\t9")

    assert find_owners(proc.root, {"ns/a/c": 100}, CPUS)["ns/a/c"].entered


def test_orphan_adopted_by_the_sandbox_did_not_enter(proc: Proc) -> None:
    """In a shared PID namespace the sandbox adopts orphans."""
    proc.process(90, "pause", 50, cgroup="/kubepods/pod1/sandbox", pids="\t1")
    proc.process(150, "first", 50, cgroup="/kubepods/pod1/other", pids="\t20")
    proc.process(200, "orphan", 90, cgroup="/kubepods/pod1/other", pids="\t30")

    assert not find_owners(proc.root, {"ns/a/other": 150}, CPUS)["ns/a/other"].entered


def test_threads_in_child_cgroups_count(proc: Proc) -> None:
    """Crun puts processes into a child cgroup; those of a similarly named cgroup do not count."""
    proc.process(300, "worker", 100, cgroup=f"{CONTAINER}/container", pids="\t5", threads=2)
    proc.process(400, "other", 50, cgroup="/kubepods/pod1/abcd", pids="\t1")

    assert len(find_owners(proc.root, {"ns/a/c": 100}, CPUS)["ns/a/c"].threads) == 3 + 2


def test_container_that_ended_is_left_out(proc: Proc) -> None:
    """A container whose first process exited is left out, and others are found."""
    found = find_owners(proc.root, {"ns/gone/c": 999, "ns/a/c": 100}, CPUS)
    assert set(found) == {"ns/a/c"}


def test_cyclic_parents_terminate(proc: Proc) -> None:
    """If pids are reused during the read, parents can form a cycle."""
    proc.process(200, "a", 201, pids="\t2")
    proc.process(201, "b", 200, pids="\t3")

    assert not find_owners(proc.root, {"ns/a/c": 100}, CPUS)["ns/a/c"].entered
