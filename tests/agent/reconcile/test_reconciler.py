"""Passes over an in-memory node: the CPUs of its containers afterwards, and the published state."""

from __future__ import annotations

import ast
from dataclasses import fields, replace
from pathlib import Path

import pytest

import agent.reconcile
from agent.errors import AgentError, Refused, Unavailable
from agent.node_state import Path as By
from agent.reconcile.container_record import ContainerRecord
from pinning.contract import KubeletPolicy
from pinning.machine.cpuset import CPUSet
from pinning.planning.observed import Owner
from pinning.planning.refusal import Reason
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, pinned_pair
from tests.pinning.world import Wish


def test_running_containers_are_written_in_the_cgroup_before_the_record(node: FakeNode) -> None:
    """For owner and shared container the agent first writes the cgroup and then the runtime's record."""
    owner, other = pinned_pair(node)

    assert (str(node.records[owner]), str(node.records[other])) == ("1,5", "0,2-4,6-7")


def test_observed_containers_name_the_sandbox_of_their_pod(node: FakeNode) -> None:
    """An observed container has the id of its pod's sandbox, by which the planner detects that the pod restarted."""
    number = node.start("a")
    node.containers[number] = replace(node.containers[number], pod_sandbox="s1")
    observed = node.runner.run(node.agent.reconciler.observer.observe())
    assert [(seen.pod_sandbox, seen.sandbox) for seen in observed.containers] == [("s1", "")]


def test_others_leave_before_the_owner_comes(node: FakeNode) -> None:
    """The shared container leaves the CPUs before the owner gets them."""
    owner, other = pinned_pair(node)

    cgroups = [cgroup for cgroup, _ in node.cgroups.writes]
    assert cgroups.index(node.cgroup(other)) < len(cgroups) - 1 - cgroups[::-1].index(node.cgroup(owner))


def test_state_has_the_cpus_that_were_read_back(node: FakeNode) -> None:
    """The state has the CPUs that were read back, their NUMA node, and how they were read."""
    pinned_pair(node)

    pinned = container(node.run(), "a")
    assert pinned.is_pinned
    assert str(pinned.applied) == "1,5"
    assert pinned.numa_nodes == (0,)
    assert pinned.proof.path is By.CGROUP


@pytest.mark.parametrize("is_first", [True, False], ids=["listed first", "listed last"])
def test_pod_counts_and_not_an_earlier_one_of_its_name(node: FakeNode, is_first: bool) -> None:
    """If a pod with the same name was deleted by force, the container belongs to the new pod with its own uid."""
    node.add("a", TWO)
    numbers = [node.start(uid) for uid in (("z", "a") if is_first else ("a", "z"))]
    old, new = numbers if is_first else numbers[::-1]
    node.containers[old] = replace(node.containers[old], pod="pod-a", pid=7)
    state = node.run()
    assert state.first_pids == {"test/pod-a/c0": 1}
    assert state.cgroups == {Owner("a", "c0"): node.cgroup(new), Owner("z", "c0"): node.cgroup(old)}


def test_second_pass_writes_nothing(node: FakeNode) -> None:
    """A second pass without changes writes nothing and returns an equal state."""
    pinned_pair(node)
    first = node.run()
    node.cgroups.writes.clear()
    node.time.now += 5

    assert node.run() == first
    assert node.cgroups.writes == []


@pytest.mark.parametrize("error", [Refused("EIO"), Unavailable("EIO")], ids=["refused", "unavailable"])
def test_cgroup_that_cannot_be_read_does_not_end_the_pass(node: FakeNode, error: AgentError) -> None:
    """A container whose cgroup cannot be read is not reported as pinned, and other containers still leave its CPUs."""
    node.add("a", TWO)
    node.add("b", PLAIN)
    unreadable, fine = node.start("a"), node.start("b")
    node.cgroups.unreadable[node.cgroup(unreadable)] = error
    state = node.run()

    assert node.cpus(fine) == "0,2-4,6-7"
    assert not container(state, "a").is_pinned


def test_running_container_without_a_cgroup_on_the_host_keeps_its_cpus(node: FakeNode) -> None:
    """A running container without a cgroup on the host keeps its CPUs until its cgroup could be read once."""
    node.add("a", TWO)
    node.add("b", PLAIN)
    owner, other = node.start("a"), node.start("b")
    unread = node.cpusets.pop(node.cgroup(owner))
    node.run()
    del node.documents["a"]
    node.run(2)
    assert node.cpus(other) == "0,2-4,6-7"

    node.cpusets[node.cgroup(owner)] = unread
    node.run()
    del node.cpusets[node.cgroup(owner)]
    node.run()
    assert node.cpus(other) == "0-7"


