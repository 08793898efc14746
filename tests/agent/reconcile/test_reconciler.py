"""One pass after the other over a node in memory: what is written, in which order, and what happens when it fails."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import AgentError, Gone, Refused, Unavailable
from agent.interfaces import StrayTasks
from agent.kubelet.policy import KubeletPolicy
from agent.node_state import NodeState
from agent.node_state import Path as By
from agent.reconcile.reconciler import Settings
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig, Quota
from pinning.planning.observed import State
from pinning.planning.refusal import Reason
from tests.agent.fakes import FakeNode
from tests.pinning.world import Wish

TWO = Wish("2", policy="exclusive")  # on FLAT, reserved 0,4: the core 1,5
PLAIN = Wish()


def pinned_pair(node: FakeNode) -> tuple[str, str]:
    """Run an exclusive container and a plain one until both are where they belong; return their ids."""
    node.add("a", TWO)
    node.add("b", PLAIN)
    owner, other = node.start("a"), node.start("b")
    node.run()
    assert (node.cpus(owner), node.cpus(other)) == ("1,5", "0,2-4,6-7")
    return owner, other


def container(state: NodeState, uid: str, name: str = "c0"):  # type: ignore[no-untyped-def]
    """Return one container of the state."""
    pod = next(pod for pod in state.pods if pod.uid == uid)
    return next(one for one in pod.containers if one.name == name)


def test_running_containers_are_moved_by_their_cgroups_and_the_runtime_learns_of_it(node: FakeNode) -> None:
    """Both the owner and the bystander are in the kernel at once, and in the runtime's record afterwards."""
    owner, other = pinned_pair(node)

    assert (str(node.records[owner]), str(node.records[other])) == ("1,5", "0,2-4,6-7")


def test_others_leave_before_the_owner_comes(node: FakeNode) -> None:
    """The bystander is shrunk before the grant, so that nobody ever runs beside the owner."""
    owner, other = pinned_pair(node)

    cgroups = [cgroup for cgroup, _ in node.cgroups.writes]
    assert cgroups.index(node.cgroup(other)) < len(cgroups) - 1 - cgroups[::-1].index(node.cgroup(owner))


def test_state_tells_what_was_read_back(node: FakeNode) -> None:
    """The state holds policy, CPUs, NUMA node, and the kernel's own answer with its path."""
    pinned_pair(node)

    one = container(node.run(), "a")
    assert one.is_pinned
    assert str(one.applied) == "1,5"
    assert one.numa_nodes == (0,)
    assert one.proof.path is By.CGROUP


def test_nothing_changes_when_nothing_changed(node: FakeNode) -> None:
    """A second pass writes nothing and gives an equal state: times only change with content."""
    pinned_pair(node)
    first = node.run()
    node.cgroups.writes.clear()
    node.time.now += 5

    assert node.run() == first
    assert node.cgroups.writes == []


def test_created_container_is_sent_by_the_runtime(node: FakeNode) -> None:
    """What is created has no cgroup to write: the runtime takes the set, and it is born with it."""
    node.add("a", TWO)
    node.run()
    number = node.start("a", state=State.CREATED)
    node.run()

    assert str(node.records[number]) == "1,5"
    node.begin(number)
    state = node.run()
    assert node.cpus(number) == "1,5"
    assert node.cgroups.writes == []
    assert container(state, "a").proof.path is By.FOUND
    assert container(state, "a").proof.window_seconds == 0.0


def test_lost_update_of_a_created_container_is_seen_when_it_runs(node: FakeNode) -> None:
    """An OK is no proof: the cgroup of the running container is read, and written."""
    node.add("a", TWO)
    node.run()
    number = node.start("a", state=State.CREATED)
    node.run()
    node.begin(number, lost=True)
    node.cgroups.ages[node.cgroup(number)] = 1.0

    assert container(node.run(), "a").proof.window_seconds == 1.0
    assert node.cpus(number) == "1,5"


def test_created_container_is_not_sent_again_and_again(node: FakeNode) -> None:
    """While a container stays created one call is enough."""
    node.add("a", TWO)
    node.start("a", state=State.CREATED)
    node.run(passes=3)

    assert len(node.runtime.calls) == 1


def test_no_pass_waits_for_a_created_container(node: FakeNode) -> None:
    """While a slow runtime takes the set of a container that does not run yet, those that run are moved."""
    pinned_pair(node)
    node.add("c", PLAIN)
    node.add("d", PLAIN)
    created, running = node.start("c", state=State.CREATED), node.start("d")

    async def scenario() -> None:
        node.runtime.gate = asyncio.Event()
        for _ in range(2):
            await node.agent.reconciler.run_pass()
            await asyncio.sleep(0)
        assert node.cpus(running) == "0,2-4,6-7"
        node.runtime.gate.set()
        await node.drain()

    node.runner.run(scenario())
    node.run()
    assert [cpus for key, cpus in node.runtime.calls if key == created] == ["0,2-4,6-7"]
    assert str(node.records[created]) == "0,2-4,6-7"


