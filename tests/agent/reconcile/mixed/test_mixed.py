"""Passes over containers that run on more than they own: their cpusets, their tasks, and what the state says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import pytest

from agent.errors import Refused
from agent.interfaces import PassedContainer
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
from tests.agent.reconcile.scenes import PLAIN, TWO, container
from tests.pinning.world import Wish

MIXED = replace(TWO, shared="true")  # the core 1,5 and the shared set


class Wrapped:
    """Containers whose processes use pools."""

    def __init__(self, uses: Mapping[Owner, frozenset[PoolUse]]) -> None:
        self._uses = uses

    def uses(self) -> Mapping[Owner, frozenset[PoolUse]]:
        """Return them."""
        return self._uses

    def passed(self, state: NodeState, containers: Iterable[PassedContainer]) -> None:
        """Nobody waits for a pass."""

    def shown(self, state: NodeState) -> NodeState:
        """Nobody is told of."""
        return state

    def reset(self) -> None:
        """There is nothing to forget."""

    async def run(self, request_pass: Callable[[], None], changed: Callable[[], None]) -> None:
        """Nobody asks."""


@pytest.fixture
def mixed(node: FakeNode) -> str:
    """Return a container with the shared set beside its core, and a plain one beside it."""
    node.add("a", MIXED)
    node.add("b", PLAIN)
    number, other = node.start("a"), node.start("b")
    node.tasks.start(number, "", "")
    node.run()
    assert node.cpus(number) == "0-7"
    assert node.cpus(other) == "0,2-4,6-7"
    return number


def test_its_tasks_stay_on_its_own_cpus(node: FakeNode, mixed: str) -> None:
    """The cpuset is both; nobody that the application did not move leaves what the container owns."""
    assert node.tasks.masks([1, 2]) == ["1,5", "1,5"]
    state = container(node.run(), "a")
    assert (str(state.cpus), str(state.others)) == ("1,5", "0,2-4,6-7")
    assert state.is_pinned
    assert state.proof
    assert state.proof.split_seconds == 0.0


def test_a_pass_without_news_touches_nobody(node: FakeNode, mixed: str) -> None:
    """Once its tasks are apart nothing is written and no mask is set, wherever the application moves them."""
    node.tasks.choose(2, "3")
    node.cgroups.writes.clear()
    node.tasks.sets.clear()
    node.run(2)

    assert (node.cgroups.writes, node.tasks.sets) == ([], [])
    assert node.tasks.masks([1, 2]) == ["1,5", "3"]


def test_a_sweep_counts_its_tasks_and_moves_none(node: FakeNode, mixed: str) -> None:
    """The proof tells how many tasks keep to which part; none of them counts as narrowed."""
    node.tasks.choose(2, "3")
    node.runner.run(node.agent.reconciler.sweep(lambda: False))
    proof = container(node.run(), "a").proof

    assert proof
    assert proof.tally == Tally(home=1, others=1, both=0)
    assert (proof.outside, proof.narrowed) == (0, 0)
    assert node.tasks.masks([1, 2]) == ["1,5", "3"]


def test_grants_to_others_shrink_its_shared_part_first(node: FakeNode, mixed: str) -> None:
    """A helper whose CPU another container gets goes on in the rest of the shared set."""
    node.tasks.choose(2, "2")
    node.owners = {node.cgroup(mixed): CPUSet([1, 5])}
    node.add("c", TWO)
    other = node.start("c", state=State.CREATED)
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
    """The annotation counts from the next pass on; without it helpers come back to the container's own CPUs."""
    node.add("a", TWO)
    number = node.start("a")
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
    """Without NRI nobody can put its first process there: it is widened when it runs, and the time of that is told."""
    node.run()
    node.add("a", MIXED)
    number = node.start("a", state=State.CREATED)
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


def test_container_whose_process_is_not_put_home_is_widened_once_it_runs(node: FakeNode) -> None:
    """Over NRI of CRI-O before 1.36 it is made on its own CPUs: it started right, and its tasks are kept apart after."""
    node.container_watch = watch = FakeWatch(node, puts_home=False)
    node.new_agent()
    node.add("a", MIXED)
    node.run()
    number = watch.create("a")
    node.cpusets[node.cgroup(number)] = CPUSet.parse("1,5")
    node.run()
    assert node.cpus(number) == "1,5"

    node.begin(number)
    node.tasks.start(number, "")
    proof = container(node.run(), "a").proof
    assert (node.cpus(number), node.tasks.masks([1])) == ("0-7", ["1,5"])
    assert proof.window_seconds == 0.0


