"""Devices that the kubelet gave to containers, and their NUMA nodes, from its PodResources API.

The kubelet allocates the devices of a pod before it creates the pod's sandbox, and names containers without the uid of
their pod. While a pod waits for its devices the agent calls the kubelet outside of passes, with backoff and a rate
limit: the kubelet's limit of 100 calls a second is for all clients together. An answer with news requests a pass.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError
from agent.kubelet.call_limit import CallLimit
from agent.kubelet.call_results import LONGEST_SECONDS, CallResults
from agent.kubelet.device_list import MOST_ENTRIES, ClaimedDevice
from agent.kubelet.waiting_pods import Sandboxes, Waiting, merged
from pinning.contract import DRA_CPU_CLASS, DRA_DRIVER, IrqWord
from pinning.machine.cpuset import EMPTY
from pinning.machine.near import Device
from pinning.planning.node_config import DEFAULT, is_placed_beside
from pinning.planning.observed import (
    DEVICES_NOT_NAMED,
    MORE_MAY_FOLLOW,
    DeviceTimes,
    Owner,
    claim_not_known,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agent.kubelet.claimed_devices import ClaimedDevices
    from agent.kubelet.device_list import DeviceList, Entries, Name, Named
    from agent.kubelet.free_devices import FreeDeviceWatch
    from agent.metrics import Metrics
    from pinning.machine.near_rooms import Kinds
    from pinning.planning.node_config import NodeConfig
    from pinning.planning.observed import Observed, SeenPod

FIRST_SECONDS: Final = 0.025  # first delay between two calls of the kubelet
# Delay after which missing devices are reported; the kubelet usually names them within a second.
LATE_SECONDS: Final = 5.0
LATE: Final = f"the kubelet answers, and has not named its devices for {LATE_SECONDS:.0f} seconds"
LATE_FOR_SOME: Final = (
    f"the kubelet has not named its devices, or not all, for {LATE_SECONDS:.0f} seconds:"
    " its pod's sandbox does not run"
)
TOO_MANY: Final = (
    f"the kubelet names more than {MOST_ENTRIES} devices of it, and none of them are read:"
    " request fewer, or set its device-policy to none"
)
# The second is the class of upstream's CPU driver.
CPU_DRIVERS: Final = frozenset({DRA_DRIVER, DRA_CPU_CLASS})

logger = logging.getLogger(__name__)


def _placed(
    entries: Entries, named: Collection[str], claims: ClaimedDevices | None
) -> tuple[Device, ...] | None:
    """Return the devices of a container that names these claims; None: a claimed device's NUMA node is not known yet.

    CPUs of claims do not count as devices.
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
    return tuple(devices)


def _not_listed(entries: Entries, named: Collection[str]) -> tuple[Device, ...]:
    """Return placeholders for the claims that the kubelet does not list: devices without a NUMA node."""
    listed = {entry.claim for entry in entries if isinstance(entry, ClaimedDevice)}
    return tuple(map(claim_not_known, sorted(set(named) - listed)))


def _with_claims(
    devices: Mapping[Owner, tuple[Device, ...]], named: Named, waiting: Waiting
) -> dict[Owner, tuple[Device, ...]]:
    """Return the devices of a pod's containers, with placeholders for the claims that the kubelet does not list."""
    return {
        owner: its + _not_listed(named[owner.container] or (), waiting.claims.get(owner.container, ()))
        for owner, its in devices.items()
    }


def _claim_reason(entries: Entries, claims: ClaimedDevices | None) -> str:
    claimed = (entry for entry in entries if isinstance(entry, ClaimedDevice))
    return next(filter(None, (claims.reason(entry) for entry in claimed if claims)), "")


def _has_use(pod: SeenPod, config: NodeConfig) -> bool:
    """Return whether the devices of a pod's containers matter: for its CPUs, or for its interrupts."""
    claims = pod.all_claims
    return any(IrqWord.DEVICES in claim.irq or is_placed_beside(claim, config) for claim in claims) or any(
        IrqWord.DEVICES in use.irq for use in pod.claim_uses
    )