def test_newer_set_waits_for_the_one_that_was_sent_at_birth(node: FakeNode) -> None:
    """A container that begins to run while the runtime has its first set in its hands ends on its newest set."""
    pinned_pair(node)
    node.add("c", PLAIN)
    created = node.start("c", state=State.CREATED)

    async def scenario() -> None:
        node.runtime.gate = asyncio.Event()
        await node.agent.reconciler.run_pass()
        while not node.runtime.flying:
            await asyncio.sleep(0)
        node.begin(created)
        node.add("a", Wish("2", policy="none"))
        passing = asyncio.create_task(node.agent.reconciler.run_pass())
        for _ in range(20):
            await asyncio.sleep(0)
        node.runtime.gate.set()
        await passing

    node.runner.run(scenario())
    node.run()
    assert node.cpus(created) == "0-7"


def test_vm_container_is_changed_by_the_runtime_alone(node: FakeNode) -> None:
    """The cgroup of a VM sandbox is not written, even though there is one."""
    node.add("a", TWO)
    node.start("a", in_vm=True)
    state = node.run(passes=2)

    assert node.cgroups.writes == []
    assert [cpus for _, cpus in node.runtime.calls] == ["1,5"]
    assert container(state, "a").is_pinned


def test_without_write_access_the_runtime_does_everything(node: FakeNode) -> None:
    """Cgroups that may only be read still prove what the runtime did."""
    node.cgroups.writable = False
    owner, other = pinned_pair(node)

    assert node.cgroups.writes == []
    assert {number for number, _ in node.runtime.calls} == {owner, other}


def test_refused_cgroup_write_is_done_by_the_runtime(node: FakeNode) -> None:
    """One cgroup that cannot be written does not keep its container unpinned."""
    node.add("a", TWO)
    number = node.start("a")
    node.cgroups.errors[node.cgroup(number)] = Refused("EACCES")
    node.run()

    assert node.cpus(number) == "1,5"


def test_grant_is_not_done_while_a_bystander_cannot_leave(node: FakeNode) -> None:
    """What waits for a failure is not done, and is done as soon as the failure is over."""
    node.add("b", PLAIN)
    other = node.start("b")
    node.cgroups.errors[node.cgroup(other)] = Unavailable("EBUSY")
    node.add("a", TWO)
    owner = node.start("a")
    state = node.run()
    assert state.failures == ("test/pod-b/c0",)
    assert not container(state, "a").is_pinned
    assert node.cpus(other) == "0-7"

    node.cgroups.errors.clear()
    node.time.now += 60
    assert container(node.run(), "a").is_pinned
    assert (node.cpus(owner), node.cpus(other)) == ("1,5", "0,2-4,6-7")


def test_lost_write_of_a_bystander_holds_the_grant_up(node: FakeNode) -> None:
    """A write that the kernel does not show counts as not done."""
    node.add("b", PLAIN)
    other = node.start("b")
    node.add("a", TWO)
    node.start("a")
    node.cgroups.lost = 1

    assert not container(node.run(), "a").is_pinned or node.cpus(other) == "0,2-4,6-7"
    node.time.now += 60
    assert container(node.run(), "a").is_pinned


def test_failing_container_does_not_hold_up_others(node: FakeNode) -> None:
    """A container whose own write fails is tried again later; its neighbours are where they belong."""
    node.add("a", TWO)
    node.add("c", TWO)
    failing, fine = node.start("a"), node.start("c")
    for number in (failing, fine):
        node.cpusets[node.cgroup(number)] = CPUSet.parse("0,4")
    node.cgroups.errors[node.cgroup(failing)] = Unavailable("EIO")
    state = node.run()

    assert node.cpus(fine) == "2,6"
    assert state.failures == ("test/pod-a/c0",)
    assert node.agent.reconciler.retry_seconds() is not None


@pytest.mark.parametrize("error", [Refused("EIO"), Unavailable("EIO")], ids=["refused", "unavailable"])
def test_cgroup_that_cannot_be_read_does_not_end_the_pass(node: FakeNode, error: AgentError) -> None:
    """A container about which the kernel does not answer is its own failure: others leave its CPUs."""
    node.add("a", TWO)
    node.add("b", PLAIN)
    unreadable, fine = node.start("a"), node.start("b")
    node.cgroups.unreadable[node.cgroup(unreadable)] = error
    state = node.run()

    assert node.cpus(fine) == "0,2-4,6-7"
    assert not container(state, "a").is_pinned


