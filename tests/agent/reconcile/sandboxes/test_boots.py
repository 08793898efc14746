"""The agent confines booting virtual machines to the shared CPUs before it assigns the other CPUs to a container."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from agent.vm_interfaces import BootScope, ConfinedBoot
from pinning.contract import UNTRUSTED_WORKLOAD
from pinning.machine.cpuset import CPUSet
from pinning.planning.node_config import NodeConfig
from pinning.planning.observed import Owner
from tests.agent.fake_watch import FakeWatch
from tests.agent.fakes import FakeNode
from tests.agent.reconcile.scenes import PLAIN, TWO

METRIC = "corepin_agent_vm_boot_exposed_seconds_total"


@dataclass
class FakeBoots:
    """A machine that boots on all CPUs until it is confined (interface `BootingMachines`)."""

    node: FakeNode
    cpus: CPUSet = field(default_factory=lambda: CPUSet.parse("0-7"))
    calls: list[tuple[BootScope, str]] = field(default_factory=list)

    def confine(self, scope: BootScope, cpus: CPUSet) -> tuple[ConfinedBoot, ...]:
        """Confine the machine to the CPUs; return it if it had run on others."""
        self.calls.append((scope, str(cpus)))
        before, self.cpus = self.cpus, self.cpus & cpus or cpus
        return (ConfinedBoot(7, before, 2.0),) if not before <= cpus else ()

    def check(self) -> None:
        """After each cgroup write, check that the booting machine does not run on CPUs of an owner."""
        for cgroup, owned in self.node.owners.items():
            if self.node.cpusets.get(cgroup) == owned:
                assert not self.cpus & owned


@pytest.fixture
def boots(node: FakeNode) -> FakeBoots:
    """Return a machine that boots on the agent's node."""
    boots = node.boots = FakeBoots(node)
    node.new_agent()
    return boots


def kata_pod(node: FakeNode, uid: str = "k") -> None:
    """Create a pod with a runtime class on the node."""
    node.add(uid, PLAIN)
    node.documents[uid]["spec"]["runtimeClassName"] = "kata"


def exposed(node: FakeNode) -> float:
    """Return the seconds of exposure in the metric."""
    return node.agent.reconciler.metrics.registry.get_sample_value(METRIC) or 0.0


