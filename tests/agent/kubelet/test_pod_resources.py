"""What the kubelet tells of its containers' CPUs, and what becomes of answers that cannot be true."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
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


def play(tmp_path: Path, scenario: Callable[[FakeKubelet, PodResources], Awaitable[None]]) -> None:
    """Run a scenario with a kubelet that does not serve yet, and its client, which waits for a tenth of a second."""

    async def run() -> None:
        fake = FakeKubelet(tmp_path / "kubelet.sock")
        client = PodResources(fake.socket, timeout_seconds=0.1)
        await scenario(fake, client)

    asyncio.run(run())


def told(*pods: Pod) -> dict[str, str]:
    """Return what is understood of an answer about pods."""
    named = chain.from_iterable(own_cpus(each) for each in pods)
    return {name: str(cpus) for name, cpus in agreed(named).items()}


def test_own_cpus_by_the_names_of_containers() -> None:
    """What has CPUs of its own is told with them, what runs in the shared set with none."""
    assert told(pod("a", {"main": [3, 2], "side": []}), pod("b", {"main": []})) == {
        "ns/a/main": "2-3",
        "ns/a/side": "",
        "ns/b/main": "",
    }


def test_cpus_of_a_pod_as_a_whole_are_those_of_its_other_containers() -> None:
    """A kubelet with resources of pods tells the pod's CPUs with its containers': the rest is shared inside it alone."""
    whole = pod("a", {"main": [2], "one": [], "two": []}, cpus=[2, 4, 5])
    assert told(whole) == {"ns/a/main": "2", "ns/a/one": "4-5", "ns/a/two": "4-5"}


def test_of_two_pods_of_one_name_only_what_both_have_is_believed() -> None:
    """While a pod replaces another one nobody knows which of them an entry is about."""
    assert told(pod("a", {"main": [2], "side": []}), pod("a", {"main": [3], "side": []})) == {"ns/a/side": ""}


@pytest.mark.parametrize(
    "cpus",
    [
        pytest.param([-1], id="negative"),
        pytest.param([2, MAX_CPU + 1], id="no machine has it"),
        pytest.param([2**62], id="would fill the memory as a bit of a mask"),
        pytest.param([2] * (MAX_CPU + 2), id="more than a machine has"),
    ],
)
def test_cpus_that_cannot_be_are_an_error(cpus: list[int]) -> None:
    """An answer with one such CPU is believed in nothing."""
    with pytest.raises(BadCPUList):
        told(ONE, pod("b", {"main": cpus}))
    with pytest.raises(BadCPUList):
        told(pod("b", {"main": []}, cpus=cpus))


def test_kubelet_comes_goes_and_comes_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a socket and after the kubelet's end nothing is known, which the log says once each time."""

    async def scenario(fake: FakeKubelet, client: PodResources) -> None:
        fake.tell(ONE, pod("b", {"main": []}))
        expected = {"ns/a/main": CPUSet([2, 3]), "ns/b/main": EMPTY}
        assert await client.exclusive() is None
        assert await client.exclusive() is None
        async with fake.serving():
            assert await answered(client) == expected
        assert await client.exclusive() is None
        fake.socket.unlink(missing_ok=True)
        async with fake.serving():
            assert await answered(client) == expected

    play(tmp_path, scenario)
    ours = [record for record in caplog.records if record.name == "agent.kubelet.pod_resources"]
    assert [record.getMessage() for record in ours] == [SILENT, SILENT]


async def answered(client: PodResources) -> object:
    """Return the first answer; a connection that failed a moment ago is not made again at once."""
    while (found := await client.exclusive()) is None:
        await asyncio.sleep(0)
    return found


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"\xff" * 100, id="no message"),
        pytest.param(b"\x0a\x05\x12\x03\xff\xfe\xfd", id="a name that is no text"),
        pytest.param(
            ListPodResourcesResponse(pod_resources=[pod("a", {"main": [-1]})]).SerializeToString(),
            id="a CPU that cannot be",
        ),
        pytest.param(b"\x0a\xff\xff\xff\xff\x07", id="cut off"),
        pytest.param(b"\x00" * (17 * 2**20), id="longer than any answer"),
    ],
)
def test_answers_that_make_no_sense_are_none(tmp_path: Path, answer: bytes) -> None:
    """The agent goes on as it does without a kubelet, and believes the next answer that makes sense."""

    async def scenario(fake: FakeKubelet, client: PodResources) -> None:
        async with fake.serving():
            fake.answer = answer
            assert await client.exclusive() is None
            fake.tell(ONE)
            assert await answered(client) == {"ns/a/main": CPUSet([2, 3])}

    play(tmp_path, scenario)


def test_kubelet_that_hangs_or_refuses_holds_nobody_up(tmp_path: Path) -> None:
    """A call has a deadline, and a refusal (the kubelet limits how often it is asked) is like silence."""

    async def scenario(fake: FakeKubelet, client: PodResources) -> None:
        async with fake.serving():
            fake.hangs = True
            assert await client.exclusive() is None
            fake.hangs = False
            fake.error = (grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            assert await client.exclusive() is None
            assert fake.asked == 2

    play(tmp_path, scenario)


def test_socket_is_beside_the_kubelets_state() -> None:
    """Whoever names the kubelet's state file names its root folder, where the socket is too."""
    state = Path("/var/lib/kubelet/cpu_manager_state")
    assert socket_beside(state) == Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def test_devices_of_a_long_list_are_not_kept(tmp_path: Path) -> None:
    """A list of 15 MiB, 100 pods with 5,000 devices each, takes less memory than half of it."""
    devices = [field(1, b"example.com/vf"), *(field(2, f"{number:026}".encode()) for number in range(5000))]
    crowded = field(3, field(1, b"main") + field(2, b"".join(devices)) + field(3, bytes([2, 3])))
    pods = (field(1, field(1, f"p{n}".encode()) + field(2, b"ns") + crowded) for n in range(100))
    answer = b"".join(pods)
    assert 13 << 20 < len(answer) < 16 << 20

    async def ask() -> dict[str, float]:
        fake = FakeKubelet(tmp_path / "kubelet.sock")
        fake.answer = answer
        async with fake.serving():
            command = [sys.executable, "-m", "tests.agent.kubelet.pod_resources_cost", str(fake.socket)]
            done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        result: dict[str, float] = json.loads(done.stdout)
        return result

    found = asyncio.run(ask())
    assert found["containers"] == 100
    assert found["peak"] - found["start"] < 7


def field(number: int, content: bytes) -> bytes:
    """Return a field of protobuf with its length."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes((number << 3 | 2, *length, size)) + content