def test_an_agent_that_comes_back_leaves_choices_alone(node: FakeNode, mixed: str) -> None:
    """The checkpoint tells what was its own; a task on everything stays there while any other is apart."""
    everything, *_ = node.tasks.start(mixed, "0-7")
    node.tasks.choose(2, "3")
    node.new_agent()
    node.run()

    assert node.tasks.masks([1, 2, everything]) == ["1,5", "3", "0-7"]


def test_an_agent_that_died_while_it_widened_is_made_good(node: FakeNode) -> None:
    """When no task is apart nobody put any there: all of them go home."""
    node.add("a", MIXED)
    number = node.start("a")
    node.run()
    tasks = node.tasks.start(number, "", "")
    node.new_agent()
    node.run()

    assert node.tasks.masks(tasks) == ["1,5", "1,5"]


@pytest.mark.parametrize("says", [True, False], ids=["the annotation says it", "a neighbour shows it"])
def test_without_a_checkpoint_its_own_part_is_found(node: FakeNode, mixed: str, says: bool) -> None:
    """Its own CPUs are those that nobody runs on who owns nothing; where nobody is, the status of its pod tells."""
    node.add("z", TWO)
    node.start("z")
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
    """What its helpers use would stop the threads on its own CPUs: its pod's quota goes too, nobody else's does."""
    node.settings = replace(node.settings, config=NodeConfig(quota=quota))
    node.new_agent()
    node.add("a", MIXED, PLAIN)
    node.add("b", PLAIN)
    numbers = [node.start("a"), node.start("a", "c1"), node.start("b")]
    node.cgroups.quotas = dict.fromkeys(map(node.cgroup, numbers), Bandwidth(200000, 100000))
    node.cgroups.quotas |= dict.fromkeys(("/kubepods/a", "/kubepods/b"), Bandwidth(250000, 100000))
    node.run()

    assert node.cgroups.quotas.keys() == {node.cgroup(numbers[1]), node.cgroup(numbers[2]), "/kubepods/b"}


def test_a_runtime_that_alone_may_write_widens_it_too(node: FakeNode, mixed: str) -> None:
    """Where the cgroup refuses, tasks are put before and after the runtime writes the cpuset."""
    node.add("c", TWO)
    node.start("c")
    node.tasks.choose(2, "2")
    node.cgroups.errors[node.cgroup(mixed)] = Refused("EROFS")
    node.run(2)

    assert node.cpus(mixed) == "0-1,3-5,7"
    assert node.tasks.masks([1, 2]) == ["1,5", "0,3-4,7"]


def test_a_wrapped_container_is_widened_while_it_is_wrapped(node: FakeNode) -> None:
    """A use of pools widens an owner as the annotation does; who owns nothing gets the cores set aside."""
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


def test_strict_threads_hold_for_who_was_wrapped_before(node: FakeNode) -> None:
    """A use of pools widens no owner, whenever it came; who owns nothing still shares, and so does whose pod asks."""
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


def test_strict_threads_leave_what_a_pod_asks_for(node: FakeNode) -> None:
    """The annotation is its pod's own word, which its helpers count on."""
    node.settings = replace(node.settings, config=NodeConfig(strict_threads=True))
    node.new_agent()
    node.add("a", MIXED)
    number = node.start("a")
    node.tasks.start(number, "")
    node.run()

    assert node.cpus(number) == "0-7"


def test_a_container_whose_cgroup_nobody_knows_settles_on_its_own_cpus(node: FakeNode) -> None:
    """Its tasks cannot be kept apart: it gets no pools, is pinned, and nothing is sent for it again and again."""
    node.add("a", MIXED)
    number = node.start("a")
    node.containers[number] = replace(node.containers[number], cgroup=None)
    state = node.run()
    sent = list(node.runtime.calls)
    node.run(3)

    found = container(state, "a")
    assert (str(found.cpus), str(found.others), found.is_pinned) == ("1,5", "", True)
    assert node.runtime.calls == sent == [(number, "1,5")]


def test_a_container_whose_tasks_outrun_the_pass_is_failing_and_the_others_are_placed(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state names it with the reason while its cpuset keeps it off others' CPUs; once it starts no more, it settles."""
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
