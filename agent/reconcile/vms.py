"""Pin the threads of virtual machines: after the writes of a pass, and when threads start.

A cgroup confines threads to a set of CPUs and pins none to one CPU. Kernels before 6.2 also reset the affinity of all
threads when the cpuset is written. So each machine is polled: its thread count and vCPUs every few seconds, every
thread about once a minute, and at once after a foreign write of its cgroup.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from agent.node_state import VMState
from agent.reconcile.machine_record import MachineRecord, VMTarget, place_of
from agent.vm_interfaces import VMCPUs, VMPinned
from pinning.guests.masks import BOOT_SECONDS, Launcher, launcher_masks, sandbox_masks
from pinning.machine.cpuset import union

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from agent.clock import Clock
    from agent.interfaces import RuntimeSandbox
    from agent.reconcile.agenda import Trigger
    from agent.reconcile.machine_record import Masks
    from agent.vm_interfaces import VirtualMachines, VMPlace
    from pinning.guests.masks import VMMasks, VMSeen
    from pinning.machine.cpuset import CPUSet
    from pinning.machine.topology import Topology

LOOK: Final = "machines"  # key of the look at machines on the agenda
POLL_SECONDS: Final = 5.0  # between two readings of the thread counts
SWEEP_SECONDS: Final = 59.0  # least time between two readings of every thread: each second sweep of the agent
SOON_SECONDS: Final = 1.0  # between two readings while a machine waits for libvirt to pin it
# Rate limit for reading a machine that starts and ends threads: a reading costs 25 to 100 microseconds a thread.
REST_SECONDS_A_THREAD: Final = 0.004
# Threads that are read without rate limit: guests of hundreds of vCPUs have fewer.
FREE_THREADS: Final = 1_000
AT_ONCE: Final = 8  # machines between two yields to the event loop
WAITS: Final = "libvirt will pin its vCPUs soon, or corepin once the guest runs"

AFFINITY_ALONE: Final = (
    "the masks of its threads alone keep it on its CPUs: its containers have no CPU limit, and Kata would derive its"
    " number of vCPUs from their cpusets"
)
STILL_SENT: Final = (
    "Kata accepted cpusets for its containers, and still gets them, though none has a CPU limit: it may derive"
    " the machine's number of vCPUs from them"
)
UNSETTLED: Final = "it starts threads faster than they are moved: some may run elsewhere until the next check"

logger = logging.getLogger(__name__)


class VMKeeper:
    """Pins the threads of the node's virtual machines."""

    def __init__(self, vms: VirtualMachines, clock: Clock, trigger: Trigger) -> None:
        self._vms = vms
        self._clock = clock
        self._trigger = trigger
        trigger.agenda.add(LOOK, self.look)
        self.sandboxes: dict[str, MachineRecord] = {}  # every sandbox of the node, by its id
        self._launchers: dict[str, MachineRecord] = {}  # launchers with a target, by container id
        self._topology: Topology | None = None
        self._is_paused = False
        self._read_by_pass: set[str] = set()  # sandboxes whose affinities this pass has read
        self._next_sweep = 0.0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Read no machine until the block ends, because a pass does, with newer targets."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    def listed(self, sandboxes: Iterable[RuntimeSandbox]) -> None:
        """Store the runtime's list of sandboxes."""
        known, self.sandboxes = self.sandboxes, {}
        for sandbox in sandboxes:
            record = known.get(sandbox.id) or MachineRecord(place_of(sandbox), self._clock.monotonic())
            record.listed(sandbox)
            self.sandboxes[sandbox.id] = record
        for key in known.keys() - self.sandboxes.keys():
            known[key].leave()

    async def follow(self, targets: Mapping[VMPlace, VMTarget], topology: Topology) -> None:
        """Pin these machines from now on, and no others; read those whose threads may have changed."""
        self._topology = topology
        self._aim(targets)
        if followed := self._followed():
            is_soon = any(record.is_due or record.is_changing for record in followed)
            self._trigger.agenda.within(LOOK, SOON_SECONDS if is_soon else POLL_SECONDS)
        self._vms.keep({record.place for record in (*self._launchers.values(), *self.sandboxes.values())})
        read, self._read_by_pass = self._read_by_pass, set()
        for number, record in enumerate(self._followed(), 1):
            if self._is_wanted(record, has_masks=record.place.key in read):
                self._look(record)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    async def read(self) -> None:
        """Read every sandbox's affinities from the kernel."""
        for number, record in enumerate(self.sandboxes.values(), 1):
            seen = self._vms.read(record.place)
            self._read_by_pass.add(record.place.key)
            record.read(_cpus_of(seen) if seen else None, self._clock.monotonic())
            # polls compare with this reading from now on, so a change that it shows must be recorded here
            record.has_strayed |= record.looked is not None and record.looked != self._masks_of(record, seen)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)

    def confine(self, record: MachineRecord, own: CPUSet, others: CPUSet) -> VMCPUs | None:
        """Move the threads of a sandbox at once; return their affinities as read back, None if they are not found."""
        record.aim(record.place, VMTarget(record.pod_uid, own, others), self._clock.monotonic())
        # `fully`, because other actions wait until no thread of the machine is left on the CPUs that it loses.
        seen = self._look(record, fully=True)
        record.read(_cpus_of(seen) if seen else None, self._clock.monotonic())
        return record.threads

    def sandbox_cgroups(self) -> frozenset[str]:
        """Return the cgroups with threads of sandboxes, if known."""
        return frozenset(cgroup for record in self.sandboxes.values() for cgroup in record.place.cgroups)

    def tasks(self, key: str) -> frozenset[int]:
        """Return the threads of the machine in this container, which are on fewer CPUs because they are pinned."""
        record = self._launchers.get(key)
        return self._vms.tasks(record.place) if record else frozenset()

    def states(self) -> Mapping[str, VMState]:
        """Return the state read back of each machine, by pod."""
        return {record.target.pod_uid: record.state for record in self._followed() if record.state}

    def containers_written(self, keys: Collection[str]) -> None:
        """Read the machines of these containers in this pass, because their cpusets were written."""
        for record in self._followed():
            record.is_due |= record.place.key in keys

    def cgroup_written(self, cgroup: str) -> None:
        """Read the machine of a cgroup in the next pass, after a foreign write of its cpuset."""
        for record in self._followed():
            record.is_due |= cgroup in record.place.cgroups

    async def look(self) -> float | None:
        """Read machines whose thread count changed; return the seconds until the next check, None without machines."""
        if await self.poll():
            self._trigger.request_pass()
        return self.pause() if self._followed() else None

    def pause(self) -> float:
        """Return the seconds until the next poll."""
        waits = any(map(self._is_expected, self._followed()))
        return SOON_SECONDS if waits else POLL_SECONDS

    def _is_expected(self, record: MachineRecord) -> bool:
        """Return whether the next poll is soon: a machine is new and not found yet, or its threads may have changed."""
        is_new = self._clock.monotonic() - record.known_since < BOOT_SECONDS
        return record.is_due or record.is_unsettled or (record.state is None and is_new)

    async def poll(self) -> bool:
        """Read machines with changed thread counts or stray vCPUs, waiting ones and new ones.

        Return whether a state changed.
        """
        return await self._look_at(self._is_wanted)

    async def sweep(self) -> bool:
        """Read every thread of every machine, if due; return whether a state changed."""
        now = self._clock.monotonic()
        if now < self._next_sweep:
            return False
        self._next_sweep = now + SWEEP_SECONDS
        return await self._look_at(lambda _: True, fully=True)

    async def _look_at(self, is_wanted: Callable[[MachineRecord], bool], *, fully: bool = False) -> bool:
        is_news = False
        for number, record in enumerate(self._followed(), 1):
            if self._is_paused:
                break
            if record.has_target and is_wanted(record):
                before = record.state
                self._look(record, fully=fully)
                is_news |= record.state != before
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return is_news

    def _followed(self) -> list[MachineRecord]:
        """Return the machines with a target."""
        return [
            *self._launchers.values(),
            *(record for record in self.sandboxes.values() if record.has_target),
        ]

    def _aim(self, targets: Mapping[VMPlace, VMTarget]) -> None:
        """Set the targets of these machines, and leave all others alone."""
        now, known, self._launchers = self._clock.monotonic(), self._launchers, {}
        for record in (*known.values(), *self.sandboxes.values()):
            if record.place not in targets:
                record.leave()
        for place, target in targets.items():
            record = self.sandboxes.get(place.key) or known.get(place.key) or MachineRecord(place, now)
            record.aim(place, target, now)
            if not place.is_sandbox:
                self._launchers[place.key] = record

    def _is_wanted(self, record: MachineRecord, *, has_masks: bool = False) -> bool:
        """Return whether to look at a machine; with `has_masks` this pass has compared its affinities."""
        if record.is_due:
            return True
        if self._clock.monotonic() < record.rests_until:
            return False
        if record.is_unsettled or record.state is None or record.has_strayed:
            return True
        is_changed = self._vms.count(record.place) != record.count
        return is_changed or not (has_masks or not self._vms.has_strayed(record.place))

    def _look(self, record: MachineRecord, *, fully: bool = False) -> VMSeen | None:
        """Read a machine, pin its stray threads, and record the result."""
        # The count is read first: if a thread starts during the reading, the next poll sees another count.
        count = self._vms.count(record.place)
        seen = self._vms.read(record.place, fully=fully)
        record.is_due = record.is_changing = record.has_strayed = False
        pinned = self._pin(record, seen) if seen else None
        record.rests_until = self._clock.monotonic() + self._rest_seconds(record)
        if pinned is None:
            record.was_absent()
            return None
        record.count, record.looked = count, self._masks_of(record, pinned.seen)
        note = _note(record, pinned.seen) if record.place.is_sandbox else ""
        kind, when = self._vms.kind(record.place), self._clock.text()
        state = _state(record, pinned, kind, when, note)
        if record.was_read(state):
            _log(record, state)
        return pinned.seen

    def _masks_of(self, record: MachineRecord, seen: VMSeen | None) -> Masks | None:
        if seen is None:
            return None
        masks = seen.vcpus, seen.main, seen.allowed, seen.iothreads, seen.vhost
        return *masks, self._vms.tasks(record.place)

    def _rest_seconds(self, record: MachineRecord) -> float:
        return REST_SECONDS_A_THREAD * max(0, len(self._vms.tasks(record.place)) - FREE_THREADS)

    def _pin(self, record: MachineRecord, seen: VMSeen) -> VMPinned | None:
        now = self._clock.monotonic()
        record.has_count(seen, now)
        masks = _masks(record, seen, self._topology, now)
        record.masks, record.is_waiting = masks or record.masks, masks is None
        if masks is None:
            return VMPinned(seen)
        pinned = self._vms.pin(record.place, masks)
        if pinned and (
            len(pinned.seen.vcpus) != len(masks.vcpus) or not pinned.is_settled
        ):  # threads that started during the reading
            record.is_changing = True
        return pinned


