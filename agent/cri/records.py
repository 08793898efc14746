"""Cpusets from the runtime's records, for containers in VMs, which have no cgroup on the host."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from agent.cri.listing_pb2 import ContainerStatusResponse, StatusRequest
from agent.errors import AgentError
from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agent.grpc_calls import Calls

_AT_ONCE: Final = 4

logger = logging.getLogger(__name__)


async def recorded_cpus(calls: Calls, container_ids: Iterable[str]) -> Mapping[str, CPUSet]:
    """Return the recorded cpusets by container; containers without a record are left out."""
    turns = asyncio.Semaphore(_AT_ONCE)
    ids = tuple(container_ids)
    found = await asyncio.gather(*(_recorded(calls, container_id, turns) for container_id in ids))
    return {container_id: cpus for container_id, cpus in zip(ids, found, strict=True) if cpus}


async def _recorded(calls: Calls, container_id: str, turns: asyncio.Semaphore) -> CPUSet:
    request = StatusRequest(id=container_id)
    try:
        async with turns:
            answer = await calls.ask("ContainerStatus", request, ContainerStatusResponse)
        return CPUSet.parse(answer.status.resources.linux.cpuset_cpus)
    except (AgentError, BadCPUList) as error:
        facts = {"container": container_id, "reason": str(error)}
        logger.info("the runtime does not say which CPUs a container has", extra={"facts": facts})
        return EMPTY
