"""Files that a pass opens: an edit that moves every container of a node opens one file for each."""

from __future__ import annotations

import builtins
import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agent.interfaces import Cgroups
from agent.kernel.cgroupfs import Hierarchy, find_hierarchy
from agent.process import Agent
from pinning.machine.cpuset import CPUSet
from tests.agent.fakes import FakeNode
from tests.environments.node.cgroup_trees import NEW_KERNEL, make_cgroup, make_root
from tests.environments.node.cgroup_trees import opened as cgroups_below
from tests.pinning.world import Wish

CONTAINERS = 110
ONE_CPU, SHARED = Wish("1", policy="exclusive"), Wish("1", policy="none")


@contextmanager
def opened() -> Iterator[Counter[Path]]:
    """Count how often each file is opened inside the block."""
    counted: Counter[Path] = Counter()
    with ExitStack() as stack:
        for module in (builtins, io, os):
            stack.enter_context(patch.object(module, "open", noting(module.open, counted)))
        yield counted


def noting(call: Any, counted: Counter[Path]) -> Any:
    """Return an `open` that records the path."""

    def noted(file: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(file, str | Path):
            counted[Path(file)] += 1
        return call(file, *arguments, **options)

    return noted


class Node:
    """A node with many containers whose cgroups are plain directories, in which a written cpuset is effective at once."""

    def __init__(self, fake: FakeNode, root: Path, version: int) -> None:
        self.fake = fake
        self.folder = make_root(root, version)
        self.hierarchy: Hierarchy = find_hierarchy(root)
        for number in range(CONTAINERS):
            fake.add(f"p{number}", SHARED)
            self._make(version, fake.cgroup(fake.start(f"p{number}")))
        self.cgroups = cgroups_below(root, NEW_KERNEL)
        parts = fake.parts()
        cgroups = Cgroups(*self.cgroups, parts.interfaces.cgroups.split)
        fake.agent = Agent(replace(parts, interfaces=replace(parts.interfaces, cgroups=cgroups)))
        fake.run(passes=2)

    def _make(self, version: int, cgroup: str) -> None:
        make_cgroup(self.folder / cgroup[1:].partition("/")[0], version)
        make_cgroup((self.folder / cgroup[1:]).parent, version)
        folder = make_cgroup(self.folder / cgroup[1:], version)
        (folder / self.hierarchy.effective[0]).unlink()
        (folder / self.hierarchy.effective[0]).symlink_to("cpuset.cpus")

    @property
    def cpuset_files(self) -> list[Path]:
        """The cpuset file of each container."""
        cgroups = [self.fake.cgroup(number) for number in self.fake.containers]
        return [self.folder / cgroup[1:] / "cpuset.cpus" for cgroup in cgroups]

    async def opened(self) -> Counter[Path]:
        """Run a pass; return which files of cgroups and of the agent's state it opens."""
        with opened() as counted:
            await self.fake.agent.reconciler.run_pass()
        return Counter(
            {path: times for path, times in counted.items() if path.is_relative_to(self.fake.folder.parent)}
        )


@pytest.fixture(params=[1, 2])
def many(node: FakeNode, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """Return a node with each version of cgroups."""
    many_containers = Node(node, tmp_path / "cgroup", int(request.param))
    yield many_containers
    many_containers.cgroups.watch.close()


def test_move_of_every_container_opens_few_files(many: Node) -> None:
    """The pass opens one cpuset file for each container, the checkpoint and one quota file."""
    many.fake.add("p0", ONE_CPU)

    files = many.fake.runner.run(many.opened())

    written = Counter(dict.fromkeys(many.cpuset_files, 1))
    quotas = [path for path in files if path.name in ("cpu.cfs_quota_us", "cpu.max")]
    assert [path.parent.name for path in quotas] == [many.cpuset_files[0].parent.name]
    del files[quotas[0]]
    assert files == written + Counter([many.fake.folder / f"checkpoint.{end}" for end in ("new", "json")])
    assert {CPUSet.parse(path.read_text()) for path in many.cpuset_files[1:]} == {CPUSet.parse("0,2-7")}


def test_next_edit_opens_no_cpuset(many: Node) -> None:
    """The next edit opens no cpuset file, because the files stay open after the first write."""
    many.fake.add("p0", ONE_CPU)
    many.fake.run()
    many.fake.add("p0", SHARED)

    files = many.fake.runner.run(many.opened())

    assert not {path.name for path in files} & {"cpuset.cpus"}
    assert {CPUSet.parse(path.read_text()) for path in many.cpuset_files} == {CPUSet.parse("0-7")}


def test_pass_without_news_opens_no_file(many: Node) -> None:
    """A pass without changes opens no file, because files stay open after they were read."""
    assert many.fake.runner.run(many.opened()) == Counter()


def test_sweep_opens_only_task_lists(many: Node) -> None:
    """A sweep opens only the task list of each container, and reads cpusets from files that are already open."""
    reconciler = many.fake.agent.reconciler

    with opened() as counted:
        many.fake.runner.run(reconciler.sweep(lambda: False))

    lists = [path.with_name(many.hierarchy.tasks) for path in many.cpuset_files]
    assert counted == Counter(dict.fromkeys(lists, 1))


def test_pass_lists_once_and_reads_each_cpuset_twice(node: FakeNode) -> None:
    """A pass lists the runtime once and reads each cpuset before and after its one write."""
    for number in range(CONTAINERS):
        node.deploy(f"p{number}", SHARED)
    node.run(passes=2)
    node.add("p0", ONE_CPU)
    node.cgroups.writes.clear()
    calls: Counter[str] = Counter()
    interfaces: list[tuple[Any, str]] = [
        (node.runtime, "containers"),
        (node.cgroups, "read"),
        (node.cgroups, "follow"),
        (node.agent.reconciler, "_plan"),
    ]
    for interface, name in interfaces:
        setattr(interface, name, counting(getattr(interface, name), name, calls))

    node.runner.run(node.agent.reconciler.run_pass())

    reads_by_the_fake = CONTAINERS  # for each write, the fake checks whether the cgroup exists
    assert calls == {"containers": 1, "_plan": 1, "read": 2 * CONTAINERS + reads_by_the_fake}
    assert Counter(cgroup for cgroup, _ in node.cgroups.writes) == Counter(
        one.cgroup for one in node.containers.values()
    )


def counting(call: Any, name: str, calls: Counter[str]) -> Any:
    """Return a wrapper that counts the calls."""

    def counted(*arguments: Any) -> Any:
        calls[name] += 1
        return call(*arguments)

    return counted
