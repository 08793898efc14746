"""CPUs of containers from the kubelet's PodResources API, and invalid answers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import grpc
import pytest

from agent.kubelet.pod_resources import PodResources, agreed, own_cpus, socket_beside
from agent.kubelet.podresources_pb2 import ListPodResourcesResponse
from agent.kubelet.podresources_pb2 import PodResources as Pod
from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, MAX_CPU, CPUSet
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
    devices = [field(1, b"example.com/vf"), *(field(2, f"{number:026}".encode()) for number in range(5000))]
    crowded = field(3, field(1, b"main") + field(2, b"".join(devices)) + field(3, bytes([2, 3])))
    pods = (field(1, field(1, f"p{n}".encode()) + field(2, b"ns") + crowded) for n in range(100))
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


def field(number: int, content: bytes) -> bytes:
    """Return a protobuf field with its length."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content
