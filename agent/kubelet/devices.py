"""Devices that the kubelet gave to containers, and their NUMA nodes, from its PodResources API.

The kubelet allocates the devices of a pod before it makes the pod's sandbox, and names containers without the uid of
their pod. It is asked while a pod waits for its devices, beside the passes, with backoff and a rate limit: its own
limit of 100 calls a second is for all clients together. An answer requests a pass.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.kubelet.device_answers import result_of
from agent.kubelet.device_list import MOST_ENTRIES, ClaimedDevice
from agent.token_bucket import TokenBucket
from pinning.contract import DRA_CPU_CLASS, DRA_DRIVER, IrqWord
from pinning.machine.cpuset import EMPTY
from pinning.machine.near import Device
from pinning.planning.node_config import DEFAULT, is_placed_beside
from pinning.planning.observed import DEVICES_NOT_NAMED, Owner, claim_not_known

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent.kubelet.claimed_devices import ClaimedDevices
    from agent.kubelet.device_list import DeviceList, Entries, Name, Named
    from agent.kubelet.free_devices import FreeDeviceWatch
    from agent.metrics import Metrics
    from pinning.machine.near_rooms import Kinds
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, SeenPod

FIRST_SECONDS, LONGEST_SECONDS = 0.025, 1.0  # backoff between calls of the kubelet
CALLS_PER_SECOND: Final = 5.0
BURST: Final = 5
REMEMBERED_SECONDS: Final = 60.0  # a pod's name after the pod, and a sandbox before its pod is seen
# Delay after which missing devices are reported; the kubelet usually names them within a second.
LATE_SECONDS: Final = 5.0
LATE: Final = f"the kubelet answers, and has not named its devices for {LATE_SECONDS:.0f} seconds"
TOO_MANY: Final = f"the kubelet names more than {MOST_ENTRIES} devices of it, and no more are read"
REASON_SECONDS: Final = 10.0  # at most one pass in this time for a changed reason
# The second is the class of upstream's CPU driver.
CPU_DRIVERS: Final = frozenset({DRA_DRIVER, DRA_CPU_CLASS})

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A pod whose devices are not known."""

    name: Name
    containers: frozenset[str]
    since: float
    claims: Mapping[str, frozenset[str]]  # its ResourceClaims by container
    awaits_claims: bool  # the devices of its claims are looked up

    def is_whole(self, container: str, entries: Entries | None) -> bool:
        """Return whether an answer has devices of a container, and some of each of its claims.

        The kubelet lists a claim's devices when their driver has prepared them, after those of device plugins.
        """
        if entries is None:
            return True
        listed = {entry.claim for entry in entries if isinstance(entry, ClaimedDevice)}
        is_prepared = not self.awaits_claims or self.claims.get(container, frozenset()) <= listed
        return bool(entries) and is_prepared


def _placed(
    entries: Entries, named: Collection[str], claims: ClaimedDevices | None
) -> tuple[Device, ...] | None:
    """Return the devices of a container that names these claims; None while the NUMA node of a claimed device is not known.

    CPUs of claims do not count as devices. A claim that the kubelet does not list counts as a device without a NUMA
    node.
    """
    devices = [entry for entry in entries if isinstance(entry, Device)]
    claimed = [entry for entry in entries if isinstance(entry, ClaimedDevice)]
    counted = [entry for entry in claimed if entry.driver not in CPU_DRIVERS]
    if claims is None:
        return (*devices, *(Device(entry.driver, EMPTY) for entry in counted if entry.claim not in named))
    for entry in counted:
        nodes = claims.nodes_of(entry)
        if nodes is None:
            return None
        devices.append(Device(entry.driver, nodes, claims.address_of(entry)))
    missing = set(named) - {entry.claim for entry in claimed}
    return (*devices, *map(claim_not_known, sorted(missing)))


def _claim_reason(entries: Entries, claims: ClaimedDevices | None) -> str:
    claimed = (entry for entry in entries if isinstance(entry, ClaimedDevice))
    return next(filter(None, (claims.reason(entry) for entry in claimed if claims)), "")