def test_failure_is_not_tried_again_at_once(node: FakeNode) -> None:
    """Other events do not hammer a container that just failed; time does."""
    node.add("a", TWO)
    number = node.start("a")
    node.cgroups.errors[node.cgroup(number)] = Unavailable("EIO")
    node.run()
    del node.cgroups.errors[node.cgroup(number)]

    node.run()
    assert node.cpus(number) == "0-7"
    node.time.now += 11
    node.run()
    assert node.cpus(number) == "1,5"


def test_failure_that_no_longer_matters_is_forgotten(node: FakeNode) -> None:
    """A write that failed and is not needed any more is not told for ever."""
    node.add("b", PLAIN)
    other = node.start("b")
    node.cgroups.errors[node.cgroup(other)] = Unavailable("EBUSY")
    node.add("a", TWO)
    assert node.run().failures == ("test/pod-b/c0",)

    del node.documents["a"]
    assert node.run().failures == ()
    assert node.agent.reconciler.retry_seconds() is None


@pytest.mark.parametrize("error", [Gone("x"), Gone("no such container")])
def test_container_that_vanished_is_in_nobodys_way(node: FakeNode, error: Gone) -> None:
    """A bystander that ends while it is written counts as having left."""
    node.add("b", PLAIN)
    other = node.start("b")
    node.add("a", TWO)
    node.start("a")
    node.cgroups.errors[node.cgroup(other)] = error
    state = node.run()

    assert state.failures == ()
    assert container(state, "a").is_pinned


def test_runtime_that_is_down_does_not_stop_live_changes(node: FakeNode) -> None:
    """Cgroups are written from the last list; the runtime is told when it is back."""
    owner, other = pinned_pair(node)
    node.runtime.down = True
    node.add("a", Wish("2", policy="none"))
    state = node.run()
    assert (node.cpus(owner), node.cpus(other)) == ("0-7", "0-7")
    assert not state.containers_complete

    node.runtime.down = False
    node.run()
    assert str(node.records[owner]) == "0-7"


def test_pod_that_left_the_api_keeps_its_cpus_while_it_runs(node: FakeNode) -> None:
    """Gone in the API is not gone: CPUs are free when the container has ended too (kubectl delete --force)."""
    owner, other = pinned_pair(node)
    del node.documents["a"]
    node.run()
    assert node.cpus(owner) == "1,5"

    node.stop(owner)
    node.run()
    assert node.cpus(other) == "0-7"


def test_restarted_container_gets_its_cpus_again(node: FakeNode) -> None:
    """CPUs belong to the container of the pod, not to one of its restarts."""
    owner, _ = pinned_pair(node)
    node.stop(owner)
    node.run()
    again = node.start("a")
    node.run()

    assert node.cpus(again) == "1,5"


def test_refused_claim_runs_in_the_shared_set_and_is_told(node: FakeNode) -> None:
    """What does not fit is reported as refused, never as pinned."""
    node.add("a", Wish("7", policy="exclusive"))
    node.start("a")
    state = node.run()

    one = container(state, "a")
    assert one.refusal.reason is Reason.NOT_ENOUGH
    assert not one.is_pinned
    assert one.is_told


def test_foreign_write_is_repaired_at_once(node: FakeNode) -> None:
    """A cpuset that somebody else changed is put back in the next pass, and counted."""
    owner, _ = pinned_pair(node)
    node.cpusets[node.cgroup(owner)] = CPUSet.parse("0-7")
    node.run()

    assert node.cpus(owner) == "1,5"
    assert node.agent.reconciler.metrics.rewrites._value.get() == 1


def test_third_foreign_write_is_a_conflict_and_ten_quiet_minutes_end_it(node: FakeNode) -> None:
    """A conflict is told with whom it compromises, nothing is written during it, and afterwards it is repaired."""
    _, other = pinned_pair(node)
    for _ in range(3):
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
        state = node.run()
        node.time.now += 60
    assert node.cpus(other) == "0-7"
    assert [one.container for one in state.conflicts] == ["test/pod-b/c0"]
    assert container(state, "a").intruders == ("test/pod-b/c0",)

    node.time.now += 540
    state = node.run()
    assert state.conflicts == ()
    assert node.cpus(other) == "0,2-4,6-7"


