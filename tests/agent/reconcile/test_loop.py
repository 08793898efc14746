"""The agent's main loop: events cause passes, passes cause reports, and errors do not end it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.errors import Refused, Unavailable
from agent.interfaces import StrayTasks
from agent.node_state import NodeState
from agent.reconcile.between_passes import MACHINE, SOON_SECONDS
from agent.reconcile.reconciler import PODS_SECONDS, Settings
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import Topology
from pinning.planning.node_config import NodeConfig
from tests.agent.fake_machine_watch import FakeMachineWatch
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import FOUR, run_later
from tests.agent.reconcile.serving import PATIENCE_SECONDS, Reports, serving
from tests.agent.vm.fake_vms import machine
from tests.pinning.world import Wish

TWO = Wish("2", policy="exclusive")


def pinned(state: NodeState) -> int:
    """Return how many containers are pinned."""
    return sum(container.is_pinned for pod in state.pods for container in pod.containers)


async def test_change_of_a_pod_makes_a_pass(node: FakeNode) -> None:
    """After an edit of an annotation a pass applies and publishes it without waiting for a timer."""
    number = node.deploy("a", Wish("2", policy="none"))
    async with serving(node) as (_, reports):
        await reports.until(lambda state: state.is_synchronised)
        node.add("a", TWO)
        node.pods.changed()
        await reports.until(lambda state: pinned(state) == 1)
        assert node.cpus(number) == "1,5"


async def test_event_of_the_runtime_makes_a_pass(node: FakeNode) -> None:
    """A runtime event for a new container causes a pass that pins it."""
    node.add("a", TWO)
    async with serving(node) as (_, reports):
        await reports.until(lambda state: state.is_synchronised)
        node.start("a")
        node.runtime.changed()
        await reports.until(lambda state: pinned(state) == 1)


async def test_foreign_write_makes_a_pass(node: FakeNode) -> None:
    """A foreign write that inotify reports is repaired without waiting for a timer."""
    number = node.deploy("a", TWO)
    async with serving(node) as (_, reports):
        await reports.until(lambda state: pinned(state) == 1)
        node.cpusets[node.cgroup(number)] = CPUSet.parse("0-7")
        node.cgroups.written(node.cgroup(number))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while node.cpus(number) != "1,5":
                await asyncio.sleep(0)


async def test_observing_agent_repins_on_each_cpuset_write(node: FakeNode) -> None:
    """When the kubelet writes a launcher's cpuset, an observing agent pins the vCPUs again."""
    node.settings = Settings("node-1", NodeConfig(observe=True))
    number = node.deploy("v", FOUR, vm=True)
    node.vms.machines[number] = machine(4, node.topology.online)
    async with serving(node) as (_, reports):
        await reports.until(lambda state: state.is_synchronised)
        for text in ("2-3,6-7", "0-3", "2-3,6-7"):
            node.cpusets[node.cgroup(number)] = CPUSet.parse(text)
            node.vms.machines[number].vcpus = [CPUSet.parse(text)] * 4
            node.cgroups.written(node.cgroup(number))
            await reports.until(lambda state, text=text: machine_cpus(state) == text)  # type: ignore[misc]
            assert sorted(map(str, node.vms.machines[number].vcpus)) == list(map(str, CPUSet.parse(text)))
        assert node.cgroups.writes == []


def machine_cpus(state: NodeState) -> str:
    """Return the CPUs of the virtual machine in a state, or None if its vCPUs are not pinned one to one."""
    return "".join(str(pod.vm.cpus) for pod in state.pods if pod.vm and pod.vm.is_one_to_one)


