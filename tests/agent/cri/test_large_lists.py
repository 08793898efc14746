"""Very large labels, annotations and environments in the runtime's answers."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from cri_api.v1 import api_pb2
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from agent.cri.json_strings import string_sizes
from agent.cri.statuses import container_environment
from agent.errors import TooLarge
from agent.grpc_calls import Fields
from pinning.planning.observed import Owner
from tests.agent.cri.list_bounds import NOTES, check_bounds, cost
from tests.agent.cri.playing import INFO, event, play, watching

PODS = 27  # with one more a list exceeds the message limit of 16 MiB
ROUNDS = 4
LARGE_ENVIRONMENT = [f"A{number}={'x' * 100_000}" for number in range(18)]


def answers() -> dict[str, bytes]:
    """Return the answer of each method, with the large labels and annotations."""
    metadata = api_pb2.PodSandboxMetadata(name="p", uid="u", namespace="ns")
    sandbox = api_pb2.PodSandbox(metadata=metadata, annotations=NOTES).SerializeToString()
    container = api_pb2.Container(
        metadata=api_pb2.ContainerMetadata(name="c"),
        state=api_pb2.CONTAINER_RUNNING,
        labels=NOTES,
    ).SerializeToString()
    sandboxes = (sandbox + api_pb2.PodSandbox(id=f"s{n}").SerializeToString() for n in range(PODS))
    containers = (
        container + api_pb2.Container(id=f"c{n}", pod_sandbox_id=f"s{n}").SerializeToString()
        for n in range(PODS)
    )
    spec = {**INFO["runtimeSpec"], "process": {"env": LARGE_ENVIRONMENT}, "annotations": NOTES}  # type: ignore[dict-item]
    info = {"info": json.dumps({**INFO, "runtimeSpec": spec, "config": {"envs": LARGE_ENVIRONMENT}})}
    status = api_pb2.ContainerStatus(id="c0", labels=NOTES, annotations=NOTES)
    event = api_pb2.ContainerEventResponse(
        pod_sandbox_status=api_pb2.PodSandboxStatus(annotations=NOTES), containers_statuses=[status] * 10
    )
    version = api_pb2.VersionResponse(runtime_name="cri-o", runtime_version="1.31.0")
    return {
        "Version": version.SerializeToString(),
        "ListPodSandbox": b"".join(map(as_entry, sandboxes)),
        "ListContainers": b"".join(map(as_entry, containers)),
        "ContainerStatus": api_pb2.ContainerStatusResponse(status=status, info=info).SerializeToString(),
        "GetContainerEvents": event.SerializeToString(),
    }


def as_entry(content: bytes) -> bytes:
    """Return one entry of a list in wire format: field 1 with its length."""
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return b"\x0a" + bytes((*length, size)) + content


@contextmanager
def serving(socket: Path) -> Iterator[None]:
    """Serve these answers until the block ends."""
    handlers: dict[str, Any] = {}
    for name, answer in answers().items():
        if name == "GetContainerEvents":
            handlers[name] = grpc.unary_stream_rpc_method_handler(
                lambda _, __, answer=answer: iter([answer] * ROUNDS)
            )
        else:
            handlers[name] = grpc.unary_unary_rpc_method_handler(lambda _, __, answer=answer: answer)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        service = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", handlers)
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix://{socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(None).wait()


def test_large_labels_and_environments_take_less_memory_than_one_list(tmp_path: Path) -> None:
    """Large lists and environments are read in less memory than one list, without blocking the event loop.

    27 pods have 60,000 labels and annotations each, and environments of 1.8 MB. Both lists have 15.3 MiB, a
    verbose status
    5.4 MiB. The process stays below 100 MiB, and no turn of the event loop takes 50 ms.
    """
    with serving(tmp_path / "cri.sock"):
        found = cost(tmp_path / "cri.sock", ROUNDS)
    assert (found["sandboxes"], found["containers"], found["known"]) == (PODS, PODS, PODS)
    check_bounds(found)


async def test_list_above_the_limit_names_cause_and_remedy(tmp_path: Path) -> None:
    """The error has the limit and says which objects to delete."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("one", INFO)
        fake.sandboxes[0].annotations["large"] = "x" * (17 << 20)
        with pytest.raises(TooLarge, match=r"ListPodSandbox: .* exceeds 16 MiB.* delete them"):
            await runtime.containers()


async def test_status_above_the_limit_is_listed_without_details(tmp_path: Path) -> None:
    """A container whose status exceeds 16 MiB is listed without a pid, and its status is requested once."""
    async with play(tmp_path) as (fake, runtime):
        fake.add("large", INFO | {"config": "x" * (17 << 20)})
        fake.add("small", INFO)
        for _ in range(3):
            found = {container.name: container for container in await runtime.containers()}
            assert (found["large"].pid, found["small"].pid) == (0, 42)
    assert fake.asked["ContainerStatus"] == 2


