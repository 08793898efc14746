"""Published resources never offer a held core, under any sequence of create, resize, edit and delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agent.node_state import NodeState
from agent.report.extended_resources import RESOURCES, node_resources
from agent.report.numa_cpus import zone_cpus
from pinning.machine.cpuset import CPUSet
from pinning.planning.ledger import Ledger
from pinning.planning.node_config import NodeConfig, StaticPools
from pinning.planning.requests import requested
from pinning.pods.phase import is_final
from pinning.pods.resources import members
from pinning.pods.types import Pod
from tests.agent.states import EXCLUSIVE, ISOLATE, bound, state_of
from tests.pinning.nodes import smt_machine
from tests.pods import CORES, OTHER_CORES, container

ISOLATED = "corepin.io/isolated-cores"
WHOLE, NUMA = "corepin.io/whole-cores", "corepin.io/numa-cpus"
REQUIRE = {"smt-policy.corepin.io/pod": "require"}
OF_M = "smt-policy.corepin.io/container.m"
SINGLE = {**EXCLUSIVE, "numa-policy.corepin.io/pod": "single"}
SMALL = smt_machine(4)  # core 0 is reserved
ISOLCPUS = smt_machine(8, isolated="5-7,13-15")
NODES = (
    (ISOLCPUS, None),
    (ISOLCPUS, StaticPools(exclusive_cores=2, exclusive_non_isolcpus=CPUSet([2]))),
    (smt_machine(4, isolated="0-1,4-5"), None),  # the reserved core is isolated
    (smt_machine(6, sockets=2, threads=1), None),
    (smt_machine(6, sockets=2, threads=1), StaticPools(exclusive_cores=3, shared_cores=1)),
)
WORDS = ("isolate", "require", "prefer")
CORE_COUNTS = tuple(name for name in RESOURCES if name != NUMA)
COUNTS = st.lists(st.integers(1, 3), min_size=1, max_size=3)


def isolated(name: str, *cpus: int, charged: int = 2, **more: Any) -> Pod:
    """Return a pod with containers of these CPUs, each counted by the scheduler as `charged` cores."""
    listed = [container(f"c{at}", {"cpu": count, ISOLATED: charged}) for at, count in enumerate(cpus)]
    return bound(name, *listed, annotations=ISOLATE, **more)


def claimed(pods: list[Pod], resource: str) -> int:
    """Return the scheduler's sum of requests for the pods."""
    return sum(requested(members(pod), resource) for pod in pods if not is_final(pod))


def free(state: NodeState, resource: str) -> int:
    """Count the free cores, or CPUs, of a resource's pool one by one."""
    if resource == NUMA:
        pool = state.sets.pools.exclusive & state.sets.topology.online
        return sum(cpu not in state.ledger.held for cpu in pool)
    count = 0
    for core in state.sets.topology.cores:
        cpus = core.cpus & state.sets.topology.online
        pools = state.sets.pools
        inside = pools.non_isolcpus if resource == OTHER_CORES else pools.exclusive
        count += bool(cpus) and not cpus - inside and not cpus & state.ledger.held
    return count


def offered(state: NodeState, pods: list[Pod]) -> Mapping[str, int]:
    """Return the amounts that the scheduler would still place."""
    published = node_resources(state, pods)
    assert published
    return {name: number - claimed(pods, name) for name, number in published.items()}


@pytest.mark.parametrize(
    ("before", "after", "numbers"),
    [
        pytest.param([2], [3], (2, 0), id="a core more than the scheduler counts"),
        pytest.param([2], [2], (3, 1), id="as many"),
        pytest.param([2], [1], (3, 1), id="a core less: it stays counted for the pod"),
        pytest.param([2], [4], (3, 1), id="more than there is: it keeps what it has"),
        pytest.param(
            [1, 2], [2, 1], (4, 0), id="what one holds more does not make up for what another holds less"
        ),
    ],
)
def test_resized_isolated_pods(before: list[int], after: list[int], numbers: tuple[int, int]) -> None:
    """Published and offered cores after a resize of a pod on a node with three cores."""
    first = state_of(isolated("a", *before), machine=SMALL)
    pods = [isolated("a", *after)]
    state = state_of(*pods, machine=SMALL, ledger=first.ledger)
    published = node_resources(state, pods)
    assert published
    assert (published[ISOLATED], offered(state, pods)[ISOLATED]) == numbers


def budgeted(*containers: Any, words: Mapping[str, str] = ISOLATE) -> Pod:
    """Return a pod with a budget of four CPUs."""
    document = bound("a", *containers, annotations=words)
    amounts: Any = {kind: {"cpu": "4"} for kind in ("limits", "requests")}
    return {**document, "spec": {**(document["spec"] or {}), "resources": amounts}}


