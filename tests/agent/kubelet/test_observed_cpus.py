"""CPUs of containers on a node where the kubelet allocates them."""

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
    """A fake kubelet and a fake runtime."""

    kubelet_cpus: Mapping[str, CPUSet] | None = None
    recorded: Mapping[str, CPUSet] = field(default_factory=dict)
    asked: list[tuple[str, ...]] = field(default_factory=list)

    async def exclusive(self) -> Mapping[str, CPUSet] | None:
        """Return the kubelet's CPUs."""
        return self.kubelet_cpus

    async def recorded_cpus(self, container_ids: Iterable[str]) -> Mapping[str, CPUSet]:
        """Return the runtime's CPUs and record the requested ids."""
        self.asked.append(tuple(container_ids))
        return {key: cpus for key, cpus in self.recorded.items() if key in self.asked[-1]}


def container(key: str, *, in_vm: bool = False, state: State = State.RUNNING) -> RuntimeContainer:
    """Return a container of pod `ns/p`, named by the first part of its id."""
    name = key.partition("-")[0]
    return RuntimeContainer(key, "u", "ns", "p", name, state, 1, None if in_vm else f"/{key}", in_vm)


def read(
    assignments: KubeletAssignments, *containers: tuple[RuntimeContainer, CPUSet]
) -> dict[str, HeldCPUs]:
    """Return the CPUs by container name."""
    held = asyncio.run(assignments.read(containers))
    assert {owner.pod_uid for owner in held} <= {"u"}
    return {owner.container: found for owner, found in held.items()}


def test_kubelets_cpus_are_preferred_to_the_cgroups() -> None:
    """The kubelet writes cpusets up to ten seconds late, so the CPUs that it reports count."""
    others = Others({"ns/p/main": OWN, "ns/p/side": EMPTY})
    found = read(
        KubeletAssignments(others, others), (container("main"), SHARED | OWN), (container("side"), SHARED)
    )
    assert found == {"main": HeldCPUs(OWN, is_exclusive=True), "side": HeldCPUs(SHARED, is_exclusive=False)}


def test_container_unknown_to_the_kubelet_has_its_cpuset() -> None:
    """Init containers, and all containers without the kubelet's socket, have their cpuset."""
    for others in (Others({}), Others(None)):
        found = read(KubeletAssignments(others, others), (container("init"), OWN))
        assert found == {"init": HeldCPUs(OWN, is_exclusive=None)}


def test_cpus_of_a_container_in_a_vm_come_from_the_runtime() -> None:
    """A container in a VM has no cgroup on the host, so the runtime is asked each time."""
    others = Others({"ns/p/main": OWN, "ns/p/side": EMPTY}, {"side-1": SHARED})
    vm = (container("main-1", in_vm=True), EMPTY), (container("side-1", in_vm=True), EMPTY)
    assignments = KubeletAssignments(others, others)
    assert read(assignments, *vm)["side"] == HeldCPUs(SHARED, is_exclusive=False)
    others.recorded = {"side-1": CPUSet([0])}
    assert read(assignments, *vm)["side"] == HeldCPUs(CPUSet([0]), is_exclusive=False)
    # The cpuset of a container is not used if the kubelet reports its CPUs.
    assert others.asked == [("side-1",), ("side-1",)]


def test_container_without_any_source_is_left_out() -> None:
    """A container without cgroup, runtime record and kubelet is left out, and so is an exited one."""
    others = Others()
    ended = container("main", state=State.EXITED)
    assert read(KubeletAssignments(others, others), (container("vm", in_vm=True), EMPTY), (ended, OWN)) == {}


def test_kubelets_cpus_are_kept_while_it_is_silent() -> None:
    """While the kubelet restarts a container keeps its reported CPUs, until a new container replaces it."""
    others = Others({"ns/p/main": OWN})
    assignments = KubeletAssignments(others, others)
    read(assignments, (container("main-1"), OWN))
    others.kubelet_cpus = None
    assert read(assignments, (container("main-1"), SHARED)) == {"main": HeldCPUs(OWN, is_exclusive=True)}
    assert read(assignments, (container("main-2"), SHARED)) == {"main": HeldCPUs(SHARED, is_exclusive=None)}
    assert read(assignments, (container("main-1"), SHARED)) == {"main": HeldCPUs(SHARED, is_exclusive=None)}


def test_deleted_pod_does_not_get_the_cpus_of_its_successor() -> None:
    """While two pods of the same name run, the kubelet's earlier answer counts for the first only."""
    old, new = container("main-1"), replace(container("main-2"), pod_uid="v")
    others = Others({"ns/p/main": OWN})
    assignments = KubeletAssignments(others, others)
    read(assignments, (old, OWN))
    others.kubelet_cpus = {"ns/p/main": CPUSet([4, 5])}
    both = asyncio.run(assignments.read([(old, OWN), (new, SHARED)]))
    assert both == {
        Owner("u", "main"): HeldCPUs(OWN, is_exclusive=True),
        Owner("v", "main"): HeldCPUs(SHARED, is_exclusive=None),
    }

    alone = asyncio.run(assignments.read([(new, SHARED)]))
    assert alone == {Owner("v", "main"): HeldCPUs(CPUSet([4, 5]), is_exclusive=True)}


def test_running_container_counts_among_two_of_one_name() -> None:
    """A container may be created while its predecessor is still ending."""
    others = Others({})
    created = container("main-2", state=State.CREATED)
    found = read(KubeletAssignments(others, others), (container("main-1"), OWN), (created, SHARED))
    assert found == {"main": HeldCPUs(OWN, is_exclusive=None)}
