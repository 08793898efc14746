"""CPUs of containers from the kubelet's PodResources API, and invalid answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import grpc
import pytest

from agent.interfaces import HeldCPUs, RuntimeContainer
from agent.kubelet.observed_cpus import KubeletAssignments
from agent.kubelet.pod_resources import PodResources, agreed, own_cpus, socket_beside
from agent.kubelet.podresources_pb2 import ListPodResourcesResponse
from agent.kubelet.podresources_pb2 import PodResources as Pod
from agent.kubelet.policy import MEMORY_STATE, MountedState, read_kubelet_policy, versions
from pinning.contract import KubeletPolicy
from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, MAX_CPU, CPUSet
from pinning.planning.observed import Owner, State
from tests.agent.kubelet.fake_kubelet import FakeKubelet, pod

SILENT = "the kubelet does not report which CPUs it assigned"
ONE = pod("a", {"main": [2, 3]})


@asynccontextmanager
async def kubelet(tmp_path: Path, seconds: float = 0.1) -> AsyncIterator[tuple[FakeKubelet, PodResources]]:
    """Yield a kubelet that does not serve yet, and a client with a timeout in seconds."""
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    yield fake, PodResources(fake.socket, timeout_seconds=seconds)


def exclusive(*pods: Pod) -> dict[str, str]:
    """Return the CPUs parsed from an answer, by container."""
    named = chain.from_iterable(own_cpus(each) for each in pods)
    return {name: str(cpus) for name, cpus in agreed(named).items()}


def test_exclusive_cpus_are_listed_by_container() -> None:
    """Containers have their exclusive CPUs, and those in the shared set have none."""
    assert exclusive(pod("a", {"main": [3, 2], "side": []}), pod("b", {"main": []})) == {
        "ns/a/main": "2-3",
        "ns/a/side": "",
        "ns/b/main": "",
    }


def test_pod_level_cpus_belong_to_its_other_containers() -> None:
    """Pod-level CPUs that no container owns belong to the pod's other containers."""
    whole = pod("a", {"main": [2], "one": [], "two": []}, cpus=[2, 4, 5])
    assert exclusive(whole) == {"ns/a/main": "2", "ns/a/one": "4-5", "ns/a/two": "4-5"}


def test_duplicate_pods_count_only_where_they_agree() -> None:
    """While a pod replaces another of the same name, only equal entries count."""
    assert exclusive(pod("a", {"main": [2], "side": []}), pod("a", {"main": [3], "side": []})) == {
        "ns/a/side": ""
    }


@pytest.mark.parametrize(
    "cpus",
    [
        pytest.param([-1], id="negative"),
        pytest.param([2, MAX_CPU + 1], id="no machine has it"),
        pytest.param([2**62], id="would fill the memory as a bit of a mask"),
        pytest.param([2] * (MAX_CPU + 2), id="more than a machine has"),
    ],
)
def test_impossible_cpus_are_an_error(cpus: list[int]) -> None:
    """One impossible CPU makes the whole answer invalid."""
    with pytest.raises(BadCPUList):
        exclusive(ONE, pod("b", {"main": cpus}))
    with pytest.raises(BadCPUList):
        exclusive(pod("b", {"main": []}, cpus=cpus))


async def test_client_reconnects_to_the_kubelet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without the kubelet the answer is None, which is logged once for each outage."""
    async with kubelet(tmp_path) as (fake, client):
        fake.lists(ONE, pod("b", {"main": []}))
        expected = {"ns/a/main": CPUSet([2, 3]), "ns/b/main": EMPTY}
        assert await client.exclusive() is None
        assert await client.exclusive() is None
        async with fake.serving():
            assert await answered(client) == expected
        assert await client.exclusive() is None
        fake.socket.unlink(missing_ok=True)
        async with fake.serving():
            assert await answered(client) == expected
    ours = [record for record in caplog.records if record.name == "agent.kubelet.pod_resources"]
    assert [record.getMessage() for record in ours] == [SILENT, SILENT]


async def answered(client: PodResources) -> object:
    """Return the first answer; a failed connection is not retried at once."""
    while (found := await client.exclusive()) is None:
        await asyncio.sleep(0)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"\xff" * 100, id="no message"),
        pytest.param(b"\x0a\x05\x12\x03\xff\xfe\xfd", id="a name that is not a string"),
        pytest.param(
            ListPodResourcesResponse(pod_resources=[pod("a", {"main": [-1]})]).SerializeToString(),
            id="a CPU that cannot be",
        ),
        pytest.param(b"\x0a\xff\xff\xff\xff\x07", id="cut off"),
        pytest.param(b"\x00" * (17 * 2**20), id="longer than any answer"),
    ],
)
async def test_invalid_answers_are_none(tmp_path: Path, answer: bytes) -> None:
    """An invalid answer is None, as without a kubelet, and the next valid one counts."""
    async with kubelet(tmp_path) as (fake, client), fake.serving():
        fake.answer = answer
        assert await client.exclusive() is None
        fake.lists(ONE)
        assert await answered(client) == {"ns/a/main": CPUSet([2, 3])}


async def test_timeout_of_the_kubelet_is_none(tmp_path: Path) -> None:
    """The answer of a kubelet that hangs is None."""
    async with kubelet(tmp_path) as (fake, client), fake.serving():
        fake.hangs = True
        assert await client.exclusive() is None


async def test_rate_limit_of_the_kubelet_is_none(tmp_path: Path) -> None:
    """A refusal by the kubelet's rate limit is None, and the call is not repeated."""
    async with kubelet(tmp_path, seconds=60) as (fake, client), fake.serving():
        fake.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        assert await client.exclusive() is None
        assert fake.asked == 1


def test_socket_is_beside_the_kubelets_state() -> None:
    """The socket is in the kubelet's root folder, as its state file is."""
    state = Path("/var/lib/kubelet/cpu_manager_state")
    assert socket_beside(state) == Path("/var/lib/kubelet/pod-resources/kubelet.sock")


async def test_devices_of_a_long_list_are_not_kept(tmp_path: Path) -> None:
    """A list of 15 MiB with many devices is read in less than half its size."""
    devices = [
        proto_field(1, b"example.com/vf"),
        *(proto_field(2, f"{number:026}".encode()) for number in range(5000)),
    ]
    crowded = proto_field(
        3, proto_field(1, b"main") + proto_field(2, b"".join(devices)) + proto_field(3, bytes([2, 3]))
    )
    pods = (
        proto_field(1, proto_field(1, f"p{n}".encode()) + proto_field(2, b"ns") + crowded) for n in range(100)
    )
    answer = b"".join(pods)
    assert 13 << 20 < len(answer) < 16 << 20
    fake = FakeKubelet(tmp_path / "kubelet.sock")
    fake.answer = answer
    async with fake.serving():
        command = [sys.executable, "-m", "tests.agent.kubelet.pod_resources_cost", str(fake.socket)]
        done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    result: dict[str, float] = json.loads(done.stdout)
    found = result
    assert found["containers"] == 100
    assert found["peak"] - found["start"] < 7


def proto_field(number: int, content: bytes) -> bytes:
    """Return a protobuf field with its length."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content


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