def _masks(record: MachineRecord, seen: VMSeen, topology: Topology | None, now: float) -> VMMasks | None:
    target = record.target
    if record.place.is_sandbox:
        return sandbox_masks(seen, target.cpus, target.others, target.doubt)
    if topology is None:
        return None
    launcher = Launcher(topology, target.cpus, target.smt, record.masks, now - record.since)
    return launcher_masks(seen, launcher)


def _cpus_of(seen: VMSeen) -> VMCPUs:
    return VMCPUs(seen.allowed, union(seen.vcpus), seen.is_fixed, seen.seconds)


def _note(record: MachineRecord, seen: VMSeen) -> str:
    """Return a note for a sandbox whose cpusets may change its number of vCPUs."""
    if record.has_quota or seen.is_fixed:
        return ""
    if record.is_sent:
        return STILL_SENT
    return AFFINITY_ALONE if record.target.cpus else ""


def _state(record: MachineRecord, pinned: VMPinned, kind: str, when: str, note: str) -> VMState:
    """Return the state of a machine as read back."""
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
        return "the kernel does not let its vCPUs run on their CPUs: its cgroup has others"
    return masks.reason


def _log(record: MachineRecord, state: VMState) -> None:
    facts = {
        "vm": record.place.key,
        "vcpus": [str(cpus) for cpus in state.vcpus],
        "emulator": str(state.emulator),
        "reason": state.reason,
        "refused": list(state.refused),
    }
    logger.info("vm threads read back", extra={"facts": facts})