@pytest.mark.parametrize(
    ("pods", "resource"),
    [
        pytest.param([budgeted(container("m", {ISOLATED: 4}))], ISOLATED, id="on its only container"),
        pytest.param(
            [budgeted(container("proxy"), container("m", {ISOLATED: 4}))],
            ISOLATED,
            id="another container is in front of the one that requests the pool",
        ),
        pytest.param(
            [budgeted(container("proxy"), container("m", {NUMA: 4}), words=SINGLE)],
            NUMA,
            id="of one NUMA node",
        ),
        pytest.param(
            [
                budgeted(container("m", {"cpu": 3, ISOLATED: 3}), container("log", {ISOLATED: 1})),
                budgeted(container("m", {"cpu": 1, ISOLATED: 3}), container("log", {ISOLATED: 1})),
            ],
            ISOLATED,
            id="the pool got CPUs of a slice",
        ),
        pytest.param(
            [budgeted(container("m", {"cpu": 1, ISOLATED: 1, WHOLE: 2}), words={**REQUIRE, OF_M: "isolate"})],
            WHOLE,
            id="on a slice under another policy",
        ),
        pytest.param([budgeted(container("m", {CORES: 1, ISOLATED: 4}))], ISOLATED, id="beside cores of CMK"),
        pytest.param(
            [budgeted(container("m", {CORES: 1, NUMA: 6}), words=SINGLE)],
            NUMA,
            id="beside cores of CMK on the same NUMA node",
        ),
    ],
)
def test_the_parts_of_a_budget_are_counted_together(pods: list[Pod], resource: str) -> None:
    """Free cores stay published, whichever container of a pod with a budget requests the pool's count."""
    machine = smt_machine(8)
    state = state_of(machine=machine, ledger=Ledger())
    for pod in pods:
        state = state_of(pod, machine=machine, ledger=state.ledger)
    assert not state.refusals
    rest = len(state.free & state.exclusive_pool) if resource == NUMA else free(state, resource)
    assert 0 < rest == offered(state, pods[-1:])[resource]


def test_containers_that_reuse_cores_are_not_counted_twice() -> None:
    """Cores that an init and a main container use in turn count once."""
    pod = bound("a", container("main", {CORES: 2}))
    spec = {**(pod["spec"] or {}), "initContainers": [container("init", {CORES: 2})]}
    pods: list[Pod] = [{**pod, "spec": spec}]  # type: ignore[typeddict-item]
    state = state_of(*pods, machine=SMALL)
    assert node_resources(state, pods) == {CORES: 3, OTHER_CORES: 1, ISOLATED: 1, WHOLE: 1, NUMA: 2}


def test_a_bound_pod_is_counted_before_it_is_pinned() -> None:
    """A bound pod that the last pass has not seen reduces the offered cores."""
    pods = [isolated("a", 2)]
    assert offered(state_of(machine=SMALL), pods)[ISOLATED] == 1


def test_the_last_shared_core_is_not_offered() -> None:
    """If the reserved core is isolated, one free core is not offered, because shared containers need it."""
    machine = smt_machine(4, isolated="0,4")
    config = NodeConfig(reserved=CPUSet([0]))
    state = state_of(machine=machine, config=config)
    assert offered(state, []) == {**dict.fromkeys(RESOURCES, 2), NUMA: 5}
    for count, refused in ((2, False), (3, True)):
        assert bool(state_of(isolated("a", count), machine=machine, config=config).refusals) == refused
    pods = [isolated("a", 2)]
    assert offered(state_of(*pods, machine=machine, config=config), pods)[ISOLATED] == 0


def test_the_last_cpu_beside_a_strict_reserve_is_not_offered() -> None:
    """With a strict reserve one free CPU is not offered, because shared containers need it."""
    config = NodeConfig(reserved=CPUSet([0]), strict_reserved=True)
    state = state_of(machine=smt_machine(4), config=config)
    assert offered(state, []) == {**dict.fromkeys(RESOURCES, 2), NUMA: 5}
    assert [zone.free for zone in zone_cpus(state)] == [5]