class _Sandboxes:
    """Names of the pods that were seen, and when their sandboxes were; both are remembered for a while."""

    def __init__(self) -> None:
        self._names: dict[Name, dict[str, float]] = {}  # when each pod of a name was last seen, by uid
        self._seen_at: dict[str, float] = {}  # when a pod's sandbox was first seen, by uid

    def note(self, names: Mapping[str, Name], sandboxes: Collection[str], now: float) -> None:
        """Note pods by uid, and those with a sandbox; forget what was seen long ago."""
        for uid in sandboxes:
            self.saw(uid, now)
        for uid, name in names.items():
            self._names.setdefault(name, {})[uid] = now
        for name, uids in list(self._names.items()):
            self._names[name] = {uid: at for uid, at in uids.items() if now - at < REMEMBERED_SECONDS}
            if not self._names[name]:
                del self._names[name]
        for uid, at in list(self._seen_at.items()):
            if uid not in names and now - at >= REMEMBERED_SECONDS:
                del self._seen_at[uid]

    def saw(self, uid: str, now: float) -> None:
        """Note that a pod has a sandbox since now."""
        self._seen_at.setdefault(uid, now)

    def __contains__(self, uid: str) -> bool:
        return uid in self._seen_at

    def is_single(self, name: Name) -> bool:
        """Return whether at most one pod had this name lately."""
        return len(self._names.get(name, {})) <= 1

    def is_before(self, uid: str, moment: float) -> bool:
        """Return whether a pod's sandbox was seen before a moment."""
        return self._seen_at.get(uid, moment) < moment


