"""The free devices of the node from the kubelet's PodResources API: the allocatable devices minus the assigned ones.

The kubelet is called when pods with devices start or end, then with backoff, and at least every LONGEST_SECONDS,
because devices also fail and recover. It is called only if the agent publishes the numbers of free CPUs beside free
devices.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Refused
from agent.grpc_calls import Calls, decoded
from agent.kubelet.device_answers import ANSWER_BYTES, ANSWER_SECONDS, HIGHEST_NODE, result_of
from agent.kubelet.pod_resources import PODS, SERVICE
from agent.kubelet.podresources_pb2 import (
    AllocatableResourcesRequest,
    ContainerDevices,
    ListPodResourcesRequest,
)
from agent.kubelet.podresources_pb2 import PodResources as Pod
from agent.token_bucket import TokenBucket
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from agent.kubelet.call_limit import CallLimit
    from agent.metrics import Metrics
    from pinning.machine.near_rooms import Kinds
    from pinning.planning.observed import Observed

MOST_DEVICES: Final = 20_000  # devices of the node; more entries of an answer are not read
MOST_KINDS: Final = 1_000  # resource names
FIRST_SECONDS, LONGEST_SECONDS = 0.25, 10.0  # backoff between rounds
CALLS: Final = 2  # calls of one round
ROUND_SECONDS: Final = 1.0  # one round in this time on average
BURST: Final = 2  # rounds at once after an idle time
STALE_SECONDS: Final = 60.0  # age of the last answer after which the devices are not known
_DEVICES: Final = 1  # field number of the devices
_YIELD_EVERY: Final = 100  # entries between two yields to the event loop, about a millisecond

Key = tuple[str, str]  # resource and id of a device

logger = logging.getLogger(__name__)


class FreeDeviceList:
    """Calls the kubelet on one socket for the devices that no container has."""

    def __init__(self, socket: Path, timeout_seconds: float = ANSWER_SECONDS) -> None:
        self._calls = Calls(socket, SERVICE, timeout_seconds, ANSWER_BYTES)

    async def ask(self) -> Kinds:
        """Return the number of free devices of each resource, by their NUMA nodes; raise Unavailable or Refused."""
        there = await self._allocatable()
        given = await self._given()
        return free_kinds(there, given)

    async def _allocatable(self) -> dict[Key, set[int]]:
        """Return the NUMA nodes of each healthy device."""
        found: dict[Key, set[int]] = {}
        async with self._calls.reading("GetAllocatableResources", AllocatableResourcesRequest()) as fields:
            entries = 0
            while number := await fields.next():
                if number != _DEVICES:
                    continue
                entry = decoded(ContainerDevices, await fields.content())
                nodes = {node.ID for node in entry.topology.nodes if 0 <= node.ID <= HIGHEST_NODE}
                for device in entry.device_ids:
                    found.setdefault((entry.resource_name, device), set()).update(nodes)
                entries += 1
                await _take_turns(entries, len(found))
        return found

    async def _given(self) -> set[Key]:
        """Return resource and id of each device that a container has."""
        found: set[Key] = set()
        async with self._calls.reading("List", ListPodResourcesRequest()) as fields:
            while number := await fields.next():
                if number != PODS:
                    continue
                pod, entries = decoded(Pod, await fields.content()), 0
                for container in pod.containers:
                    for entry in container.devices:
                        found.update((entry.resource_name, device) for device in entry.device_ids)
                        entries += 1
                        await _take_turns(entries, len(found))
                await asyncio.sleep(0)
        return found


async def _take_turns(entries: int, devices: int) -> None:
    """Yield to the event loop at each `_YIELD_EVERY` entries; raise Refused for more than MOST_DEVICES devices."""
    if devices > MOST_DEVICES:
        raise Refused(f"the kubelet names more than {MOST_DEVICES} devices, and no more are read")
    if entries % _YIELD_EVERY == 0:
        await asyncio.sleep(0)


def free_kinds(there: Mapping[Key, Iterable[int]], given: set[Key]) -> Kinds:
    """Return the number of free devices of each resource, by their NUMA nodes; raise Refused for too many resources."""
    counts: dict[str, dict[frozenset[int], int]] = {}
    for key, numbers in there.items():
        kind = counts.setdefault(key[0], {})
        if key not in given:
            nodes = frozenset(numbers)
            kind[nodes] = kind.get(nodes, 0) + 1
    if len(counts) > MOST_KINDS:
        raise Refused(f"the kubelet names devices of more than {MOST_KINDS} resources, and no more are read")
    return MappingProxyType(
        {
            resource: {CPUSet(nodes): number for nodes, number in kind.items()}
            for resource, kind in counts.items()
        }
    )


class FreeDeviceWatch:
    """Keeps the node's free devices. Passes call `follow` and `known`, which never wait; `run` calls the kubelet."""

    def __init__(
        self,
        kubelet: FreeDeviceList,
        metrics: Metrics,
        limit: CallLimit,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._kubelet = kubelet
        self._metrics = metrics
        self._clock = clock
        self._known: Kinds | None = None
        self._answered = 0.0  # when the last successful round began
        # Uids of pods with devices, and whether these ended.
        self._pods: frozenset[tuple[str, bool]] = frozenset()
        self._logged = ""  # the result of the last call, if it failed
        self._rounds = TokenBucket(BURST, ROUND_SECONDS)
        self._limit = limit
        self._wake = asyncio.Event()

    def known(self) -> Kinds | None:
        """Return the free devices of each resource by their NUMA nodes; None if they are not known."""
        return self._known

    def follow(self, observed: Observed) -> None:
        """Request a call if pods with devices started, ended or were deleted."""
        pods = frozenset((pod.uid, pod.is_final) for pod in observed.pods if pod.device_containers)
        if pods != self._pods:
            self._pods = pods
            self._wake.set()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Call the kubelet until cancelled; request a pass when the free devices changed."""
        wait = FIRST_SECONDS
        while True:
            self._wake.clear()
            while not self._rounds.take(self._clock()):
                await asyncio.sleep(max(0.0, self._rounds.wait(self._clock())))
            await self._limit.turn(CALLS)
            if await self._ask():
                request_pass()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._wake.wait()
            wait = FIRST_SECONDS if self._wake.is_set() else min(LONGEST_SECONDS, wait * 2)

    async def _ask(self) -> bool:
        """Call the kubelet once; return whether the free devices changed."""
        asked, before = self._clock(), self._known
        try:
            self._known = await self._kubelet.ask()
        except AgentError as error:
            self._failed(error, asked)
        else:
            self._logged, self._answered = "", asked
            self._metrics.podresources_called("ok", self._clock() - asked)
        return self._known != before

    def _failed(self, error: AgentError, asked: float) -> None:
        result, reason = result_of(error)
        self._metrics.podresources_called(result, self._clock() - asked)
        if self._known is not None and asked - self._answered >= STALE_SECONDS:
            self._known = None
        if result != self._logged:
            logger.warning("free devices not known", extra={"facts": {"reason": reason}})
        self._logged = result