async def test_kubelet_that_starts_with_another_policy_makes_a_pass(
    node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the kubelet replaces its state file, the agent reads the policy again without any other event."""
    monkeypatch.setattr("agent.reconcile.loop.SWEEP_SECONDS", 1e6)
    state, new = tmp_path / "cpu_manager_state", tmp_path / "new"
    state.write_text('{"policyName":"none","checksum":1}')
    node.settings = Settings("node-1", node.config, state)
    async with serving(node) as (_, reports):
        await reports.until(lambda state: state.is_synchronised and not state.observes)
        new.write_text('{"policyName":"static","checksum":1}')
        new.rename(state)
        await reports.until(lambda state: state.observes)


def test_cgroups_of_running_containers_are_watched(node: FakeNode) -> None:
    """The agent watches the cgroups of running containers only."""
    node.add("a", TWO)
    number, ended = node.start("a"), node.start("a")
    node.stop(ended)
    node.run()
    assert node.cgroups.followed == {node.cgroup(number)}


def test_cgroups_that_could_not_be_watched_are_watched_by_the_next_pass(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    """If the kernel refuses an inotify watch, each pass tries again, and the reason is logged once."""
    number = node.start("a")
    node.cgroups.unwatched = Refused("inotify cannot watch")
    node.run(passes=3)
    assert caplog.messages.count("cgroups are not watched") == 1
    node.cgroups.unwatched = None
    node.run()
    assert node.cgroups.followed == {node.cgroup(number)}

    node.cgroups.unwatched = Refused("inotify cannot watch")
    node.runner.run(node.agent.reconciler.sweep(lambda: False))
    assert caplog.messages.count("cgroups are not watched") == 2


def test_cgroup_watches_are_renewed_by_changes_and_sweeps(node: FakeNode) -> None:
    """A sweep renews all watches of cgroups, and a pass adds the watches of containers that started since the last."""
    node.start("a")
    node.run()
    asked: list[bool] = []

    def follow(cgroups: Iterable[str], *, anew: bool = True) -> None:
        asked.append(bool(cgroups) and anew)

    node.cgroups.follow = follow  # type: ignore[method-assign]

    node.run()
    assert asked == []
    node.runner.run(node.agent.reconciler.sweep(lambda: False))
    assert asked == [True]
    node.start("b")
    node.run()
    assert asked == [True, False]


def test_every_pass_renews_the_container_watch(node: FakeNode) -> None:
    """Every pass gives the container watch all cgroups, because the kernel may have dropped inotify watches."""
    asked: list[list[str]] = []
    node.container_watch = FakeWatch(node)
    node.container_watch.follow = lambda cgroups: asked.append(list(cgroups))  # type: ignore[method-assign]
    node.new_agent()
    number = node.start("a")

    node.run(passes=2)

    assert asked == [[node.cgroup(number)]] * 2


@pytest.mark.parametrize("error", [Unavailable("503"), RuntimeError("a bug")])
async def test_failed_report_is_retried(node: FakeNode, error: Exception) -> None:
    """A report that fails or crashes is retried with the newest state, and passes continue."""
    async with serving(node, failures=[error]) as (_, reports):
        await reports.until(lambda state: state.is_synchronised)


async def test_no_report_begins_while_a_pass_works(node: FakeNode) -> None:
    """A report waits until the running pass has ended, then publishes the newest state."""
    node.deploy("a", TWO)
    listed = node.runtime.containers
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> Any:
        begun.set()
        await go_on.wait()
        return await listed()

    async with serving(node) as (agent, reports):
        await reports.until(lambda state: pinned(state) == 1)
        count = len(reports.states)
        node.runtime.containers = slowly  # type: ignore[method-assign]
        agent.trigger.request_pass()
        await begun.wait()
        agent.publisher.submit(replace(reports.states[-1], runtime="new"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(reports.states) == count
        go_on.set()
        await reports.until(lambda _: len(reports.states) > count)


async def test_an_event_about_a_cpu_asks_for_a_look_at_the_machine(node: FakeNode) -> None:
    """A hotplug event causes an immediate read of the machine's CPUs, because the next periodic one may be 10 s away."""
    events = node.machine_watch = FakeMachineWatch()
    async with serving(node) as (agent, reports):
        await reports.until(lambda state: state.is_synchronised)
        events.changed()
        due = {key: due for due, key in agent.trigger.agenda.due()}
        assert due[MACHINE] <= time.monotonic() + SOON_SECONDS


async def test_failed_pass_is_retried(node: FakeNode) -> None:
    """A pass that fails with an I/O error is retried."""
    node.deploy("a", TWO)
    universe = node.machine.universe

    def fail(topology: Topology) -> CPUSet:
        node.machine.universe = universe  # type: ignore[method-assign]
        raise Unavailable(f"no cpuset of {topology.online}")

    node.machine.universe = fail  # type: ignore[method-assign]
    async with serving(node) as (_, reports):
        await reports.until(lambda state: pinned(state) == 1)


@pytest.mark.parametrize("error", [RecursionError("nested"), OSError("no file")], ids=["crash", "failure"])
async def test_failed_look_at_tasks_ends_nothing(node: FakeNode, error: Exception) -> None:
    """If the tasks of a container cannot be read, the pass continues and pins pods that follow."""
    node.deploy("a", TWO)

    def fail(cgroup: str, cpus: CPUSet) -> StrayTasks:
        raise error

    node.cgroups.stray_tasks = fail  # type: ignore[method-assign]
    async with serving(node) as (_, reports):
        await reports.until(lambda state: pinned(state) == 1)
        node.deploy("b", TWO)
        node.pods.changed()
        await reports.until(lambda state: pinned(state) == 2)


def test_nothing_is_done_before_pods_are_known_without_a_checkpoint(node: FakeNode) -> None:
    """Without a checkpoint no cpuset is written until all pods are listed."""
    node.deploy("a", TWO)
    node.pods.complete = False

    assert node.runner.run(node.agent.reconciler.run_pass()) is None
    assert node.cgroups.writes == []


def test_with_a_checkpoint_the_agent_works_while_the_api_is_away(node: FakeNode) -> None:
    """With a checkpoint and no pod list, owners keep their CPUs and new containers do not get them."""
    owner = node.deploy("a", TWO)
    node.run()
    node.documents.clear()
    node.pods.complete = False
    node.new_agent()
    late = node.start("late")
    assert node.runner.run(node.agent.reconciler.run_pass()) is None

    run_later(node, PODS_SECONDS)
    assert (node.cpus(owner), node.cpus(late)) == ("1,5", "0,2-4,6-7")


def test_checkpoint_is_on_disk_before_the_first_write(node: FakeNode) -> None:
    """The checkpoint already has the new CPUs when the first cpuset is written."""
    node.deploy("a", TWO)
    checkpoint = node.folder / "checkpoint.json"
    write = node.cgroups.write

    def checked(cgroup: str, cpus: CPUSet, before: CPUSet = EMPTY) -> None:
        assert '"cpus":"1,5"' in checkpoint.read_text()
        write(cgroup, cpus, before)

    node.cgroups.write = checked  # type: ignore[method-assign]
    node.run()
    assert node.cgroups.writes


def test_checkpoint_is_written_only_when_the_ledger_changes(node: FakeNode) -> None:
    """Starting a container does not rewrite the checkpoint."""
    node.add("a", TWO)
    node.run()
    before = (node.folder / "checkpoint.json").stat().st_mtime_ns
    node.start("a")
    node.run(passes=2)
    assert (node.folder / "checkpoint.json").stat().st_mtime_ns == before


def test_full_disk_stops_every_write(node: FakeNode) -> None:
    """No cpuset is written if the checkpoint cannot be saved."""
    number = node.deploy("a", TWO)
    (node.folder / "checkpoint.new").mkdir()

    with pytest.raises(OSError, match="directory"):
        node.runner.run(node.agent.reconciler.run_pass())
    assert node.cpus(number) == "0-7"


def test_failed_flush_is_followed_by_a_new_save(node: FakeNode) -> None:
    """If the checkpoint cannot be flushed, the next pass saves it again."""
    number = node.deploy("a", TWO)
    (node.folder / "checkpoint.old").mkdir()

    with pytest.raises(OSError, match="directory"):
        node.runner.run(node.agent.reconciler.run_pass())
    assert node.cpus(number) != "0-7"
    first = (node.folder / "checkpoint.json").stat().st_ino

    (node.folder / "checkpoint.old").rmdir()
    node.run()
    assert (node.folder / "checkpoint.json").stat().st_ino != first


def test_reset_resets_the_reporter(node: FakeNode) -> None:
    """Resetting the agent, as at an uninstallation, also resets its reports."""
    reports = Reports()
    agent = node.new_agent(reports)
    node.runner.run(agent.reset())
    assert reports.resets == 1