class Cluster(RuleBasedStateMachine):
    """A scheduler that trusts one node's numbers, with resized, edited and unscheduled pods."""

    @initialize(node=st.integers(0, len(NODES) - 1), spread=st.booleans())
    def boot(self, node: int, spread: bool) -> None:
        """Start with an empty node."""
        self.machine, pools = NODES[node]
        reserved, sort = CPUSet([0]), "spread" if spread else "packed"
        self.config = NodeConfig(reserved=reserved, sort=sort, pools=pools)  # type: ignore[arg-type]
        self.pods: dict[str, Pod] = {}
        self.count = 0
        self.state = state_of(machine=self.machine, config=self.config, ledger=Ledger())

    def settle(self) -> None:
        """Run the planner on the previous ledger."""
        self.state = state_of(
            *self.pods.values(), machine=self.machine, config=self.config, ledger=self.state.ledger
        )

    def add(self, pod: Pod) -> None:
        """Bind a pod and check that the offer drops by its requests before the agent sees it."""
        before = offered(self.state, [*self.pods.values()])
        self.pods[(pod["metadata"] or {})["name"] or ""] = pod
        pods = [*self.pods.values()]
        for name, rest in offered(self.state, pods).items():
            assert rest <= max(0, before[name] - requested(members(pod), name))
        self.settle()

    def picked(self, at: int) -> list[str]:
        """Return the name of one of the pods, or an empty list."""
        names = sorted(self.pods)
        return [names[at % len(names)]] if names else []

    def name(self) -> str:
        """Return a new name; names sort by the pods' age."""
        self.count += 1
        return f"p{self.count:03}"

    @rule(counts=COUNTS, resource=st.sampled_from(CORE_COUNTS), init=st.booleans(), scheduled=st.booleans())
    def create(self, counts: list[int], resource: str, init: bool, scheduled: bool) -> None:
        """Create a pod of whole cores; a scheduled one must get all of them."""
        amounts = [
            {"cpu": number * (self.machine.smt if resource == WHOLE else 1), resource: number}
            if resource in {ISOLATED, WHOLE}
            else {resource: number}
            for number in counts
        ]
        words = REQUIRE if resource == WHOLE else ISOLATE
        listed = [container(f"c{at}", amount) for at, amount in enumerate(amounts)]
        pod = bound(self.name(), *listed[init and len(listed) > 1 :], annotations=words)
        spec = {**(pod["spec"] or {}), "initContainers": listed[: init and len(listed) > 1]}
        pod = {**pod, "spec": spec}  # type: ignore[typeddict-item]
        fits = requested(members(pod), resource) <= offered(self.state, [*self.pods.values()])[resource]
        if scheduled and not fits:
            return
        self.add(pod)
        if fits:
            assert not [
                refusal for refusal in self.state.refusals if refusal.owner.pod_uid == f"p{self.count:03}"
            ]

    @rule(cpus=st.integers(1, 7))
    def create_of_one_node(self, cpus: int) -> None:
        """Create a pod for one NUMA node; it gets its CPUs only if one node has enough free."""
        fits = cpus <= max(zone.free for zone in zone_cpus(self.state))
        self.add(bound(self.name(), container("c0", {"cpu": cpus, NUMA: cpus}), annotations=SINGLE))
        refused = f"p{self.count:03}" in {refusal.owner.pod_uid for refusal in self.state.refusals}
        takes_shared_ones_first = self.state.sets.reserved <= self.state.topology.isolated
        assert refused != fits or takes_shared_ones_first

    @rule(cpus=st.integers(1, 5))
    def create_uncounted(self, cpus: int) -> None:
        """Create a pod with CPUs that the scheduler does not count as cores."""
        self.add(bound(self.name(), container("c0", cpus), annotations=EXCLUSIVE))

    @rule(at=st.integers(0, 9), cpus=st.integers(1, 6), word=st.sampled_from(WORDS))
    def change(self, at: int, cpus: int, word: str) -> None:
        """Resize all containers of a pod and edit its policy."""
        for name in self.picked(at):
            pod: Any = self.pods[name]
            listed = [
                {**declared, "resources": {"limits": {**declared["resources"]["limits"], "cpu": cpus}}}
                for declared in pod["spec"]["containers"]
            ]
            words = {"cpu-manager.corepin.io/pod": "exclusive"} if cpus % 2 and word == "prefer" else {}
            metadata = {**pod["metadata"], "annotations": {"smt-policy.corepin.io/pod": word, **words}}
            spec = {**pod["spec"], "containers": listed}
            changed: Any = {**pod, "metadata": metadata, "spec": spec}
            self.pods[name] = changed
        self.settle()

    @rule(at=st.integers(0, 9), phase=st.sampled_from(["", "Succeeded"]))
    def end(self, at: int, phase: str) -> None:
        """Delete a pod or finish it."""
        for name in self.picked(at):
            if phase:
                self.pods[name] = {**self.pods[name], "status": {"phase": phase}}
            else:
                del self.pods[name]
        self.settle()

    @invariant()
    def no_held_core_is_offered(self) -> None:
        """Check that no held core is offered, and that without claims every free one is."""
        pods = [*self.pods.values()]
        for name, rest in offered(self.state, pods).items():
            unheld = free(self.state, name)
            assert 0 <= rest <= unheld
            if not claimed(pods, name):
                assert rest >= unheld - (self.state.sets.reserved <= self.state.topology.isolated)


Cluster.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestCluster = Cluster.TestCase
