"""Pinning of virtual machines' threads: after the writes of a pass, and when threads start.

A cgroup confines threads to a set of CPUs and pins none to one CPU. Kernels before 6.2 also reset the affinity of all
threads when the cpuset is written. So each machine is polled: its thread count and vCPUs every few seconds, every
thread with each sweep, and at once after a foreign write of its cgroup.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from agent.node_state import VMState
from agent.reconcile.vm_targets import NO_TARGET, VMTarget, place_of
from agent.vm_interfaces import VMCPUs, VMPinned
from pinning.machine.cpuset import union
from pinning.planning.vm_masks import PATIENCE_SECONDS, Launcher, launcher_masks, sandbox_masks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping

    from agent.clock import Clock
    from agent.interfaces import RuntimeSandbox
    from agent.vm_interfaces import VirtualMachines, VMPlace
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology
    from pinning.planning.vm_masks import VMMasks, VMSeen

POLL_SECONDS: Final = 5.0  # between two looks at the thread counts
SWEEP_SECONDS: Final = (
    59.0  # at least between two looks at every thread: each second sweep of the agent has one
)
SOON_SECONDS: Final = 1.0  # the same while a machine waits for its pins
# Rate limit of looks at a machine that starts and ends threads: a look costs 25 to 100 microseconds a thread.
REST_SECONDS_A_THREAD: Final = 0.004
FREE_THREADS: Final = 1_000  # no machine rests for these: guests of hundreds of vCPUs have fewer
AT_ONCE: Final = 8  # machines before others get their turn
WAITS: Final = "its vCPUs are pinned by libvirt soon, or by corepin once the guest runs"

AFFINITY_ALONE: Final = (
    "the masks of its threads alone keep it on its CPUs: its containers have no CPU limit, and by their cpusets Kata"
    " would choose how many vCPUs it has"
)
STILL_TOLD: Final = (
    "Kata took cpusets for its containers, and goes on being told them, though none has a CPU limit: by these it may"
    " choose how many vCPUs the machine has"
)
UNSETTLED: Final = "it starts threads faster than they are moved: some may run elsewhere until a later look"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class VMRecord:
    """The record of one running machine."""

    place: VMPlace
    known_since: float  # on the monotonic clock
    target: VMTarget = NO_TARGET
    is_due: bool = True  # it is to be looked at, whatever it does itself
    is_waiting: bool = False  # for libvirt to pin it
    is_changing: bool = False  # it had other vCPUs than before when it was last looked at
    count: int = 0  # of its threads when it was last looked at
    rests_until: float = 0.0  # on the monotonic clock
    vcpus: int | None = None  # the number of them then
    since: float = 0.0  # when that number changed, on the monotonic clock
    masks: VMMasks | None = None  # what it was put on last
    state: VMState | None = None  # None: it is not there

    def has_count(self, seen: VMSeen, now: float) -> None:
        """Take note of the number of vCPUs: of a machine that is older than its record it did not change just now.

        Where it did, another look comes soon: a thread that is called like its maker, a vCPU, hides all of them.
        """
        if self.vcpus is None:
            self.since = now - seen.seconds
        elif self.vcpus != len(seen.vcpus):
            self.since, self.is_changing = now, True
        self.vcpus = len(seen.vcpus)

    @property
    def is_unsettled(self) -> bool:
        """Say whether another look comes soon, though its threads are as many as before."""
        return self.is_waiting or self.is_changing

    def was_read(self, state: VMState | None) -> bool:
        """Take over what was read back; say whether it is news. The time is that of the first such reading."""
        before, self.state = self.state, state
        if before and state and replace(state, when=before.when) == before:
            self.state = before
        return self.state != before


class VMKeeper:
    """Pins the threads of the node's virtual machines."""

    def __init__(self, vms: VirtualMachines, clock: Clock, request_pass: Callable[[], None]) -> None:
        self._vms = vms
        self._clock = clock
        self._request_pass = request_pass
        self._records: dict[str, VMRecord] = {}
        self.sandboxes: Mapping[str, RuntimeSandbox] = {}  # of the node, by id
        self.told: frozenset[str] = frozenset()  # those for whose containers the runtime took cpusets
        self._topology: Topology | None = None
        self._changed = asyncio.Event()  # machines came, or other targets
        self._is_paused = False
        self._next_sweep = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Look at no machine until the block ends: a pass does, and its targets are newer."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def listed(self, sandboxes: Iterable[RuntimeSandbox]) -> None:
        """Know the sandboxes of the node from now on."""
        self.sandboxes = {sandbox.id: sandbox for sandbox in sandboxes}

    async def follow(self, targets: Mapping[VMPlace, VMTarget], topology: Topology) -> None:
        """Pin these machines and no others from now on; look at those that need it."""
        self._topology = topology
        self._records = {place.key: self._record(place, target) for place, target in targets.items()}
        if any(record.is_due or record.is_changing for record in self._records.values()):
            self._changed.set()
        self._vms.keep({*targets, *map(place_of, self.sandboxes.values())})
        for number, record in enumerate(self._records.values(), 1):
            if self._is_wanted(record):
                self._look(record)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    def allowed(self, sandbox_id: str) -> VMCPUs | None:
        """Return where the threads of a sandbox may run now; None when its machine is not found."""
        sandbox = self.sandboxes.get(sandbox_id)
        seen = self._vms.read(place_of(sandbox)) if sandbox else None
        return _cpus_of(seen) if seen else None

    def confine(self, sandbox_id: str, own: CPUSet, others: CPUSet) -> VMCPUs | None:
        """Put the threads of a sandbox elsewhere at once, wherever they are; return where they may run then, as read back."""
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None:
            return None
        record = self._record(place_of(sandbox), VMTarget(sandbox.pod_uid, own, others))
        self._records[sandbox_id] = record
        seen = self._look(record, fully=True)  # others wait until no thread of it is left on their CPUs
        return _cpus_of(seen) if seen else None

    def target(self, sandbox_id: str) -> VMTarget | None:
        """Return where a sandbox was put last; None while it was put nowhere."""
        record = self._records.get(sandbox_id)
        return record.target if record else None

    def sandbox_cgroups(self) -> frozenset[str]:
        """Return where the threads of sandboxes are, as far as that is known."""
        places = map(place_of, self.sandboxes.values())
        return frozenset(cgroup for place in places for cgroup in place.cgroups)

    def tasks(self, key: str) -> frozenset[int]:
        """Return the threads that are pinned here and do not count as drift."""
        record = self._records.get(key)
        return self._vms.tasks(record.place) if record else frozenset()

    def states(self) -> Mapping[str, VMState]:
        """Return what was read back of each machine, by pod."""
        return {record.target.pod_uid: record.state for record in self._records.values() if record.state}

    def containers_written(self, keys: Collection[str]) -> None:
        """Look at the machines of these containers with this pass: their cpusets were written."""
        for key in self._records.keys() & keys:
            self._records[key].is_due = True

    def cgroup_written(self, cgroup: str) -> None:
        """Look at the machine of a cgroup with the next pass, after a foreign write of its cpuset."""
        for record in self._records.values():
            record.is_due |= cgroup in record.place.cgroups

    async def run(self) -> None:
        """Look at machines with more or fewer threads than before, until cancelled."""
        while True:
            await self._wait()
            try:
                is_news = await self.poll()
            except Exception:  # the loop's edge: a bug in one look must not end the agent
                logger.exception("vm look crashed")
            else:
                if is_news:
                    self._request_pass()

    async def _wait(self) -> None:
        """Sleep until the next poll, which comes sooner when a pass brought other machines or targets."""
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.pause()):
                await self._changed.wait()
                await asyncio.sleep(SOON_SECONDS)

    def pause(self) -> float:
        """Return the seconds until the next poll."""
        waits = any(map(self._is_expected, self._records.values()))
        return SOON_SECONDS if waits else POLL_SECONDS

    def _is_expected(self, record: VMRecord) -> bool:
        """Say whether something is about to happen: a machine starts some time after its container."""
        is_new = self._clock.monotonic() - record.known_since < PATIENCE_SECONDS
        return record.is_due or record.is_unsettled or (record.state is None and is_new)

    async def poll(self) -> bool:
        """Look at machines with other thread counts or strayed vCPUs, that wait, or were not seen yet; say if that is news."""
        return await self._look_at(self._is_wanted)

    async def sweep(self) -> bool:
        """Look at every thread of every machine, now and then; say whether that is news."""
        now = self._clock.monotonic()
        if now < self._next_sweep:
            return False
        self._next_sweep = now + SWEEP_SECONDS
        return await self._look_at(lambda _: True, fully=True)

    async def _look_at(self, is_wanted: Callable[[VMRecord], bool], *, fully: bool = False) -> bool:
        is_news = False
        for number, record in enumerate(list(self._records.values()), 1):
            if self._is_paused:
                break
            if record.place.key in self._records and is_wanted(record):
                before = record.state
                self._look(record, fully=fully)
                is_news |= record.state != before
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return is_news

    def _record(self, place: VMPlace, target: VMTarget) -> VMRecord:
        record = self._records.get(place.key) or self._new(place)
        record.is_due |= (place, target) != (record.place, record.target)
        record.place, record.target = place, target
        return record

    def _new(self, place: VMPlace) -> VMRecord:
        return VMRecord(place, self._clock.monotonic())

    def _is_wanted(self, record: VMRecord) -> bool:
        if record.is_due:
            return True
        if self._clock.monotonic() < record.rests_until:
            return False
        if record.is_unsettled or record.state is None:
            return True
        return self._vms.count(record.place) != record.count or self._vms.has_strayed(record.place)

    def _look(self, record: VMRecord, *, fully: bool = False) -> VMSeen | None:
        """Read a machine, pin what is elsewhere than it is to be, and note what came of it."""
        # The count first: a thread that starts during the look changes it.
        count = self._vms.count(record.place)
        seen = self._vms.read(record.place, fully=fully)
        record.is_due = record.is_changing = False
        pinned = self._pin(record, seen) if seen else None
        record.rests_until = self._clock.monotonic() + self._rest_seconds(record)
        if pinned is None:
            record.count, record.vcpus, record.masks, record.is_waiting = 0, None, None, False
            record.was_read(None)
            return None
        record.count = count
        sandbox = self.sandboxes.get(record.place.key)
        note = _note(sandbox, pinned.seen, record.target, self.told) if sandbox else ""
        kind, when = self._vms.kind(record.place), self._clock.text()
        state = _state(record, pinned, kind, when, note)
        if record.was_read(state):
            _log(record, state)
        return pinned.seen

    def _rest_seconds(self, record: VMRecord) -> float:
        return REST_SECONDS_A_THREAD * max(0, len(self._vms.tasks(record.place)) - FREE_THREADS)

    def _pin(self, record: VMRecord, seen: VMSeen) -> VMPinned | None:
        now = self._clock.monotonic()
        record.has_count(seen, now)
        masks = _masks(record, seen, self._topology, now)
        record.masks, record.is_waiting = masks or record.masks, masks is None
        if masks is None:
            return VMPinned(seen)
        pinned = self._vms.pin(record.place, masks)
        if pinned and (
            len(pinned.seen.vcpus) != len(masks.vcpus) or not pinned.is_settled
        ):  # threads started in the meantime
            record.is_changing = True
        return pinned


