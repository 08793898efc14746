"""Devices that the kubelet gave to containers, and their NUMA nodes, from its PodResources API.

The kubelet allocates the devices of a pod before it makes the pod's sandbox, and names containers without the uid of
their pod. It is asked while a pod waits for its devices, beside the passes, with backoff and a rate limit: its own
limit of 100 calls a second is for all clients together. An answer asks for a pass.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Refused
from agent.grpc_calls import Calls, decoded
from agent.kubelet.device_answers import ANSWER_BYTES, HIGHEST_NODE, result_of
from agent.kubelet.pod_resources import PODS, SERVICE
from agent.kubelet.podresources_pb2 import ContainerResources, ListPodResourcesRequest
from agent.token_bucket import TokenBucket
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.planning.node_config import DEFAULT, is_placed_beside
from pinning.planning.observed import DEVICES_NOT_NAMED, Owner

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from agent.grpc_calls import Fields
    from agent.kubelet.free_devices import FreeDeviceWatch
    from agent.metrics import Metrics
    from pinning.machine.near_rooms import Kinds
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, SeenPod

CONTAINER_BYTES: Final = 128 * 2**10
MOST_ENTRIES: Final = 256  # devices of a container; an entry is a device and a NUMA node
LONGEST_RESOURCE: Final = 253
FIRST_SECONDS, LONGEST_SECONDS = 0.025, 1.0  # backoff between calls
CALLS_PER_SECOND: Final = 5.0
BURST: Final = 5
REMEMBERED_SECONDS: Final = 60.0  # a pod's name after the pod, and a sandbox before its pod is seen
LATE_SECONDS: Final = 5.0  # the kubelet usually names devices within a second
LATE: Final = f"the kubelet answers, and has not named its devices for {LATE_SECONDS:.0f} seconds"
TOO_MANY: Final = f"the kubelet names more than {MOST_ENTRIES} devices of it, and no more are read"
REASON_SECONDS: Final = 10.0  # at most one pass in this time for a changed reason
_NAME, _NAMESPACE, _CONTAINERS = 1, 2, 3  # numbers of fields of a pod

Name = tuple[str, str]  # namespace and name of a pod
Named = dict[str, tuple[Device, ...] | None]  # devices by container; None: more than are read

logger = logging.getLogger(__name__)


class DeviceList:
    """The kubelet behind one socket. Only the containers of asked pods are read, one at a time."""

    def __init__(self, socket: Path, timeout_seconds: float = 2.0) -> None:
        self._calls = Calls(socket, SERVICE, timeout_seconds, ANSWER_BYTES)

    async def ask(self, pods: Collection[Name]) -> dict[Name, list[Named]]:
        """Return the devices of these pods, as often as the kubelet names one; raise Unavailable or Refused."""
        found: dict[Name, list[Named]] = {}
        async with self._calls.reading("List", ListPodResourcesRequest()) as fields:
            while number := await fields.next():
                if number == PODS:
                    name, named = await _pod(fields.nested(), pods)
                    if named is not None:
                        found.setdefault(name, []).append(named)
                    await asyncio.sleep(0)
        return found


async def _pod(fields: Fields, asked: Collection[Name]) -> tuple[Name, Named | None]:
    """Return the name of a pod, and the devices of its containers; None if it is not asked for."""
    texts, named, containers = {_NAME: "", _NAMESPACE: ""}, Named(), 0
    while number := await fields.next():
        name = texts[_NAMESPACE], texts[_NAME]
        if number in texts:
            if containers:
                raise Refused("the kubelet's answer names a pod after its containers")
            texts[number] = (await fields.content()).decode(errors="replace")
        elif number == _CONTAINERS:
            containers += 1
            if name in asked:
                container, devices = await _container(fields)
                named[container] = devices
    name = texts[_NAMESPACE], texts[_NAME]
    return name, named if name in asked else None


async def _container(fields: Fields) -> tuple[str, tuple[Device, ...] | None]:
    if fields.size <= CONTAINER_BYTES:
        container = decoded(ContainerResources, await fields.content())
        await asyncio.sleep(0)
        return container.name, devices_of(container)
    inside, name = fields.nested(), ""
    if await inside.next() == _NAME:
        name = (await inside.content()).decode(errors="replace")
    await inside.discard()
    return name, None


def devices_of(container: ContainerResources) -> tuple[Device, ...] | None:
    """Return the devices of a container, sorted; None if there are more than MOST_ENTRIES.

    A device with several NUMA nodes has an entry for each. Node numbers that no machine has are left out.
    """
    if len(container.devices) > MOST_ENTRIES:
        return None
    nodes: dict[tuple[str, str], set[int]] = {}
    for entry in container.devices:
        if len(entry.device_ids) > MOST_ENTRIES or len(entry.topology.nodes) > MOST_ENTRIES:
            return None
        told = {node.ID for node in entry.topology.nodes if 0 <= node.ID <= HIGHEST_NODE}
        for device in entry.device_ids:
            nodes.setdefault((entry.resource_name[:LONGEST_RESOURCE], device), set()).update(told)
        if len(nodes) > MOST_ENTRIES:
            return None
    devices = (Device(resource, CPUSet(its)) for (resource, _), its in nodes.items())
    return tuple(sorted(devices, key=lambda device: (device.resource, str(device.nodes))))


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A pod whose devices are not known."""

    name: Name
    containers: frozenset[str]
    since: float