def test_pod_that_left_the_api_keeps_its_cpus_while_it_runs(node: FakeNode) -> None:
    """A pod that was deleted by force keeps its CPUs until its container has ended."""
    owner, other = pinned_pair(node)
    del node.documents["a"]
    node.run()
    assert node.cpus(owner) == "1,5"

    node.stop(owner)
    node.run()
    assert node.cpus(other) == "0-7"


def test_restarted_container_gets_its_cpus_again(node: FakeNode) -> None:
    """A restarted container gets the CPUs that its pod holds."""
    owner, _ = pinned_pair(node)
    node.stop(owner)
    node.run()
    again = node.start("a")
    node.run()

    assert node.cpus(again) == "1,5"


def test_refused_claim_is_reported_and_not_pinned(node: FakeNode) -> None:
    """A request for more CPUs than are free is reported as refused and not as pinned."""
    node.deploy("a", Wish("7", policy="exclusive"))
    state = node.run()

    refused = container(state, "a")
    assert refused.refusal.reason is Reason.NOT_ENOUGH
    assert not refused.is_pinned
    assert refused.is_reported


def test_static_kubelet_makes_the_agent_observe(node: FakeNode, tmp_path: Path) -> None:
    """Under the kubelet's static policy the agent writes nothing and refuses every claim."""
    state_file = tmp_path / "cpu_manager_state"
    state_file.write_text('{"policyName":"static","defaultCpuSet":"0-7","checksum":1}')
    node.restart(node.config, state_file)
    node.deploy("a", TWO)
    state = node.run()

    assert state.kubelet is KubeletPolicy.STATIC
    assert state.observes
    assert node.cgroups.writes == node.runtime.calls[1:] == []
    assert container(state, "a").refusal.reason is Reason.OBSERVING


def test_reset_gives_containers_every_cpu(node: FakeNode) -> None:
    """Reset gives every container all CPUs, in the kernel and the runtime, and deletes the checkpoint."""
    owner, other = pinned_pair(node)

    node.runner.run(node.agent.reset())
    assert (node.cpus(owner), node.cpus(other)) == ("0-7", "0-7")
    assert str(node.records[owner]) == str(node.records[other]) == "0-7"
    assert not (node.folder / "checkpoint.json").exists()


@pytest.mark.parametrize("observe", [False, True], ids=["static kubelet", "configured"])
def test_reset_leaves_cpusets_of_another_program(node: FakeNode, tmp_path: Path, observe: bool) -> None:
    """A reset does not change cpusets that the agent did not write, because the kubelet would not restore its own."""
    state_file = tmp_path / "cpu_manager_state"
    policy = "none" if observe else "static"
    state_file.write_text(f'{{"policyName":"{policy}","defaultCpuSet":"0-7","checksum":1}}')
    node.restart(replace(node.config, observe=observe), state_file)
    number = node.deploy("a", PLAIN)
    node.cpusets[node.cgroup(number)] = node.records[number] = CPUSet.parse("2-3")
    node.run()
    before = len(node.runtime.calls)

    node.runner.run(node.agent.reset())
    assert (node.cpus(number), str(node.records[number])) == ("2-3", "2-3")
    assert node.cgroups.writes == node.runtime.calls[before:] == []
    assert not (node.folder / "checkpoint.json").exists()


def test_reset_gives_back_what_was_pinned_before_the_agent_observed(node: FakeNode) -> None:
    """A reset restores all CPUs to containers that were pinned before the agent became an observing one."""
    owner, other = pinned_pair(node)
    node.restart(replace(node.config, observe=True))
    node.run()

    node.runner.run(node.agent.reset())
    assert (node.cpus(owner), node.cpus(other)) == ("0-7", "0-7")


MODULES = sorted(Path(agent.reconcile.__path__[0]).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_only_the_record_assigns_its_fields(path: Path) -> None:
    """Only methods of the container record assign its fields; no other module of `agent.reconcile` does."""
    names = {field.name for field in fields(ContainerRecord)}
    assigned = {
        ast.unparse(node)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in names
        if ast.unparse(node.value) != "self"
    }

    assert assigned == set()
