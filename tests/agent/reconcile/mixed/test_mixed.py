"""Exclusive containers that also use shared CPUs: their cpusets, their tasks, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from agent.errors import Refused
from agent.interfaces import PassedContainer
from agent.metrics import _states as states
from agent.node_state import NodeState
from pinning.contract import PoolUse, SharedPool
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig, Quota, StaticPools
from pinning.planning.observed import Owner, State
from pinning.planning.quota import Bandwidth
from pinning.planning.task_parts import Tally
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.mixed.fake_tasks import FakeTasks
from tests.agent.reconcile.scenes import PLAIN, TWO, container, planned_creation
from tests.pinning.world import Wish

MIXED = replace(TWO, shared="true")  # exclusive core 1,5 plus the shared set


class Wrapped:
    """Pool uses of containers, as `cmk isolate` registers them."""

    def __init__(self, uses: Mapping[Owner, frozenset[PoolUse]]) -> None:
        self._uses = uses

    def uses(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return the pool uses of containers."""
        return self._uses

    def passed(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        """Do nothing, because no process waits for a pass."""

    def shown(self, state: NodeState) -> NodeState:
        """Return the state unchanged."""
        return state

    def reset(self) -> None:
        """Do nothing, because this fake saves nothing."""

    def look(self) -> None:
        """Do nothing, because this fake has no socket to check."""

    async def run(self, request_pass: Callable[[], None], changed: Callable[[], None]) -> None:
        """Do nothing, because no process requests a pool."""


@pytest.fixture
def mixed(node: FakeNode) -> str:
    """Start a container with a core and the shared set, and a plain one; return the first one's id."""
    node.add("a", MIXED)
    node.add("b", PLAIN)
    number, other = node.start("a"), node.start("b")
    node.tasks.start(number, "", "")
    node.run()
    assert node.cpus(number) == "0-7"
    assert node.cpus(other) == "0,2-4,6-7"
    return number


def test_its_tasks_stay_on_its_own_cpus(node: FakeNode, mixed: str) -> None:
    """When the cpuset is widened, tasks that the application did not move stay on the exclusive CPUs."""
    assert node.tasks.masks([1, 2]) == ["1,5", "1,5"]
    state = container(node.run(), "a")
    assert (str(state.cpus), str(state.others)) == ("1,5", "0,2-4,6-7")
    assert state.is_pinned
    assert list(states(state)) == ["proven"]
    assert state.proof
    assert state.proof.split_seconds == 0.0


def test_a_pass_without_changes_sets_no_affinity(node: FakeNode, mixed: str) -> None:
    """After the first split, a pass writes no cpuset and no affinity, even if the application has moved tasks since."""
    node.tasks.choose(2, "3")
    node.cgroups.writes.clear()
    node.tasks.sets.clear()
    node.run(2)

    assert (node.cgroups.writes, node.tasks.sets) == ([], [])
    assert node.tasks.masks([1, 2]) == ["1,5", "3"]


def test_a_sweep_counts_its_tasks_and_moves_none(node: FakeNode, mixed: str) -> None:
    """A sweep counts the tasks on exclusive and on shared CPUs, moves none, and counts none as narrowed."""
    node.tasks.choose(2, "3")
    node.runner.run(node.agent.reconciler.sweep(lambda: False))
    proof = container(node.run(), "a").proof

    assert proof
    assert proof.tally == Tally(home=1, others=1, both=0)
    assert (proof.outside, proof.narrowed) == (0, 0)
    assert node.tasks.masks([1, 2]) == ["1,5", "3"]


def test_grants_to_others_shrink_its_shared_part_first(node: FakeNode, mixed: str) -> None:
    """If another container gets the shared CPU of a helper task, the task moves to the rest of the shared set."""
    node.tasks.choose(2, "2")
    node.owners = {node.cgroup(mixed): CPUSet([1, 5])}
    other = node.deploy("c", TWO, state=State.CREATED)
    node.run()
    node.begin(other)
    node.run()

    assert (node.cpus(other), node.cpus(mixed)) == ("2,6", "0-1,3-5,7")
    assert node.tasks.masks([1, 2]) == ["1,5", "0,3-4,7"]
    node.documents.pop("c")
    node.remove(other)
    node.run()
    assert node.cpus(mixed) == "0-7"
    assert node.tasks.masks([1, 2]) == ["1,5", "0,2-4,6-7"]


def test_an_edit_widens_and_narrows_a_running_container(node: FakeNode) -> None:
    """An edited annotation adds the shared set; when the annotation is removed, all tasks return to the exclusive CPUs."""
    number = node.deploy("a", TWO)
    task, helper = node.tasks.start(number, "", "5")
    node.run()
    node.add("a", MIXED)
    node.run()
    assert node.cpus(number) == "0-7"
    assert node.tasks.masks([task, helper]) == ["1,5", "5"]

    node.tasks.choose(helper, "0,2-4,6-7")
    node.add("a", TWO)
    node.run()
    assert node.cpus(number) == "1,5"
    assert node.tasks.masks([task, helper]) == ["1,5", "1,5"]


def test_a_created_container_starts_on_its_own_cpus(node: FakeNode) -> None:
    """Without NRI the container starts on its exclusive CPUs, and gets the shared set once it runs."""
    node.run()
    number = node.deploy("a", MIXED, state=State.CREATED)
    node.run()
    assert str(node.records[number]) == "1,5"
    node.begin(number)
    task, *_ = node.tasks.start(number, "")
    node.run()

    assert node.cpus(number) == "0-7"
    assert node.tasks.masks([task]) == ["1,5"]
    proof = container(node.run(), "a").proof
    assert proof
    assert proof.window_seconds == 0.0
    assert proof.split_seconds == 0.0


def test_container_without_affinity_at_start_is_widened_once_it_runs(node: FakeNode) -> None:
    """If NRI cannot set an affinity (CRI-O before 1.36), the container starts on its exclusive CPUs and is widened later."""
    node.container_watch = watch = FakeWatch(node, puts_home=False)
    node.new_agent()
    number = planned_creation(node, watch, "a", MIXED)
    node.cpusets[node.cgroup(number)] = CPUSet.parse("1,5")
    node.run()
    assert node.cpus(number) == "1,5"

    node.begin(number)
    node.tasks.start(number, "")
    proof = container(node.run(), "a").proof
    assert (node.cpus(number), node.tasks.masks([1])) == ("0-7", ["1,5"])
    assert proof.window_seconds == 0.0


def test_restarted_agent_keeps_the_applications_affinities(node: FakeNode, mixed: str) -> None:
    """A restarted agent keeps all affinities if at least one task is restricted to exclusive or to shared CPUs."""
    everything, *_ = node.tasks.start(mixed, "0-7")
    node.tasks.choose(2, "3")
    node.new_agent()
    node.run()

    assert node.tasks.masks([1, 2, everything]) == ["1,5", "3", "0-7"]


def test_restarted_agent_completes_an_interrupted_split(node: FakeNode) -> None:
    """If no task is restricted to exclusive or shared CPUs, a restarted agent moves all tasks to the exclusive CPUs."""
    number = node.deploy("a", MIXED)
    node.run()
    tasks = node.tasks.start(number, "", "")
    node.new_agent()
    node.run()

    assert node.tasks.masks(tasks) == ["1,5", "1,5"]


@pytest.mark.parametrize("says", [True, False], ids=["the annotation says it", "a neighbour shows it"])
def test_without_a_checkpoint_exclusive_cpus_are_found(node: FakeNode, mixed: str, says: bool) -> None:
    """Without a checkpoint the agent takes the exclusive CPUs from the pod's status, or those that no other container has."""
    node.deploy("z", TWO)
    node.run()
    if says:
        del node.documents["b"]
        node.remove(next(number for number in node.containers if number.startswith("b")))
        status = '{"version":1,"containers":{"c0":{"policy":"exclusive","cpus":"1,5"}}}'
        node.documents["a"]["metadata"]["annotations"]["status.corepin.io/cpus"] = status
    cpus = node.cpus(mixed)
    (node.folder / "checkpoint.json").unlink()
    node.new_agent()
    state = node.run()

    assert str(container(state, "a").cpus) == "1,5"
    assert node.cpus(mixed) == cpus


@pytest.mark.parametrize("quota", Quota)
def test_its_quota_is_always_unset(node: FakeNode, quota: Quota) -> None:
    """The quotas of a mixed container and of its pod are unset under every policy; quotas of other containers stay."""
    node.settings = replace(node.settings, config=NodeConfig(quota=quota))
    node.new_agent()
    node.add("a", MIXED, PLAIN)
    node.add("b", PLAIN)
    numbers = [node.start("a"), node.start("a", "c1"), node.start("b")]
    node.cgroups.quotas = dict.fromkeys(map(node.cgroup, numbers), Bandwidth(200000, 100000))
    node.cgroups.quotas |= dict.fromkeys(("/kubepods/a", "/kubepods/b"), Bandwidth(250000, 100000))
    node.run()

    assert node.cgroups.quotas.keys() == {node.cgroup(numbers[1]), node.cgroup(numbers[2]), "/kubepods/b"}


def test_split_through_the_runtime_moves_tasks_twice(node: FakeNode, mixed: str) -> None:
    """If the cgroup cannot be written, the agent moves the tasks before and after the runtime writes the cpuset."""
    node.deploy("c", TWO)
    node.tasks.choose(2, "2")
    node.cgroups.errors[node.cgroup(mixed)] = Refused("EROFS")
    node.run(2)

    assert node.cpus(mixed) == "0-1,3-5,7"
    assert node.tasks.masks([1, 2]) == ["1,5", "0,3-4,7"]


def test_a_wrapped_container_is_widened_while_it_is_wrapped(node: FakeNode) -> None:
    """A process under `cmk isolate` widens an exclusive container to a pool, and moves a plain one to the pool `shared`."""
    node.settings = replace(
        node.settings, config=NodeConfig(pools=StaticPools(exclusive_cores=2, shared_cores=1))
    )
    node.wrappers = Wrapped(
        {
            Owner("a", "c0"): frozenset({PoolUse(SharedPool.SHARED), PoolUse(SharedPool.INFRA)}),
            Owner("b", "c0"): frozenset({PoolUse(SharedPool.SHARED)}),
        }
    )
    node.new_agent()
    node.add("a", Wish(cores=1))
    node.add("b", PLAIN)
    node.add("c", PLAIN)
    owner, sharer, other = node.start("a"), node.start("b"), node.start("c")
    tasks = [*node.tasks.start(owner, ""), *node.tasks.start(sharer, ""), *node.tasks.start(other, "")]
    state = node.run()

    assert [node.cpus(number) for number in (owner, sharer, other)] == ["0-1,3-5,7", "0,3-4,7", "0,4"]
    assert node.tasks.masks(tasks) == ["1,5", "0,4", "0,4"]
    assert str(container(state, "a").others) == "0,3-4,7"
    wrapped = container(state, "b")
    assert (str(wrapped.cpus), str(wrapped.others), list(states(wrapped))) == ("0,4", "3,7", [])


def test_a_wrapped_container_of_a_pods_pool_is_pinned(node: FakeNode) -> None:
    """A container in its pod's pool may also use the pool that `cmk isolate` requested, and does not count as drifted."""
    node.settings = replace(node.settings, config=NodeConfig(pools=StaticPools(2, 1)))
    node.wrappers = Wrapped({Owner("a", "c0"): frozenset({PoolUse(SharedPool.SHARED)})})
    node.new_agent()
    node.add("a", PLAIN)
    node.documents["a"]["metadata"]["annotations"]["cpu-manager.corepin.io/pod"] = "exclusive"
    node.documents["a"]["spec"]["resources"] = {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}
    number = node.start("a")
    node.tasks.start(number, "")
    found = container(node.run(), "a")

    assert (str(found.cpus), str(found.others), node.cpus(number)) == ("1,5", "3,7", "1,3,5,7")
    assert found.is_pinned
    assert list(states(found)) == ["proven"]


def test_strict_threads_ignore_pool_uses_of_owners(node: FakeNode) -> None:
    """With strictThreads, `cmk isolate` widens no exclusive container, and plain containers may still use pools."""
    pools = StaticPools(exclusive_cores=2, shared_cores=1)
    node.settings = replace(node.settings, config=NodeConfig(pools=pools, strict_threads=True))
    node.wrappers = Wrapped({Owner(pod, "c0"): frozenset({PoolUse(SharedPool.SHARED)}) for pod in "ab"})
    node.new_agent()
    node.add("a", Wish(cores=1))
    node.add("b", PLAIN)
    owner, sharer = node.start("a"), node.start("b")
    state = node.run()

    assert [node.cpus(number) for number in (owner, sharer)] == ["1,5", "0,3-4,7"]
    assert str(container(state, "a").others) == ""


def test_strict_threads_keep_the_shared_annotation(node: FakeNode) -> None:
    """With strictThreads, the annotation `shared-cpus` still adds the shared set."""
    node.settings = replace(node.settings, config=NodeConfig(strict_threads=True))
    node.new_agent()
    number = node.deploy("a", MIXED)
    node.tasks.start(number, "")
    node.run()

    assert node.cpus(number) == "0-7"


def test_a_container_without_known_cgroup_gets_only_its_own_cpus(node: FakeNode) -> None:
    """A container without a known cgroup gets no shared CPUs, because its tasks cannot be split."""
    number = node.deploy("a", MIXED)
    node.containers[number] = replace(node.containers[number], cgroup=None)
    state = node.run()
    sent = list(node.runtime.calls)
    node.run(3)

    found = container(state, "a")
    assert (str(found.cpus), str(found.others), found.is_pinned) == ("1,5", "", True)
    assert node.runtime.calls == sent == [(number, "1,5")]


def test_a_container_that_keeps_starting_tasks_fails_alone(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container that starts tasks faster than the agent pins them counts as failed until it stops doing so."""
    node.add("a", MIXED)
    node.add("b", PLAIN)
    node.add("c", TWO)
    number, plain, other = node.start("a"), node.start("b"), node.start("c")
    node.tasks.start(number, "", "")
    listed, starts = FakeTasks.of, [True]

    def start_another(tasks: FakeTasks, cgroup: str) -> list[int]:
        found = listed(tasks, cgroup)
        if starts and cgroup == node.cgroup(number):
            tasks.start(number, "")
        return found

    monkeypatch.setattr(FakeTasks, "of", start_another)
    node.new_agent()
    state = node.run()
    assert state.failures == ("test/pod-a/c0",)
    assert (node.cpus(plain), node.cpus(other)) == ("0,3-4,7", "2,6")
    assert CPUSet.parse(node.cpus(number)).isdisjoint(CPUSet.parse("2,6"))

    starts.clear()
    node.time.now += 120
    state = node.run(2)
    assert state.failures == ()
    assert {node.tasks.masks([task])[0] for task in listed(node.tasks, node.cgroup(number))} == {"1,5"}