def test_machine_leaves_before_an_owner_gets_its_cpus(
    node: FakeNode, boots: FakeBoots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CPUs 1,5 are assigned only after the booting machine is confined to the shared CPUs."""
    kata_pod(node)
    node.add("a", TWO)
    node.owners = {node.cgroup(node.start("a")): CPUSet.parse("1,5")}
    monkeypatch.setattr(node, "check", boots.check)
    node.run()
    assert str(boots.cpus) == "0,2-4,6-7"
    assert boots.calls[0] == (BootScope(frozenset({"k"}), frozenset(), frozenset({"/kubepods"})), "0,2-4,6-7")


def test_machine_leaves_before_nri_grants_its_cpus(node: FakeNode, boots: FakeBoots) -> None:
    """When NRI gets a table that assigns CPUs, the booting machine has already left those CPUs."""
    node.container_watch = watch = FakeWatch(node)
    node.new_agent()
    kata_pod(node)
    node.run()
    assert str(boots.cpus) == "0-7"
    node.add("a", TWO)
    grants: list[tuple[str, str]] = []

    def published() -> None:
        table = watch.tables[-1]
        assert table is not None
        start = table.start(Owner("a", "c0"), claims=True)
        assert not isinstance(start, str)
        grants.append((str(start.own), str(boots.cpus)))

    watch.published = published
    node.run()
    assert grants == [("1,5", "0,2-4,6-7")] * len(grants) != []


def test_time_on_cpus_of_owners_is_counted_once(node: FakeNode, boots: FakeBoots) -> None:
    """The 2 s before the machine was confined are counted as exposure once; later passes add nothing."""
    node.deploy("a", TWO)
    node.run()
    kata_pod(node)
    node.run(3)
    assert exposed(node) == 2.0


def test_no_exposure_without_owners(node: FakeNode, boots: FakeBoots) -> None:
    """A machine that boots on shared CPUs exposes no owner."""
    kata_pod(node)
    node.run()
    assert exposed(node) == 0.0


def test_machine_that_was_not_found_while_it_booted_is_counted(node: FakeNode) -> None:
    """If a new sandbox gets READY on all CPUs its run time is exposure; that of one older than the agent is not."""
    node.deploy("a", TWO)
    node.kata.boot("old")
    node.run()
    assert exposed(node) == 0.0
    node.kata.boot("k")
    node.run(2)
    assert exposed(node) == 100.0


@pytest.mark.parametrize("ready", ["sandbox", "container"])
def test_ready_pod_ends_the_search_for_its_machine(node: FakeNode, boots: FakeBoots, ready: str) -> None:
    """The search ends when the pod's sandbox, or a container of it on the host, is listed."""
    kata_pod(node)
    node.run()
    calls = len(boots.calls)
    if ready == "sandbox":
        node.kata.boot("k")
    else:
        node.start("k")
    node.run()
    assert (len(boots.calls), node.agent.reconciler.boots.is_wanted) == (calls, False)


def test_pod_without_runtime_class_is_not_looked_for(node: FakeNode, boots: FakeBoots) -> None:
    """The agent searches no machine for a pod without a runtime class."""
    node.add("b", PLAIN)
    node.run()
    assert boots.calls == []


@pytest.mark.parametrize(("value", "is_wanted"), [("true", True), ("True", False), ("", False)])
def test_pod_of_an_untrusted_workload_is_looked_for(
    node: FakeNode, boots: FakeBoots, value: str, *, is_wanted: bool
) -> None:
    """By this annotation containerd uses another handler without a runtime class, which may start a machine."""
    node.add("b", PLAIN)
    node.documents["b"]["metadata"]["annotations"] = {UNTRUSTED_WORKLOAD: value}
    node.run()
    assert [scope.pods for scope, _ in boots.calls] == [frozenset("b")] * 2 * is_wanted


def test_machine_is_looked_for_after_its_user_removed_the_annotation(
    node: FakeNode, boots: FakeBoots
) -> None:
    """The runtime may have started the machine with the annotation, so its removal does not end the search."""
    node.add("b", PLAIN)
    node.documents["b"]["metadata"]["annotations"] = {UNTRUSTED_WORKLOAD: "true"}
    node.run()
    node.documents["b"]["metadata"]["annotations"] = {}
    node.run()
    assert node.agent.reconciler.boots.is_wanted
    assert boots.calls[-1][0].pods == frozenset("b")
    node.start("b")
    node.run()
    assert not node.agent.reconciler.boots.is_wanted


def test_observe_mode_confines_nothing(node: FakeNode, boots: FakeBoots) -> None:
    """An agent that observes does not confine booting machines."""
    node.settings = type(node.settings)("node-1", NodeConfig(observe=True))
    node.new_agent()
    kata_pod(node)
    node.run()
    assert boots.calls == []


def test_confining_writes_no_cpuset(node: FakeNode, boots: FakeBoots) -> None:
    """The agent confines a booting machine only by affinities, because a cpuset write would look like a foreign write."""
    kata_pod(node)
    node.run()
    writes = len(node.cgroups.writes)
    state = node.run()
    assert (len(node.cgroups.writes), state.conflicts, state.failures) == (writes, (), ())


def test_machine_that_never_gets_ready_ends_the_search_with_its_pod(node: FakeNode, boots: FakeBoots) -> None:
    """If a machine never gets READY, the search for it ends when its pod is deleted."""
    kata_pod(node)
    node.run()
    assert node.agent.reconciler.boots.is_wanted
    del node.documents["k"]
    node.run()
    assert not node.agent.reconciler.boots.is_wanted