class KubeletDevices:
    """The devices of containers that claim CPUs, kept from the kubelet's answer until their pod is gone.

    `follow` and `known` are called by passes and never wait; `run` asks.
    """

    def __init__(
        self,
        kubelet: DeviceList,
        metrics: Metrics,
        config: NodeConfig = DEFAULT,
        clock: Callable[[], float] = monotonic,
        free: FreeDeviceWatch | None = None,
    ) -> None:
        self._kubelet = kubelet
        self._free = free
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._known: Mapping[Owner, tuple[Device, ...]] = MappingProxyType({})
        self._too_many: set[Owner] = set()
        self._waiting: dict[str, _Waiting] = {}  # by uid
        self._names: dict[Name, dict[str, float]] = {}  # when each pod of a name was last seen, by uid
        self._sandboxes: dict[str, float] = {}  # when a pod's sandbox was first seen, by uid
        self._reason = ""  # why the last call failed; empty: it did not
        self._shown = ""  # the reason for which the last pass was requested, and when
        self._shown_at = -REASON_SECONDS
        self._logged: set[str] = set()  # results of failed calls since the last answer
        self._bucket = TokenBucket(BURST, 1 / CALLS_PER_SECOND)
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def known(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Return the devices of each container of which the kubelet said what it has, also if it has none."""
        return self._known

    def free(self) -> Kinds | None:
        """Return the free devices of each resource by their NUMA nodes; None if not known, or not asked for."""
        return self._free.known() if self._free else None

    def unknown(self) -> Mapping[Owner, str]:
        """Return the containers whose devices are not known, and the reason."""
        waiting = {
            Owner(uid, container): self._reason_of(waiting)
            for uid, waiting in self._waiting.items()
            for container in waiting.containers
            if Owner(uid, container) not in self._known
        }
        return {**waiting, **dict.fromkeys(self._too_many, TOO_MANY)}

    def _reason_of(self, waiting: _Waiting) -> str:
        is_late = self._clock() - waiting.since >= LATE_SECONDS
        return self._reason or (LATE if is_late else DEVICES_NOT_NAMED)

    def resume(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        """Continue with the devices of a checkpoint."""
        self._keep(dict(known))

    def follow(self, observed: Observed, names: Mapping[str, Name]) -> None:
        """Wait for the devices of new pods, and forget pods that are gone; `names` has every pod of the runtime."""
        now = self._clock()
        if self._free:
            self._free.follow(observed)
        uids = {owner.pod_uid for owner in (*self._known, *self._too_many)}
        gone = {uid for uid in uids if observed.is_gone(uid)}
        if gone:
            self._too_many = {owner for owner in self._too_many if owner.pod_uid not in gone}
            self._keep({owner: its for owner, its in self._known.items() if owner.pod_uid not in gone})
        self._note_names({**names, **{pod.uid: (pod.namespace, pod.name) for pod in observed.pods}}, now)
        for uid in names:
            self._sandboxes.setdefault(uid, now)
        before = self._waiting
        self._waiting = {
            pod.uid: before.get(pod.uid) or self._new(pod, now)
            for pod in observed.by_age
            if self._is_lacking(pod) and self._is_placed_beside(pod)
        }
        if self._waiting.keys() - before.keys():
            self._wake.set()

    def _is_lacking(self, pod: SeenPod) -> bool:
        owners = (Owner(pod.uid, container) for container in pod.device_containers)
        return any(owner not in self._known and owner not in self._too_many for owner in owners)

    def _is_placed_beside(self, pod: SeenPod) -> bool:
        return any(is_placed_beside(claim, self._config) for claim in pod.claims)

    def _new(self, pod: SeenPod, now: float) -> _Waiting:
        return _Waiting((pod.namespace, pod.name), pod.device_containers, now)

    def _note_names(self, seen: Mapping[str, Name], now: float) -> None:
        for uid, name in seen.items():
            self._names.setdefault(name, {})[uid] = now
        for name, uids in list(self._names.items()):
            self._names[name] = {uid: at for uid, at in uids.items() if now - at < REMEMBERED_SECONDS}
            if not self._names[name]:
                del self._names[name]
        for uid, at in list(self._sandboxes.items()):
            if uid not in seen and now - at >= REMEMBERED_SECONDS:
                del self._sandboxes[uid]

    def sandbox_started(self, uid: str) -> None:
        """Note that a pod's sandbox runs; called in the thread of the NRI connection."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._sandbox_seen, uid)

    def _sandbox_seen(self, uid: str) -> None:
        self._sandboxes.setdefault(uid, self._clock())
        if uid in self._waiting:
            self._wake.set()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Ask the kubelet while a pod waits, and for free devices where these are wanted, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run(request_pass))
            if self._free:
                group.create_task(self._free.run(request_pass))

    async def _run(self, request_pass: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            wait = FIRST_SECONDS
            while self._waiting:
                self._wake.clear()
                await self._limit()
                if await self._ask():
                    request_pass()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait if self._waiting else 0):
                        await self._wake.wait()
                wait = FIRST_SECONDS if self._wake.is_set() else min(LONGEST_SECONDS, wait * 2)
            self._wake.clear()

    async def _limit(self) -> None:
        """Wait until the rate limit allows a call."""
        while not self._bucket.take(self._clock()):
            await asyncio.sleep(max(0.0, self._bucket.wait(self._clock())))

    async def _ask(self) -> bool:
        """Ask once; return whether devices became known, or a changed reason why not is to be shown."""
        asked = self._clock()
        try:
            named = await self._kubelet.ask({waiting.name for waiting in self._waiting.values()})
        except AgentError as error:
            self._failed(error, asked)
            return self._shows_reason()
        self._reason = ""
        self._logged.clear()
        self._metrics.podresources_called("ok", self._clock() - asked)
        found = {
            uid: answer
            for uid, waiting in self._waiting.items()
            if (answer := self._answer(uid, waiting, named.get(waiting.name, []), asked)) is not None
        }
        for uid, devices in found.items():
            self._settle(uid, devices)
        return bool(found) or self._shows_reason()

    def _shows_reason(self) -> bool:
        """Return whether to request a pass for the reason, because it is another one than in the last such pass.

        A socket that fails in turns changes the reason with each call.
        """
        reason = next(map(self._reason_of, self._waiting.values()), "")
        is_news = reason not in (self._shown, DEVICES_NOT_NAMED)
        if not is_news or self._clock() - self._shown_at < REASON_SECONDS:
            return False
        self._shown, self._shown_at = reason, self._clock()
        return True

    def _failed(self, error: AgentError, asked: float) -> None:
        result, reason = result_of(error)
        self._metrics.podresources_called(result, self._clock() - asked)
        if result not in self._logged:
            self._logged.add(result)
            logger.warning("devices not known", extra={"facts": {"reason": reason}})
        self._reason = reason

    def _answer(self, uid: str, waiting: _Waiting, told: list[Named], asked: float) -> Named | None:
        """Return the devices of a pod by container, None if the answer does not count for it.

        Several pods of one name may follow each other, and a pod is listed without its devices for a moment: then an
        answer counts that was asked for after the pod's sandbox was seen, because the kubelet allocates devices
        before.
        """
        if len(told) != 1:
            return None
        named = {container: told[0].get(container, ()) for container in waiting.containers}
        is_single = len(self._names.get(waiting.name, {})) <= 1
        is_whole = all(devices != () for devices in named.values())
        is_late = self._sandboxes.get(uid, asked) < asked
        return named if is_late or (is_single and is_whole) else None

    def _settle(self, uid: str, named: Named) -> None:
        waiting = self._waiting.pop(uid)
        for container in (it for it, devices in named.items() if devices is None):
            self._too_many.add(Owner(uid, container))
            facts = {"container": "/".join((*waiting.name, container)), "most": MOST_ENTRIES}
            logger.warning(
                "container has too many devices, their NUMA nodes are not used", extra={"facts": facts}
            )
        new = {Owner(uid, container): its for container, its in named.items() if its is not None}
        self._keep({**self._known, **new})
        self._metrics.devices_unknown_seconds.observe(self._clock() - waiting.since)

    def _keep(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        self._known = MappingProxyType(known)