def test_created_container_is_nobodys_intruder(node: FakeNode) -> None:
    """Some runtimes make its cgroup, on every CPU, before it runs: nothing of it can run there, so nothing is told."""
    pinned_pair(node)
    node.add("late", Wish("1", policy="exclusive"))
    number = node.start("late", state=State.CREATED)
    node.cpusets[node.cgroup(number)] = node.topology.online
    node.runtime.gate = asyncio.Event()  # what it is sent does not arrive yet
    state = node.runner.run(node.agent.reconciler.run_pass())

    assert state is not None
    assert node.cpus(number) == str(node.topology.online)
    assert container(state, "a").intruders == ()
    assert container(state, "late").proof is None
    node.runtime.gate.set()
    node.begin(number)
    assert container(node.run(), "late").is_pinned


def test_writes_in_a_conflict_make_it_longer_without_a_pass(node: FakeNode) -> None:
    """A writer that goes on is only counted: it must not keep the agent busy."""
    _, other = pinned_pair(node)
    for _ in range(3):
        node.cpusets[node.cgroup(other)] = CPUSet.parse("0-7")
        node.run()
    node.agent.trigger.clear()
    node.time.now += 500
    node.agent.reconciler.between_passes.foreign_write(node.cgroup(other))
    assert not node.agent.trigger.is_set

    node.time.now += 200
    node.run()
    assert node.cpus(other) == "0-7"


def test_cpu_that_goes_offline_is_no_foreign_write(node: FakeNode) -> None:
    """What the kernel does with cpusets when CPUs go is nobody's rewrite."""
    pinned_pair(node)
    node.topology = node.topology.with_online(CPUSet.parse("0-6"))
    node.run()

    assert node.agent.reconciler.metrics.rewrites._value.get() == 0


def test_older_call_of_the_runtime_never_lands_on_a_newer_cpuset(node: FakeNode) -> None:
    """A container is not written while the runtime has it in its hands; afterwards it gets the newest set."""

    async def scenario() -> None:
        pinned = node.start("a")
        node.add("a", TWO)
        node.runtime.gate = asyncio.Event()
        syncing = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
        await node.agent.reconciler.run_pass()
        while not node.runtime.flying:
            await asyncio.sleep(0)
        node.add("a", Wish("2", policy="none"))
        passing = asyncio.create_task(node.agent.reconciler.run_pass())
        for _ in range(20):
            await asyncio.sleep(0)
        assert node.cpus(pinned) == "1,5"
        node.runtime.gate.set()
        await passing
        await node.agent.reconciler.runtime_sync.drained()
        assert node.cpus(pinned) == str(node.records[pinned]) == "0-7"
        syncing.cancel()

    node.runner.run(scenario())


def test_two_calls_at_a_time(node: FakeNode) -> None:
    """The runtime gets two calls at a time, and one for each container in the end."""
    node.add("a", TWO)
    for number in range(9):
        node.add(f"p{number}", PLAIN)
        node.start(f"p{number}")

    async def scenario() -> None:
        node.runtime.gate = asyncio.Event()
        syncing = asyncio.create_task(node.agent.reconciler.runtime_sync.run())
        await node.agent.reconciler.run_pass()
        for _ in range(50):
            await asyncio.sleep(0)
        assert node.runtime.most_flying == 2
        node.runtime.gate.set()
        await node.agent.reconciler.runtime_sync.drained()
        assert len(node.runtime.calls) == 9
        syncing.cancel()

    node.runner.run(scenario())


def test_narrower_parent_is_told_and_tried_again(node: FakeNode) -> None:
    """A child's effective set follows a narrower parent: that is no proof, and no hot loop either."""
    node.add("a", TWO)
    number = node.start("a")
    node.cgroups.ceiling[node.cgroup(number)] = CPUSet.parse("0-3")
    state = node.run()

    assert not container(state, "a").is_pinned
    assert state.failures == ("test/pod-a/c0",)


def test_stray_tasks_are_told(node: FakeNode) -> None:
    """Tasks outside are drift; tasks that keep to fewer CPUs are only narrowed."""
    owner, other = pinned_pair(node)
    node.cgroups.strays[node.cgroup(owner)] = StrayTasks(narrowed=(11, 12))
    node.cgroups.strays[node.cgroup(other)] = StrayTasks(outside=(13,))
    assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, True)

    state = node.run()
    assert container(state, "a").proof.narrowed == 2
    assert container(state, "b").proof.outside == 1
    assert node.runner.run(node.agent.reconciler.sweep(lambda: False)) == (True, False)


def sweep(node: FakeNode) -> None:
    """Let the agent look at all tasks."""
    node.runner.run(node.agent.reconciler.sweep(lambda: False))