class KubeletDevices:
    """The devices of containers that claim CPUs, kept from the kubelet's answer until their pod is deleted.

    `follow` and `known` are called by passes and never wait; `run` asks. Without `claims` the devices of ResourceClaims
    are not looked up.
    """

    def __init__(
        self,
        kubelet: DeviceList,
        metrics: Metrics,
        config: NodeConfig = DEFAULT,
        clock: Callable[[], float] = monotonic,
        free: FreeDeviceWatch | None = None,
        claims: ClaimedDevices | None = None,
    ) -> None:
        self._kubelet = kubelet
        self._free = free
        self._claims = claims
        self.looks_up_claims = claims is not None
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._known: Mapping[Owner, tuple[Device, ...]] = MappingProxyType({})
        self._too_many: set[Owner] = set()
        self._waiting: dict[str, _Waiting] = {}  # pods whose devices are not known, by uid
        # Pods with claims whose devices were known before the pod's sandbox was seen. The kubelet is asked again,
        # because the driver of another part of a claim may have been slower.
        self._early: dict[str, _Waiting] = {}
        # Why the places of a pod's claimed devices are not known, by uid.
        self._claim_reasons: dict[str, str] = {}
        self._sandboxes = _Sandboxes()
        self._reason = ""  # why the last call failed; empty: it did not
        self._shown = ""  # the reason for which the last pass was requested
        self._shown_at = -REASON_SECONDS
        self._logged: set[str] = set()  # results of failed calls since the last answer
        self._bucket = TokenBucket(BURST, 1 / CALLS_PER_SECOND)
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def known(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Return the devices of each container that the kubelet has listed, also if it has none."""
        return self._known

    def free(self) -> Kinds | None:
        """Return the free devices of each resource by their NUMA nodes; None if not known, or not asked for."""
        return self._free.known() if self._free else None

    def unknown(self) -> Mapping[Owner, str]:
        """Return the containers whose devices are not known, and the reason."""
        waiting = {
            Owner(uid, container): self._claim_reasons.get(uid) or self._reason_of(waiting)
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
        """Wait for the devices of new pods, and forget deleted pods; `names` has every pod of the runtime."""
        now = self._clock()
        if self._free:
            self._free.follow(observed)
        uids = {owner.pod_uid for owner in (*self._known, *self._too_many)}
        gone = {uid for uid in uids if observed.is_gone(uid)}
        if gone:
            self._too_many = {owner for owner in self._too_many if owner.pod_uid not in gone}
            self._keep({owner: its for owner, its in self._known.items() if owner.pod_uid not in gone})
            self._early = {uid: its for uid, its in self._early.items() if uid not in gone}
        everyone = {**names, **{pod.uid: (pod.namespace, pod.name) for pod in observed.pods}}
        self._sandboxes.note(everyone, names, now)
        before = self._waiting
        self._waiting = {
            pod.uid: before.get(pod.uid) or self._new(pod, now)
            for pod in observed.by_age
            if (self._is_lacking(pod) or self._is_early(pod.uid)) and self._has_use(pod)
        }
        self._claim_reasons = {
            uid: reason for uid, reason in self._claim_reasons.items() if uid in self._waiting
        }
        if self._waiting.keys() - before.keys():
            self._wake.set()

    def _is_lacking(self, pod: SeenPod) -> bool:
        owners = (Owner(pod.uid, container) for container in self._containers(pod))
        return any(owner not in self._known and owner not in self._too_many for owner in owners)

    def _has_use(self, pod: SeenPod) -> bool:
        """Return whether the devices of a pod's containers matter: for its CPUs, or for its interrupts."""
        return any(
            IrqWord.DEVICES in claim.irq or is_placed_beside(claim, self._config) for claim in pod.all_claims
        ) or any(IrqWord.DEVICES in use.irq for use in pod.claim_uses)

    def _is_early(self, uid: str) -> bool:
        return uid in self._early and uid in self._sandboxes

    def _containers(self, pod: SeenPod) -> frozenset[str]:
        return pod.device_containers | (pod.named_claims.keys() if self._claims else frozenset())

    def _new(self, pod: SeenPod, now: float) -> _Waiting:
        name, looks_up = (pod.namespace, pod.name), self.looks_up_claims
        return _Waiting(name, self._containers(pod), now, pod.named_claims, looks_up)

    def sandbox_started(self, uid: str) -> None:
        """Note that a pod's sandbox runs; called in the thread of the NRI connection."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._sandbox_seen, uid)

    def _sandbox_seen(self, uid: str) -> None:
        self._sandboxes.saw(uid, self._clock())
        if uid in self._early:
            self._waiting[uid] = self._early[uid]
        if uid in self._waiting:
            self._wake.set()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Ask the kubelet while a pod waits, and for free devices where these are wanted, until cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run(request_pass))
            if self._claims:
                group.create_task(self._claims.run(self._wake.set))
            if self._free:
                group.create_task(self._free.run(request_pass))

    async def _run(self, request_pass: Callable[[], None]) -> None:
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
        """Ask once; return whether devices became known, or a changed reason has to be shown."""
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
        settled = [uid for uid, entries in found.items() if self._settle(uid, entries, asked)]
        return bool(settled) or self._shows_reason()

    def _shows_reason(self) -> bool:
        """Return whether to request a pass for the reason, because it is new since the last such pass.

        A failing socket may give different reasons in turn, one with each call.
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

    def _answer(self, uid: str, waiting: _Waiting, listed: list[Named], asked: float) -> Named | None:
        """Return the devices of a pod by container, None if the answer may be about an earlier pod of that name or too early.

        An answer is valid if it was requested after the pod's sandbox was seen, because the kubelet allocates devices
        before it starts the sandbox.
        """
        if len(listed) != 1:
            return None
        named = {container: listed[0].get(container, ()) for container in waiting.containers}
        is_whole = all(waiting.is_whole(container, entries) for container, entries in named.items())
        is_late = self._sandboxes.is_before(uid, asked)
        return named if is_late or (is_whole and self._sandboxes.is_single(waiting.name)) else None

    def _settle(self, uid: str, named: Named, asked: float) -> bool:
        """Keep an answer; return whether it adds anything. A pod waits while slices have to be listed."""
        waiting = self._waiting[uid]
        new, too_many = {}, set()
        for container, entries in named.items():
            owner = Owner(uid, container)
            if entries is None:
                too_many.add(owner)
            elif (devices := _placed(entries, waiting.claims.get(container, ()), self._claims)) is None:
                self._claim_reasons[uid] = _claim_reason(entries, self._claims)
                return False
            else:
                new[owner] = devices
        del self._waiting[uid]
        if self._early.pop(uid, None) is None:
            self._metrics.devices_unknown_seconds.observe(self._clock() - waiting.since)
        if waiting.awaits_claims and waiting.claims and not self._sandboxes.is_before(uid, asked):
            self._early[uid] = waiting
        self._note_too_many(waiting.name, too_many - self._too_many)
        is_new = any(self._known.get(owner) != its for owner, its in new.items()) or bool(too_many)
        self._keep({**self._known, **new})
        return is_new

    def _note_too_many(self, pod: Name, owners: Collection[Owner]) -> None:
        self._too_many.update(owners)
        for owner in owners:
            facts = {"container": "/".join((*pod, owner.container)), "most": MOST_ENTRIES}
            logger.warning(
                "container has too many devices, their NUMA nodes are not used", extra={"facts": facts}
            )

    def _keep(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        self._known = MappingProxyType(known)
