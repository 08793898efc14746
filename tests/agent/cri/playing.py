"""Test scenarios with a fake runtime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agent.cri.runtime import CRI
from tests.agent.cri.fake_cri import FakeRuntime
from tests.environments.waiting import background

INFO = {
    "pid": 42,
    "sandboxID": "s-one",
    "runtimeSpec": {"linux": {"cgroupsPath": "kubepods-pod1.slice:crio:one"}},
}
SECONDS = 60.0


@asynccontextmanager
async def play(
    tmp_path: Path, *, events: bool = False, poll_seconds: float = 0.02
) -> AsyncIterator[tuple[FakeRuntime, CRI]]:
    """Serve a new fake runtime, and yield it with its client."""
    fake = FakeRuntime(tmp_path / "cri.sock")
    if events:
        fake.events = asyncio.Queue()
    async with fake.serving():
        yield fake, CRI(fake.socket, poll_seconds=poll_seconds, timeout_seconds=SECONDS)


@asynccontextmanager
async def watching(runtime: CRI) -> AsyncIterator[asyncio.Semaphore]:
    """Watch the runtime; the semaphore is released at each reported change."""
    changes = asyncio.Semaphore(0)
    async with background(runtime.watch(changes.release)):
        await asyncio.wait_for(changes.acquire(), SECONDS)  # connecting is a change
        yield changes


async def event(fake: FakeRuntime, changes: asyncio.Semaphore, name: str) -> None:
    """Send an event of a container, and wait for the reported change."""
    fake.send(name)
    await asyncio.wait_for(changes.acquire(), SECONDS)


@asynccontextmanager
async def slow_door(door: Path, behind: Path) -> AsyncIterator[list[asyncio.Future[None]]]:
    """Forward connections to another socket after 1.5 s, longer than the longest pause; yield them."""
    attempts: list[asyncio.Future[None]] = []

    async def let_through(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        attempts.append(over)
        await asyncio.sleep(1.5)
        inner_reader, inner_writer = await asyncio.open_unix_connection(behind)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))
        over.set_result(None)

    async with await asyncio.start_unix_server(let_through, door):
        yield attempts
        await asyncio.wait_for(asyncio.gather(*attempts), SECONDS)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward bytes until the end of the stream."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()