def test_first_process_born_narrower_is_widened_once(node: FakeNode) -> None:
    """Only at the first look at the tasks of a container: what narrows later narrowed itself."""
    node.add("a", TWO)
    node.run()
    number = node.start("a")
    node.run()
    narrow = {node.cgroup(number): StrayTasks(narrowed=(1,))}
    node.cgroups.strays = dict(narrow)
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]
    assert container(node.run(), "a").proof.narrowed == 0

    node.cgroups.strays = dict(narrow)
    sweep(node)
    assert len(node.cgroups.widened) == 1
    assert container(node.run(), "a").proof.narrowed == 1


def test_nobody_is_widened_before_its_cpus_are_proven(node: FakeNode) -> None:
    """While its cpuset is not right a container waits for its first look."""
    node.add("a", TWO)
    node.run()
    number = node.start("a")
    node.cgroups.errors[node.cgroup(number)] = Unavailable("EIO")
    node.run()
    sweep(node)
    assert node.cgroups.widened == []

    node.cgroups.errors.clear()
    node.time.now += 60
    node.run()
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]


def test_nobody_is_widened_before_its_first_process_is_known(node: FakeNode) -> None:
    """A runtime that does not tell the process yet is waited for."""
    node.run()
    number = node.start("b")
    one = node.containers[number]
    node.containers[number] = replace(one, pid=0)
    node.run()
    sweep(node)
    assert node.cgroups.widened == []

    node.containers[number] = one
    node.run()
    sweep(node)
    assert node.cgroups.widened == [(node.cgroup(number), 1)]


def test_containers_older_than_the_agent_are_not_widened(node: FakeNode) -> None:
    """They had their time to choose; an agent that starts again takes nobody for newborn."""
    number, _ = pinned_pair(node)
    node.new_agent()
    node.run()
    node.cgroups.strays[node.cgroup(number)] = StrayTasks(narrowed=(1,))
    sweep(node)

    assert node.cgroups.widened == []


def test_observing_agent_widens_nobody(node: FakeNode) -> None:
    """Whoever only looks leaves the masks of others alone."""
    node.settings = Settings("node-1", NodeConfig(observe=True))
    node.new_agent()
    node.add("b", PLAIN)
    node.run()
    node.start("b")
    node.run()
    sweep(node)

    assert node.cgroups.widened == []


def test_static_kubelet_makes_the_agent_observe(node: FakeNode, tmp_path: Path) -> None:
    """Beside the kubelet's static policy nothing is allocated or written, and every claim is refused."""
    state_file = tmp_path / "cpu_manager_state"
    state_file.write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    node.settings = Settings("node-1", node.config, state_file)
    node.new_agent()
    node.add("a", TWO)
    node.start("a")
    state = node.run()

    assert state.kubelet is KubeletPolicy.STATIC
    assert state.observes
    assert node.cgroups.writes == node.runtime.calls[1:] == []
    assert container(state, "a").refusal.reason is Reason.OBSERVING


def test_quota_is_unset_for_exclusive_containers(node: FakeNode) -> None:
    """With `quota: unset` the container loses it, and its pod when all containers are exclusive; again after a resize."""
    node.settings = Settings("node-1", NodeConfig(quota=Quota.UNSET))
    node.new_agent()
    node.add("a", TWO)
    node.add("m", TWO, PLAIN)
    numbers = [node.start("a"), node.start("m"), node.start("m", "c1")]
    node.cgroups.quotas = {node.cgroup(number): 200000 for number in numbers}
    node.cgroups.quotas |= {"/kubepods/a": 200000, "/kubepods/m": 250000}
    node.run()
    assert node.cgroups.quotas.keys() == {"/kubepods/m", node.cgroup(numbers[2])}

    node.cgroups.quotas["/kubepods/a"] = 300000
    node.run()
    assert "/kubepods/a" not in node.cgroups.quotas


def test_quota_is_kept_by_default(node: FakeNode) -> None:
    """Without the operator's word quotas stay."""
    node.add("a", TWO)
    number = node.start("a")
    node.cgroups.quotas = {node.cgroup(number): 200000}
    node.run()

    assert node.cgroups.quotas


def test_reset_gives_every_cpu_back(node: FakeNode) -> None:
    """Uninstalling leaves every container on all CPUs, in the kernel and in the runtime, and no checkpoint."""
    owner, other = pinned_pair(node)

    node.runner.run(node.agent.reset())
    assert (node.cpus(owner), node.cpus(other)) == ("0-7", "0-7")
    assert str(node.records[owner]) == str(node.records[other]) == "0-7"
    assert not (node.folder / "checkpoint.json").exists()
