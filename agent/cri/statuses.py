"""Verbose statuses of containers and sandboxes: up to 16 MiB each, because they carry the environment."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from agent.cri.container_info import ContainerInfo, environment_sizes, read_info
from agent.cri.listing_pb2 import CONTAINER_EXITED, ContainerStatus, StatusRequest
from agent.grpc_calls import decoded
from agent.interfaces import ContainerExit

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from agent.grpc_calls import Calls, Fields

NANOSECONDS: Final = 1e9
_STATUS, _INFO = 1, 2  # field numbers of a status response
_KEY, _VALUE = 1, 2  # field numbers of an entry of the map `info`


async def container_info(calls: Calls, container_id: str) -> ContainerInfo:
    """Read a container's verbose status; raise Gone, TooLarge, Unavailable, Refused."""
    started, info = 0.0, ContainerInfo()
    async with _container(calls, container_id) as fields:
        while number := await fields.next():
            if number == _STATUS:
                started = decoded(ContainerStatus, await fields.content()).started_at / NANOSECONDS
            elif number == _INFO and (verbose := await _document(fields.nested())):
                info = read_info(verbose)
    return replace(info, started=started)


async def container_exit(calls: Calls, container_id: str) -> ContainerExit | None:
    """Return how a container ended, None if it has not; raise Gone, TooLarge, Unavailable, Refused."""
    status = ContainerStatus()
    async with calls.reading("ContainerStatus", StatusRequest(id=container_id)) as fields:
        while number := await fields.next():
            if number == _STATUS:
                status = decoded(ContainerStatus, await fields.content())
    if status.state != CONTAINER_EXITED:
        return None
    return ContainerExit(status.exit_code, status.reason, status.finished_at / NANOSECONDS)


async def container_environment(calls: Calls, container_id: str) -> int:
    """Return the size of a container's environment, 0 if the status lacks it; raise as `container_info`."""
    async with _container(calls, container_id) as fields:
        verbose = await _only_document(fields)
    size = 0
    for part in environment_sizes(verbose) or ():
        size += part
        await asyncio.sleep(0)  # decoding a part takes about a millisecond: let other tasks run
    return size


async def sandbox_info(calls: Calls, sandbox_id: str) -> ContainerInfo:
    """Read a sandbox's verbose status; raise Gone, TooLarge, Unavailable, Refused."""
    async with calls.reading("PodSandboxStatus", StatusRequest(id=sandbox_id, verbose=True)) as fields:
        return read_info(await _only_document(fields))


def _container(calls: Calls, container_id: str) -> AbstractAsyncContextManager[Fields]:
    return calls.reading("ContainerStatus", StatusRequest(id=container_id, verbose=True))


async def _only_document(fields: Fields) -> bytearray:
    """Return the verbose JSON document of a response and discard the other fields."""
    found = bytearray()
    while number := await fields.next():
        if number == _INFO:
            found = await _document(fields.nested()) or found
    return found


async def _document(fields: Fields) -> bytearray | None:
    """Return the value of a map entry if its key is `info`; None for another key, or if the key follows the value."""
    key, found = b"", None
    while number := await fields.next():
        if number == _KEY:
            key = bytes(await fields.content())
        elif number == _VALUE and key == b"info":
            found = await fields.content()
    return found
