"""Search for the containers with the largest environments.

A runtime accepts no NRI plugin if its containers with their environments do not fit into NRI's messages.

Only sizes are read; no variable is kept or logged.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING, Final

from agent.cri.statuses import container_environment
from agent.errors import AgentError, Gone, Refused, TooLarge
from agent.grpc_calls import MESSAGE_BYTES
from agent.node_state import LargeEnvironment
from pinning.planning.observed import State

if TYPE_CHECKING:
    import asyncio

    from agent.cri.lists import Lists
    from agent.grpc_calls import Calls

LARGE: Final = 256 * 2**10  # bytes of an environment that counts as large; 16 of them fill a message of NRI
NAMED: Final = 3
MOST_ASKED: Final = 500  # containers whose status is requested, newest first
SECONDS: Final = 30.0  # time limit of the whole search

logger = logging.getLogger(__name__)


async def largest_environments(
    calls: Calls, lists: Lists, turn: asyncio.Semaphore, *, most: int = MOST_ASKED, seconds: float = SECONDS
) -> tuple[LargeEnvironment, ...] | None:
    """Return the largest environments, read one status at a time; None if the containers cannot be listed."""
    deadline = monotonic() + seconds
    found = []
    try:
        listed = [item for item in await lists.containers() if item.state is not State.EXITED]
        sandboxes = await lists.sandboxes()
        for container in sorted(listed, key=lambda item: (-item.created_at, item.id))[:most]:
            if monotonic() > deadline:
                break
            async with turn:
                size = await _size(calls, container.id)
            if size >= LARGE and (of := sandboxes.get(container.sandbox)):
                found.append(LargeEnvironment(of.pod_uid, of.namespace, of.pod, container.name, size))
    except AgentError as error:
        logger.info("environments not measured", extra={"facts": {"reason": str(error)}})
        return None
    return tuple(sorted(found, key=lambda large: (-large.size, large))[:NAMED])


async def _size(calls: Calls, container_id: str) -> int:
    """Return the bytes of a container's environment; the message limit if it is larger, 0 if it cannot be read."""
    try:
        return await container_environment(calls, container_id)
    except TooLarge:
        return MESSAGE_BYTES
    except (Gone, Refused):
        return 0
