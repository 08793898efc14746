"""Which CPUs containers have on a node where the kubelet allocates them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from agent.interfaces import HeldCPUs, RuntimeContainer
from agent.kubelet.observed_cpus import KubeletAssignments
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import Owner, State

OWN, SHARED = CPUSet([2, 3]), CPUSet([0, 1])


@dataclass
class Others:
    """A kubelet and a runtime that say what they are told to."""

    told: Mapping[str, CPUSet] | None = None
    recorded: Mapping[str, CPUSet] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def exclusive(self) -> Mapping[str, CPUSet] | None:
        """Say what the kubelet does."""
        return self.told

    async def recorded_cpus(self, container_ids: Iterable[str]) -> Mapping[str, CPUSet]:
        """Say what the runtime does, and remember who was asked about."""
        self.asked.append(tuple(container_ids))
        return {key: cpus for key, cpus in self.recorded.items() if key in self.asked[-1]}


def container(key: str, *, in_vm: bool = False, state: State = State.RUNNING) -> RuntimeContainer:
    """Return a container of the pod `ns/p` that is called by the first part of its id."""
    name = key.partition("-")[0]
    return RuntimeContainer(key, "u", "ns", "p", name, state, 1, None if in_vm else f"/{key}", in_vm)


def read(
    assignments: KubeletAssignments, *containers: tuple[RuntimeContainer, CPUSet]
) -> dict[str, HeldCPUs]:
    """Return what containers have, by their names."""
    held = asyncio.run(assignments.read(containers))
    assert {owner.pod_uid for owner in held} <= {"u"}
    return {owner.container: found for owner, found in held.items()}


def test_the_kubelets_word_goes_before_the_cgroup() -> None:
    """The kubelet writes a cpuset up to ten seconds late: its own CPUs are a container's whatever confines it now."""
    others = Others({"ns/p/main": OWN, "ns/p/side": EMPTY})
    found = read(
        KubeletAssignments(others, others), (container("main"), SHARED | OWN), (container("side"), SHARED)
    )
    assert found == {"main": HeldCPUs(OWN, is_exclusive=True), "side": HeldCPUs(SHARED, is_exclusive=False)}


def test_what_the_kubelet_does_not_name_is_where_it_is_confined() -> None:
    """Ordinary init containers are not in its answers, and without its socket nobody is."""
    for others in (Others({}), Others(None)):
        found = read(KubeletAssignments(others, others), (container("init"), OWN))
        assert found == {"init": HeldCPUs(OWN, is_exclusive=None)}


def test_of_what_runs_in_a_vm_the_runtime_is_asked() -> None:
    """It has no cgroup of its own on the host; the runtime has what the kubelet sent last, and is asked each time."""
    others = Others({"ns/p/main": OWN, "ns/p/side": EMPTY}, {"side-1": SHARED})
    vm = (container("main-1", in_vm=True), EMPTY), (container("side-1", in_vm=True), EMPTY)
    assignments = KubeletAssignments(others, others)
    assert read(assignments, *vm)["side"] == HeldCPUs(SHARED, is_exclusive=False)
    others.recorded = {"side-1": CPUSet([0])}
    assert read(assignments, *vm)["side"] == HeldCPUs(CPUSet([0]), is_exclusive=False)
    assert others.asked == [("side-1",), ("side-1",)]  # of the kubelet's own word nobody else is asked


def test_nobody_speaks_for_a_container_without_cgroup_record_and_kubelet() -> None:
    """It is left out, as one that has ended is."""
    others = Others()
    ended = container("main", state=State.EXITED)
    assert read(KubeletAssignments(others, others), (container("vm", in_vm=True), EMPTY), (ended, OWN)) == {}


def test_the_kubelets_word_outlives_its_silence() -> None:
    """A kubelet that restarts takes nobody's CPUs; of the next container of the same name nothing is known then."""
    others = Others({"ns/p/main": OWN})
    assignments = KubeletAssignments(others, others)
    read(assignments, (container("main-1"), OWN))
    others.told = None
    assert read(assignments, (container("main-1"), SHARED)) == {"main": HeldCPUs(OWN, is_exclusive=True)}
    assert read(assignments, (container("main-2"), SHARED)) == {"main": HeldCPUs(SHARED, is_exclusive=None)}
    assert read(assignments, (container("main-1"), SHARED)) == {"main": HeldCPUs(SHARED, is_exclusive=None)}


def test_pod_that_was_deleted_by_force_does_not_get_the_cpus_of_the_next() -> None:
    """The kubelet names pods by their names: while two of one name run, what it said of the first counts, and no more."""
    old, new = container("main-1"), replace(container("main-2"), pod_uid="v")
    others = Others({"ns/p/main": OWN})
    assignments = KubeletAssignments(others, others)
    read(assignments, (old, OWN))
    others.told = {"ns/p/main": CPUSet([4, 5])}
    both = asyncio.run(assignments.read([(old, OWN), (new, SHARED)]))
    assert both == {
        Owner("u", "main"): HeldCPUs(OWN, is_exclusive=True),
        Owner("v", "main"): HeldCPUs(SHARED, is_exclusive=None),
    }

    alone = asyncio.run(assignments.read([(new, SHARED)]))
    assert alone == {Owner("v", "main"): HeldCPUs(CPUSet([4, 5]), is_exclusive=True)}


def test_of_two_containers_of_one_name_the_running_one_counts() -> None:
    """A container may be created while the one that it follows still ends."""
    others = Others({})
    created = container("main-2", state=State.CREATED)
    found = read(KubeletAssignments(others, others), (container("main-1"), OWN), (created, SHARED))
    assert found == {"main": HeldCPUs(OWN, is_exclusive=None)}
