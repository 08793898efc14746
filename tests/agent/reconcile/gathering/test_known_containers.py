"""What a pass knows without listing the runtime: containers known from events, and the free devices."""

from __future__ import annotations

import builtins
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agent.interfaces import Cgroups
from agent.kernel.cgroupfs import Hierarchy, find_hierarchy
from agent.process import Agent
from agent.reconcile.reconciler import Settings
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near_rooms import FreeDevices
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import State
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.serving import quiet, serving
from tests.environments.node.cgroup_trees import NEW_KERNEL, make_cgroup, make_root
from tests.environments.node.cgroup_trees import opened as cgroups_below
from tests.pinning.world import Wish

PLAIN, TWO = Wish("500m"), Wish("2", policy="exclusive")


@pytest.fixture
def lists(node: FakeNode) -> list[None]:
    """Count the list calls of a runtime with complete events, on a node with an owner and a plain pod."""
    node.add("owner", TWO)
    node.add("plain", PLAIN)
    node.start("owner")
    node.start("plain")
    node.run(passes=2)
    listed: list[None] = []
    containers = node.runtime.containers

    async def counted() -> Any:
        listed.append(None)
        return await containers()

    node.runtime.containers = counted  # type: ignore[method-assign]
    know(node)
    return listed


def know(node: FakeNode) -> None:
    """Let the agent know from events all containers that the runtime has now."""
    node.runtime.known = tuple(node.containers.values())


def of(node: FakeNode, uid: str) -> str:
    """Return the id of a pod's container."""
    return next(key for key, container in node.containers.items() if container.pod_uid == uid)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: None, id="nothing"),
        pytest.param(lambda node: node.add("new", PLAIN), id="plain-pod-comes"),
        pytest.param(lambda node: node.documents.pop("plain"), id="plain-pod-goes"),
        pytest.param(lambda node: node.stop(of(node, "plain")), id="plain-container-ends"),
    ],
)
def test_plain_pod_needs_no_list(
    node: FakeNode, lists: list[None], change: Callable[[FakeNode], object]
) -> None:
    """A pass that moves no container does not list the runtime."""
    change(node)
    know(node)
    node.run()
    assert lists == []


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda node: node.add("new", TWO), id="owner-comes"),
        pytest.param(lambda node: node.add("owner", PLAIN), id="owner-edited"),
        pytest.param(lambda node: node.start("plain"), id="container-elsewhere"),
    ],
)
def test_runtime_is_listed_before_a_move(
    node: FakeNode, lists: list[None], change: Callable[[FakeNode], object]
) -> None:
    """A pass lists the runtime if a pod gets or frees CPUs, or a container runs on wrong CPUs."""
    change(node)
    know(node)
    node.run()
    assert lists == [None]


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        pytest.param(lambda node: node.add("new", TWO), ["list", "plan"], id="owner-comes"),
        pytest.param(lambda node: node.add("new", PLAIN), ["plan"], id="plain-pod-comes"),
    ],
)
async def test_change_of_an_owner_is_planned_once(
    node: FakeNode, lists: list[None], change: Callable[[FakeNode], object], calls: list[str]
) -> None:
    """The pass after a change that assigns or frees CPUs lists the runtime first, so that it observes and plans only once."""
    lists.clear()
    made: list[str] = []
    node.container_watch = FakeWatch(node)
    async with serving(node) as (agent, reports):
        await reports.until(lambda state: state.is_synchronised)
        node.pods.changed()
        await quiet(agent)
        plan = agent.reconciler._plan
        agent.reconciler._plan = lambda *seen: (made.append("plan"), plan(*seen))[1]  # type: ignore[func-returns-value, method-assign]
        lists.clear()
        change(node)
        know(node)
        reports.states.clear()
        node.pods.changed()
        await reports.until(lambda state: len(state.pods) == len(node.documents))
    assert sorted(made + ["list" for _ in lists]) == calls


def test_lost_event_frees_no_cpus(node: FakeNode, lists: list[None]) -> None:
    """The CPUs of a deleted pod stay assigned if an event was lost and the runtime still lists the pod's container."""
    running = of(node, "owner")
    node.runtime.known = tuple(container for key, container in node.containers.items() if key != running)
    del node.documents["owner"]
    state = node.run()
    assert (node.cpus(running), lists) == ("1,5", [None])
    assert state.ledger.exclusive
    node.stop(running)
    know(node)
    assert not node.run().ledger.exclusive


def test_foreign_write_is_counted_once_beside_a_list(node: FakeNode, lists: list[None]) -> None:
    """If a pass reads the cgroups twice, it counts a foreign write once."""
    node.cpusets[node.cgroup(of(node, "plain"))] = node.topology.online
    node.run()
    assert lists == [None]
    assert node.agent.reconciler.metrics.rewrites._value.get() == 1


def test_runtime_that_fails_to_list_frees_nothing(node: FakeNode, lists: list[None]) -> None:
    """If the runtime cannot be listed, CPUs are not freed on events alone."""
    node.stop(of(node, "owner"))
    know(node)
    del node.documents["owner"]
    node.runtime.down = True
    assert node.run().ledger.exclusive
    assert lists == [None]
    node.runtime.down = False
    assert not node.run().ledger.exclusive
    assert node.containers[of(node, "owner")].state is State.EXITED


KINDS = {"nvidia.com/gpu": {CPUSet([0]): 1}}
NONE, STATIC = KubeletPolicy.NONE, KubeletPolicy.STATIC


@pytest.mark.parametrize(
    ("policy", "memory", "binds", "is_lowest_first"),
    [
        pytest.param("none", NONE, False, False, id="none"),
        pytest.param("", NONE, False, False, id="not known"),
        pytest.param("later", NONE, False, False, id="a later kubelet's"),
        pytest.param("best-effort", NONE, False, True, id="best-effort"),
        pytest.param("restricted", NONE, False, True, id="restricted"),
        pytest.param("single-numa-node", NONE, False, True, id="single-numa-node"),
        pytest.param("best-effort", STATIC, False, False, id="a Memory Manager by configz"),
        pytest.param(
            "best-effort", KubeletPolicy.UNKNOWN, False, False, id="a Memory Manager that is not known"
        ),
        pytest.param("best-effort", NONE, True, False, id="a Memory Manager by its state"),
    ],
)
def test_how_the_kubelet_chooses(
    policy: str, memory: KubeletPolicy, *, binds: bool, is_lowest_first: bool
) -> None:
    """The kubelet chooses devices of the lowest NUMA node first only if its topology manager aligns devices."""
    settings = Settings("node-1", NodeConfig(), memory_policy=memory, topology_manager=policy)
    config = NodeConfig(near_ignore=("*/kvm",), kubelet_binds_memory=binds)
    assert settings.free_devices(KINDS, config) == FreeDevices(KINDS, ("*/kvm",), is_lowest_first)
    assert settings.free_devices(None, config) is None


def test_a_state_has_the_free_devices(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state has the free devices that are known at the end of the pass, or None without a kubelet."""
    assert node.run().free_devices is None
    monkeypatch.setattr(node.devices, "free", lambda: KINDS)
    assert node.run().free_devices == FreeDevices(KINDS)


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