async def test_event_above_the_limit_is_a_change_and_no_more(tmp_path: Path) -> None:
    """An event above 1 MiB is reported as a change; the client reconnects and follows later events."""
    async with play(tmp_path, events=True) as (fake, runtime):
        fake.padding = {"x": "x" * (2 << 20)}
        async with watching(runtime) as changes:
            for number in range(3):
                await event(fake, changes, f"large-{number}")
                while fake.asked["GetContainerEvents"] < number + 2:
                    await asyncio.sleep(0.005)
            fake.padding = {}
            await event(fake, changes, "small")
            assert await runtime.owner("small") == Owner("uid-small", "small")


MANY = [f"{number:x}=" for number in range(580_000)]  # as many as a status of 16 MiB holds in spec and config
# Contents that look like a string's end or an escape, or whose escaped size differs.
AWKWARD = ('","', '"]', "\\", '\\"', "\\u003c", "\n", "\x01", "é", "€", "😀", "\u2028", "<", "", "x" * 300)


def as_go_writes(strings: list[str]) -> bytes:
    """Return compact JSON with Go's escapes."""
    content = json.dumps(strings, ensure_ascii=False, separators=(",", ":"))
    for escaped in "<>&\u2028":
        content = content.replace(escaped, f"\\u{ord(escaped):04x}")
    return content.encode()


@pytest.mark.parametrize("first", AWKWARD)
@pytest.mark.parametrize("second", AWKWARD)
def test_strings_are_counted_as_decoded(first: str, second: str) -> None:
    """Sizes are those of the decoded UTF-8, with any escapes and spaces."""
    strings = [first, second, first + second]
    size = len("".join(strings).encode())
    for content in (
        as_go_writes(strings),
        json.dumps(strings).encode(),
        json.dumps(strings, indent=1).encode(),
    ):
        assert sum(string_sizes(Raw(content))) == size


@given(st.lists(st.text(st.characters(codec="utf-8")), max_size=9), st.booleans())
def test_any_strings_are_counted_as_decoded(strings: list[str], ascii_only: bool) -> None:
    """For any list of strings the size is that of the decoded ones."""
    content = json.dumps(strings, ensure_ascii=ascii_only).encode()
    assert sum(string_sizes(Raw(content))) == len("".join(strings).encode())


@pytest.mark.parametrize("content", [b"[]", b"[ ]", b"null", b"{}", b"7", b"[7]", b""])
def test_value_without_strings_has_no_size(content: bytes) -> None:
    """A value that is not a list of strings yields no size."""
    assert list(string_sizes(Raw(content))) == []


@pytest.mark.parametrize(
    "strings",
    [
        pytest.param(MANY, id="many"),
        pytest.param(["x" * (14 << 20)], id="long"),
        pytest.param(["<" * 300_000], id="escapes"),
    ],
)
def test_counting_keeps_no_strings(strings: list[str]) -> None:
    """Many, long or fully escaped strings are counted in under 2 MiB, in parts of at most 512 KiB."""
    content, size = Raw(as_go_writes(strings)), sum(map(len, strings))
    tracemalloc.start()
    try:
        counted = largest = 0
        for part in string_sizes(content):
            counted, largest = counted + part, max(largest, part)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert counted == size
    assert largest <= 2**19
    assert peak < 2 << 20


class Held:
    """An in-memory answer, whose reads never yield to the event loop."""

    def __init__(self, content: bytes) -> None:
        self._left = memoryview(content)

    def ready(self, _size: int) -> None:
        """Return at once: the bytes are not in one piece."""

    async def read(self, size: int) -> bytearray:
        """Return the next bytes."""
        found, self._left = self._left[:size], self._left[size:]
        return bytearray(found)

    @asynccontextmanager
    async def reading(self, *_: object) -> AsyncIterator[Fields]:
        """Yield the fields of the answer."""
        yield Fields(self, len(self._left))  # type: ignore[arg-type] # it reads as an exchange does


async def test_loop_gets_its_turn_while_an_environment_is_counted() -> None:
    """The event loop runs other tasks after each of the hundreds of parts."""
    strings = as_go_writes(MANY)
    parts = len(list(string_sizes(Raw(strings))))
    info = b'{"runtimeSpec":{"process":{"env":%b}}}' % strings
    answer = api_pb2.ContainerStatusResponse(info={"info": info.decode()}).SerializeToString()
    calls: Any = Held(answer)
    counting, turns = asyncio.create_task(container_environment(calls, "id")), 0
    while not counting.done():
        await asyncio.sleep(0)
        turns += 1
    assert counting.result() == sum(map(len, MANY))
    assert turns >= parts > 200
