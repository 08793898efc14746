"""One pass after the other over a node in memory: who is where afterwards, and what the state says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.errors import AgentError, Refused, Unavailable
from agent.node_state import Path as By
from agent.reconcile.reconciler import Settings
from pinning.contract import KubeletPolicy
from pinning.planning.refusal import Reason
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO, container, pinned_pair
from tests.pinning.world import Wish


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

    pinned = container(node.run(), "a")
    assert pinned.is_pinned
    assert str(pinned.applied) == "1,5"
    assert pinned.numa_nodes == (0,)
    assert pinned.proof.path is By.CGROUP


def test_nothing_changes_when_nothing_changed(node: FakeNode) -> None:
    """A second pass writes nothing and gives an equal state: times only change with content."""
    pinned_pair(node)
    first = node.run()
    node.cgroups.writes.clear()
    node.time.now += 5

    assert node.run() == first
    assert node.cgroups.writes == []


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
    """CPUs belong to the container of the pod, not to refused of its restarts."""
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

    refused = container(state, "a")
    assert refused.refusal.reason is Reason.NOT_ENOUGH
    assert not refused.is_pinned
    assert refused.is_reported


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


def test_reset_gives_every_cpu_back(node: FakeNode) -> None:
    """Uninstalling leaves every container on all CPUs, in the kernel and in the runtime, and no checkpoint."""
    owner, other = pinned_pair(node)

    node.runner.run(node.agent.reset())
    assert (node.cpus(owner), node.cpus(other)) == ("0-7", "0-7")
    assert str(node.records[owner]) == str(node.records[other]) == "0-7"
    assert not (node.folder / "checkpoint.json").exists()
