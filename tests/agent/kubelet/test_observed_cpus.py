"""CPUs of containers on a node where the kubelet allocates them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.interfaces import HeldCPUs, RuntimeContainer
from agent.kubelet.observed_cpus import KubeletAssignments
from agent.kubelet.policy import MEMORY_STATE, MountedState, read_kubelet_policy, versions
from pinning.contract import KubeletPolicy
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


CPU_STATE = "cpu_manager_state"


@pytest.mark.parametrize("name", [CPU_STATE, MEMORY_STATE])
def test_every_write_of_the_kubelet_changes_the_versions(tmp_path: Path, name: str) -> None:
    """A file that appears, is replaced or disappears has another version, and none otherwise."""
    state = tmp_path / CPU_STATE
    seen = [versions(state)]
    for _ in range(2):
        new = tmp_path / "new"
        new.write_text('{"policyName":"none"}')
        new.rename(tmp_path / name)
        seen += [versions(state), versions(state)]
    (tmp_path / name).unlink()
    seen.append(versions(state))

    absent, first, again, other, other_again, gone = seen
    assert absent == gone == (None, None)
    assert first == again != other == other_again
    assert first != absent != other


@pytest.mark.parametrize(
    ("policy", "change", "ends"),
    [
        pytest.param("none", "replaced", True, id="the policy of before said none"),
        pytest.param("none", "removed", True, id="a kubelet that is about to start"),
        pytest.param(
            "odd", "replaced", False, id="a form that no agent knows: starting again would not help"
        ),
        pytest.param("none", "unchanged", False, id="unchanged"),
        pytest.param("static", "replaced", False, id="static: replaced with every pod"),
    ],
)
def test_agent_ends_when_its_mounted_state_file_is_replaced(
    tmp_path: Path, policy: str, change: str, *, ends: bool
) -> None:
    """The mount keeps the removed file, so the agent ends to read the new one, unless it was static."""
    command = ["unshare", "--mount", sys.executable, "-m", "tests.agent.kubelet.mounted"]
    result = subprocess.run(
        [*command, tmp_path, policy, change], check=True, capture_output=True, text=True, timeout=240
    )

    file = tmp_path / CPU_STATE
    problem = (
        f"{file}: the kubelet has replaced this file since it was mounted, so its policy may have changed"
    )
    remedy = "the agent exits, and reads the new file at its next start"
    assert result.stdout.strip() == (f"{problem}: {remedy}" if ends else "worked on")


def test_state_files_in_a_mounted_folder_are_read_again(tmp_path: Path) -> None:
    """If the whole folder is mounted a replaced file is read, and the agent does not end."""
    for name in (CPU_STATE, MEMORY_STATE):
        (tmp_path / name).write_text('{"policyName":"none"}')
    mounted = MountedState(tmp_path / CPU_STATE)
    for name in (CPU_STATE, MEMORY_STATE):
        (tmp_path / "new").write_text('{"policyName":"static"}')
        (tmp_path / "new").rename(tmp_path / name)

    assert mounted.replaced() == ""
    assert read_kubelet_policy(tmp_path / CPU_STATE) is KubeletPolicy.STATIC


def test_file_without_a_link_count_does_not_end_the_agent(tmp_path: Path) -> None:
    """On a file system without link counts the agent would otherwise end at once."""
    state = tmp_path / CPU_STATE
    state.write_text('{"policyName":"none"}')
    with state.open() as file:
        state.unlink()
        assert MountedState(Path(f"/proc/self/fd/{file.fileno()}")).replaced() == ""