def _log_too_many(pod: Name, owners: Collection[Owner]) -> None:
    for owner in owners:
        facts = {"container": "/".join((*pod, owner.container)), "most": MOST_ENTRIES}
        logger.warning(
            "container has too many devices, their NUMA nodes are not used", extra={"facts": facts}
        )


async def _woken(wake: asyncio.Event, seconds: float | None) -> None:
    """Wait until the event is set, for some seconds at most; None: without a limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()


class KubeletDevices:
    """The devices of containers that claim CPUs, kept from the kubelet's answer until their pod is deleted.

    Passes call `follow` and `known`, which never wait; `run` calls the kubelet. Without `claims` the devices of
    ResourceClaims are not looked up.
    """

    def __init__(
        self,
        kubelet: DeviceList,
        metrics: Metrics,
        config: NodeConfig = DEFAULT,
        clock: Callable[[], float] = monotonic,
        free: FreeDeviceWatch | None = None,
        claims: ClaimedDevices | None = None,
        limit: CallLimit | None = None,
        time_of_day: Callable[[], str] = str,  # only for display; the default returns an empty text
    ) -> None:
        self._kubelet = kubelet
        self._free = free
        self._claims = claims
        self.looks_up_claims = claims is not None
        self._config = config
        self._metrics = metrics
        self._clock = clock
        self._time_of_day = time_of_day
        self.times: Mapping[str, DeviceTimes] = MappingProxyType({})  # by uid of the pod
        self._known: Mapping[Owner, tuple[Device, ...]] = MappingProxyType({})
        self._too_many: set[Owner] = set()
        self._waiting: dict[str, Waiting] = {}  # pods for which the kubelet is asked, by uid
        # Pods with devices of each resource and claim whose sandbox does not run yet: a claim may get further devices.
        self._resting: dict[str, Waiting] = {}
        self._early: dict[str, Named] = {}  # devices of pods that may have more, by uid
        # Pods whose devices come from the checkpoint and may be incomplete, until the next complete observation.
        self._resumed: set[str] = set()
        # Why the NUMA nodes of a pod's claimed devices are not known, by uid.
        self._claim_reasons: dict[str, str] = {}
        self._sandboxes = Sandboxes()
        self._calls = CallResults(metrics, clock)
        self._limit = limit or CallLimit(clock)
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def known(self) -> Mapping[Owner, tuple[Device, ...]]:
        """Return the devices of each container that the kubelet has listed, also if it has none.

        Containers that are also in `unknown` may have more.
        """
        return self._known

    def free(self) -> Kinds | None:
        """Return the free devices of each resource by their NUMA nodes; None if not known, or not asked for."""
        return self._free.known() if self._free else None

    def unknown(self) -> Mapping[Owner, str]:
        """Return the containers of which some or all devices are not known, and the reason."""
        waiting = {
            Owner(uid, container): self._claim_reasons.get(uid) or self._reason_of(uid, waiting)
            for uid, waiting in {**self._waiting, **self._resting}.items()
            for container in waiting.kinds
            if uid in self._early or Owner(uid, container) not in self._known
        }
        early = [Owner(uid, container) for uid, named in self._early.items() for container in named]
        return {**dict.fromkeys(early, MORE_MAY_FOLLOW), **waiting, **dict.fromkeys(self._too_many, TOO_MANY)}

    def _reason_of(self, uid: str, waiting: Waiting) -> str:
        is_late = self._clock() - waiting.since >= LATE_SECONDS
        if uid in self._early:
            failure = self._calls.reason if uid in self._waiting else ""
            return failure or (LATE_FOR_SOME if is_late else MORE_MAY_FOLLOW)
        return self._calls.reason or (LATE if is_late else DEVICES_NOT_NAMED)

    def resume(self, known: Mapping[Owner, tuple[Device, ...]]) -> None:
        """Continue with the devices of a checkpoint."""
        self._known = MappingProxyType(dict(known))
        self._resumed = {owner.pod_uid for owner in known}

    def follow(self, observed: Observed, names: Mapping[str, Name]) -> None:
        """Wait for the devices of new pods, and forget deleted pods; `names` has every pod of the runtime."""
        now = self._clock()
        if self._free:
            self._free.follow(observed)
        uids = {owner.pod_uid for owner in (*self._known, *self._too_many)}
        if gone := {uid for uid in uids if observed.is_gone(uid)}:
            self._too_many = {owner for owner in self._too_many if owner.pod_uid not in gone}
            kept = {owner: its for owner, its in self._known.items() if owner.pod_uid not in gone}
            self._known = MappingProxyType(kept)
            self._early = {uid: its for uid, its in self._early.items() if uid not in gone}
            self.times = {uid: its for uid, its in self.times.items() if uid not in gone}
        everyone = {**names, **{pod.uid: (pod.namespace, pod.name) for pod in observed.pods}}
        started = self._sandboxes.note(everyone, names, now)
        pods = [pod for pod in observed.by_age if _has_use(pod, self._config)]
        if observed.containers_complete:
            self._doubt_resumed([pod for pod in pods if pod.uid in self._resumed], observed.running_uids, now)
        self._await(pods, now, started)
        self._claim_reasons = {uid: why for uid, why in self._claim_reasons.items() if uid in self._waiting}

    def _doubt_resumed(self, pods: Collection[SeenPod], running: Collection[str], now: float) -> None:
        """Look up devices of a checkpoint again if some may be missing: earlier agents saved incomplete answers.

        Pods with a running container are skipped, because it was placed beside the saved devices.
        """
        for pod in pods:
            self._resumed.discard(pod.uid)
            saved: Named = {name: self._known.get(Owner(pod.uid, name), ()) for name in self._kinds(pod)}
            if pod.uid not in running and not self._new(pod, now).is_whole(saved):
                self._early[pod.uid] = dict.fromkeys(saved, ())

    def _await(self, pods: Collection[SeenPod], now: float, started: Collection[str]) -> None:
        """Wait for devices of these pods that are not known; `started` are the pods whose sandboxes are new."""
        before, resting = self._waiting, self._resting
        self._resting = {
            pod.uid: resting[pod.uid] for pod in pods if pod.uid in resting and pod.uid not in self._sandboxes
        }
        self._waiting = {
            pod.uid: before.get(pod.uid) or resting.get(pod.uid) or self._new(pod, now)
            for pod in pods
            if pod.uid not in self._resting and self._is_lacking(pod)
        }
        if self._waiting.keys() - before.keys() or not self._waiting.keys().isdisjoint(started):
            self._wake.set()

    def _is_lacking(self, pod: SeenPod) -> bool:
        owners = (Owner(pod.uid, container) for container in self._kinds(pod))
        is_unknown = any(owner not in self._known and owner not in self._too_many for owner in owners)
        return is_unknown or pod.uid in self._early

    def _kinds(self, pod: SeenPod) -> Mapping[str, int]:
        claiming = pod.named_claims.keys() if self._claims else ()
        return {**dict.fromkeys(claiming, 0), **pod.device_kinds}

    def _new(self, pod: SeenPod, now: float) -> Waiting:
        name, claims, asked = (pod.namespace, pod.name), pod.named_claims, self._time_of_day()
        return Waiting(name, self._kinds(pod), now, claims, self.looks_up_claims, asked)

    def sandbox_started(self, uid: str) -> None:
        """Record that a pod's sandbox runs; called in the thread of the NRI connection."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._sandbox_seen, uid)

    def _sandbox_seen(self, uid: str) -> None:
        self._sandboxes.saw(uid, self._clock())
        if uid in self._resting:
            self._waiting[uid] = self._resting.pop(uid)
        if uid in self._waiting:
            self._wake.set()

    async def run(self, request_pass: Callable[[], None]) -> None:
        """Call the kubelet while a pod waits, and for free devices if these are published, until cancelled."""
        self._loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._run(request_pass))
            if self._claims:
                group.create_task(self._claims.run(self._wake.set))
            if self._free:
                group.create_task(self._free.run(request_pass))

    async def _run(self, request_pass: Callable[[], None]) -> None:
        while True:
            await _woken(self._wake, LATE_SECONDS if self._resting else None)
            wait = FIRST_SECONDS
            while self._waiting:
                self._wake.clear()
                await self._limit.turn()
                with self._calls.in_flight(self._shows_reason, request_pass):
                    if await self._ask():
                        request_pass()
                await _woken(self._wake, min(wait, self._calls.longest_wait(self._waiting.values())))
                wait = FIRST_SECONDS if self._wake.is_set() else min(LONGEST_SECONDS, wait * 2)
            self._wake.clear()
            if self._shows_reason():
                request_pass()

    async def _ask(self) -> bool:
        """Query the kubelet once; return whether devices became known, or the reason for unknown devices changed."""
        asked = self._clock()
        try:
            named = await self._kubelet.ask({waiting.name for waiting in self._waiting.values()})
        except AgentError as error:
            self._calls.failed(error, asked)
            return self._shows_reason()
        self._calls.answered(asked)
        waiting = list(self._waiting.items())
        news = [uid for uid, it in waiting if self._answer(uid, it, named.get(it.name, []), asked)]
        return bool(news) or self._shows_reason()

    def _shows_reason(self) -> bool:
        """Return whether to request a pass because the reason for which a pod waits is new."""
        pods = {**self._waiting, **self._resting}
        return self._calls.shows({uid: self._reason_of(uid, it) for uid, it in pods.items()})

    def _answer(self, uid: str, waiting: Waiting, listed: list[Named], asked: float) -> bool:
        """Store the devices of a waiting pod; return whether any of them are new.

        An answer is final if it was requested after the pod's sandbox was seen, because the kubelet allocates devices
        before it starts the sandbox. An earlier answer may lack devices, or be about another pod of that name.
        """
        is_final = self._sandboxes.is_before(uid, asked)
        if len(listed) != 1 or not (is_final or self._sandboxes.is_single(waiting.name)):
            return False
        named = merged(self._early.get(uid, {}), waiting.of_containers(listed[0]))
        if is_final or waiting.is_whole(named):
            return self._settle(uid, waiting, named)
        return any(named.values()) and self._note_early(uid, waiting, named)

    def _settle(self, uid: str, waiting: Waiting, named: Named) -> bool:
        """Store a final answer; return whether it is new. The pod still waits if slices must be listed first."""
        new = self._placed(uid, waiting, named)
        if new is None:
            return False
        if self.looks_up_claims:
            new = _with_claims(new, named, waiting)
        del self._waiting[uid]
        was_early = self._early.pop(uid, None) is not None
        self._metrics.devices_unknown_seconds.observe(self._clock() - waiting.since)
        too_many = {Owner(uid, container) for container, entries in named.items() if entries is None}
        _log_too_many(waiting.name, too_many - self._too_many)
        self._too_many |= too_many
        self.times = {**self.times, uid: DeviceTimes(waiting.asked, self._time_of_day())}
        return self._add(new) or was_early or bool(too_many)

    def _note_early(self, uid: str, waiting: Waiting, named: Named) -> bool:
        """Store an answer that may lack devices; return whether it is new."""
        new = self._placed(uid, waiting, {name: entries for name, entries in named.items() if entries})
        if new is None:
            return False
        self._early[uid] = named
        if waiting.lists_all(named) and uid not in self._sandboxes:
            self._resting[uid] = self._waiting.pop(uid)
        return self._add(new)

    def _placed(self, uid: str, waiting: Waiting, named: Named) -> dict[Owner, tuple[Device, ...]] | None:
        """Return the devices of a pod's containers; None while the NUMA node of a claimed device is not known."""
        found = {}
        for container, entries in named.items():
            if entries is None:
                continue
            devices = _placed(entries, waiting.claims.get(container, ()), self._claims)
            if devices is None:
                self._claim_reasons[uid] = _claim_reason(entries, self._claims)
                return None
            found[Owner(uid, container)] = devices
        return found

    def _add(self, new: Mapping[Owner, tuple[Device, ...]]) -> bool:
        """Store the devices of containers; return whether any are new."""
        if all(self._known.get(owner) == devices for owner, devices in new.items()):
            return False
        self._known = MappingProxyType({**self._known, **new})
        return True