def _masks(record: VMRecord, seen: VMSeen, topology: Topology | None, now: float) -> VMMasks | None:
    target = record.target
    if record.place.is_sandbox:
        return sandbox_masks(seen, target.cpus, target.others, target.doubt)
    if topology is None:
        return None
    launcher = Launcher(topology, target.cpus, target.smt, record.masks, now - record.since)
    return launcher_masks(seen, launcher)


def _cpus_of(seen: VMSeen) -> VMCPUs:
    return VMCPUs(seen.allowed, union(seen.vcpus), seen.is_fixed, seen.seconds)


def _note(sandbox: RuntimeSandbox, seen: VMSeen, target: VMTarget, told: Container[str]) -> str:
    """Return what its user has to know of a sandbox whose vCPUs may become more or fewer by its cpusets."""
    if sandbox.has_quota or seen.is_fixed:
        return ""
    if sandbox.id in told:
        return STILL_TOLD
    return AFFINITY_ALONE if target.cpus else ""


def _state(record: VMRecord, pinned: VMPinned, kind: str, when: str, note: str) -> VMState:
    """Return what was read back of a machine."""
    seen, masks = pinned.seen, None if record.is_waiting else record.masks
    is_one_to_one = (
        masks is not None and masks.is_one_to_one and masks.vcpus == seen.vcpus and pinned.is_settled
    )
    notes = (masks.note if masks else "", note, "" if pinned.is_settled else UNSETTLED, *seen.notes)
    return VMState(
        kind=kind,
        cpus=record.target.cpus,
        vcpus=seen.vcpus,
        emulator=seen.main,
        iothreads=tuple(thread.cpus for thread in seen.iothreads),
        vhost=seen.vhost,
        is_one_to_one=is_one_to_one,
        reason=_reason(masks, is_one_to_one=is_one_to_one) if pinned.is_settled else UNSETTLED,
        note="; ".join(filter(None, notes)),
        refused=tuple(sorted(pinned.refused)),
        guest_ids=seen.guest_ids if is_one_to_one and record.place.is_sandbox else (),
        when=when,
    )


def _reason(masks: VMMasks | None, *, is_one_to_one: bool) -> str:
    if masks is None:
        return WAITS
    if masks.is_one_to_one and not is_one_to_one:
        return "the kernel does not let its vCPUs run where they are to: its cgroup has other CPUs"
    return masks.reason


def _log(record: VMRecord, state: VMState) -> None:
    facts = {
        "vm": record.place.key,
        "vcpus": [str(cpus) for cpus in state.vcpus],
        "emulator": str(state.emulator),
        "reason": state.reason,
        "refused": list(state.refused),
    }
    logger.info("vm threads read back", extra={"facts": facts})
