"""Kata sandboxes: the record of each virtual machine, and its move as a whole.

Kata runs a machine on the union of the cpusets sent for its containers. So each container is sent the same set, and the
threads are moved too: before the call, so that they leave CPUs at once, and again after it, because only then the
cgroup has the new CPUs, and some kernels reset affinities when it is written. Whether a machine runs on its CPUs is
decided by the affinities read from the kernel.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from agent.node_state import Path, VMState
from agent.reconcile.exposure import seconds_in_vm
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.planning.observed import SeenSandbox, State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping

    from agent.clock import Clock
    from agent.reconcile.container_record import ContainerRecord
    from agent.reconcile.machine_record import MachineRecord
    from agent.reconcile.vms import VMKeeper
    from agent.vm_interfaces import VMCPUs
    from pinning.planning.run_sets import SandboxSet

# Budget of waits for lost machines: their threads are not found, so they may run on any CPU.
LOST_SECONDS: Final = 30.0
WINDOW_SECONDS: Final = 600.0  # period of this budget: node-wide, so that many machines cannot extend it
SLOT_SECONDS: Final = 10.0  # granularity with which used budget expires
NOT_FOUND: Final = "its threads are not found, so that its CPUs are unknown: look at the log of the agent"
NOT_TAKEN: Final = "the runtime did not take the CPUs of every container"


@dataclass(slots=True)
class WaitBudget:
    """Node-wide budget of waiting for lost machines: LOST_SECONDS in WINDOW_SECONDS.

    The budget is node-wide, so creating many such machines cannot extend the delay.
    """

    # Waited seconds, by number of the time slot in which the wait ended.
    waited: dict[int, float] = field(default_factory=dict)
    since: float | None = None  # start of the wait that is not counted yet; None: no wait

    def begin(self, now: float) -> None:
        """Start to count a wait."""
        self.since = now if self.since is None else self.since

    def count(self, now: float) -> None:
        """Add the wait to the budget used, and end it."""
        if self.since is not None:
            slot = int(now // SLOT_SECONDS)
            self.waited = self._recent(now)
            self.waited[slot] = self.waited.get(slot, 0.0) + now - self.since
        self.since = None

    def left(self, now: float) -> float:
        """Return the remaining budget in seconds; at 0 and below none is left."""
        uncounted = 0.0 if self.since is None else now - self.since
        return LOST_SECONDS - sum(self._recent(now).values()) - uncounted

    def _recent(self, now: float) -> dict[int, float]:
        oldest = int((now - WINDOW_SECONDS) // SLOT_SECONDS)
        return {slot: seconds for slot, seconds in self.waited.items() if slot >= oldest}


@dataclass(slots=True)
class Sandboxes:
    """The sandboxes of the node with their planned CPUs, and the wait budget for lost ones."""

    vms: VMKeeper
    clock: Clock
    wait_budget: WaitBudget = field(default_factory=WaitBudget)

    @property
    def records(self) -> Mapping[str, MachineRecord]:
        """The sandboxes by id."""
        return self.vms.sandboxes

    async def read(self) -> None:
        """Read every machine's affinities from the kernel; the wait for lost machines ends here and is counted."""
        self.wait_budget.count(self.clock.monotonic())
        await self.vms.read()

    @property
    def threads(self) -> dict[str, VMCPUs | None]:
        """Return the last reading of each machine's threads."""
        return {key: record.threads for key, record in self.records.items()}

    def cpus(self, sandbox_id: str) -> CPUSet:
        """Return the CPUs of a machine's threads; empty if they are not found."""
        record = self.records.get(sandbox_id)
        return record.threads.cpus if record and record.threads else EMPTY

    def seen(self, containers: Iterable[ContainerRecord]) -> tuple[SeenSandbox, ...]:
        """Return every machine as observed, for the planner."""
        sent: dict[str, list[CPUSet]] = {}
        for container in containers:
            if container.seen.state is not State.EXITED:
                sent.setdefault(container.seen.sandbox, []).append(container.sent)
        now = self.clock.monotonic()
        for key, record in self.records.items():
            record.is_sent = any(sent.get(key, ()))
        return tuple(
            _seen(record, sent.get(key, []), is_missed=self.missed_until(record, now) > now)
            for key, record in self.records.items()
        )

    def missed_until(self, record: MachineRecord, now: float) -> float:
        """Return the time until which actions wait for a lost machine; `now` if they do not."""
        if record.lost_since is None:
            return now
        until = min(record.lost_since + LOST_SECONDS, now + self.wait_budget.left(now))
        if until > now:
            self.wait_budget.begin(now)
        return until

    def waiting(self, now: float) -> frozenset[str]:
        """Return the machines to leave alone now: they are in backoff after a failed move."""
        return frozenset(key for key, record in self.records.items() if record.retry.not_before > now)

    def look_back(self, moved: Collection[str]) -> None:
        """Clear the errors of machines that the plan does not move, because they reached their CPUs."""
        for key, record in self.records.items():
            if record.retry.reason and key not in moved:
                record.retry.reset()

    def lost(self, targets: Mapping[str, SandboxSet]) -> Mapping[str, VMState]:
        """Return the reported state of lost machines that hold CPUs, by pod."""
        return {
            record.pod_uid: VMState("", targets[key].own, (), EMPTY, reason=NOT_FOUND)
            for key, record in self.records.items()
            if record.threads is None and key in targets and targets[key].own
        }

    @property
    def failures(self) -> Iterator[str]:
        """The names of machines that are lost or have not reached their CPUs."""
        now = self.clock.monotonic()
        failing = (
            record for record in self.records.values() if record.retry.reason or record.threads is None
        )
        return (record.name for record in failing if not record.is_starting(now))


def _seen(record: MachineRecord, sent: list[CPUSet], *, is_missed: bool) -> SeenSandbox:
    """Return a machine as observed.

    While actions wait for a lost machine, its CPUs are unknown. After the wait it counts as running on the cpuset that
    the runtime accepted for all its containers; if the runtime refused the last cpuset, no action waits for it.
    """
    threads, key, pod_uid = record.threads, record.place.key, record.pod_uid
    taken = tuple(cpus for cpus in sent if cpus or record.takes_cpusets)
    if threads:
        return SeenSandbox(key, pod_uid, threads.cpus, threads.vcpus, taken)
    if is_missed:
        return SeenSandbox(key, pod_uid, EMPTY, sent=taken)
    same = taken[0] if len(set(taken)) == 1 else EMPTY
    is_awaited = not record.is_refused
    return SeenSandbox(key, pod_uid, same, sent=taken, is_movable=bool(taken), is_awaited=is_awaited)


class SandboxMover:
    """Moves one machine. `send` sends one container's CPUs to the runtime; True if it accepted them."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        send: Callable[[ContainerRecord, CPUSet], Awaitable[bool]],
        clock: Clock,
    ) -> None:
        self._sandboxes = sandboxes
        self._send = send
        self._clock = clock

    async def move(self, sandbox_id: str, target: SandboxSet, containers: Iterable[ContainerRecord]) -> bool:
        """Move a machine with its live containers; return whether it now runs only on its new CPUs."""
        record = self._sandboxes.records[sandbox_id]
        live = [container for container in containers if container.seen.state is not State.EXITED]
        found, are_accepted = self._confine(record, target), True
        if due := _to_send(record, live, found, target):
            are_accepted = all(
                await asyncio.gather(*(self._send(container, target.cpus) for container in due))
            )
            found = self._confine(record, target)
        if found is None:
            return self._note_lost(record, are_accepted=are_accepted)
        self._note(record, live, found, target, are_accepted=are_accepted)
        return found.cpus <= target.cpus

    def _confine(self, record: MachineRecord, target: SandboxSet) -> VMCPUs | None:
        return self._sandboxes.vms.confine(record, target.own, target.others)

    def _note_lost(self, record: MachineRecord, *, are_accepted: bool) -> bool:
        """Record that a machine is lost; return whether it counts as moved.

        After the wait it does if the runtime accepted its CPUs, because there is no better evidence.
        """
        record.is_refused = not are_accepted
        now = self._clock.monotonic()
        until = self._sandboxes.missed_until(record, now)
        if until > now:
            record.retry.failed(NOT_FOUND, now, latest=until)
            return False
        if are_accepted:
            record.retry.reset()
        else:
            record.retry.failed(NOT_TAKEN, now)
        return are_accepted

    def _note(
        self,
        record: MachineRecord,
        live: Iterable[ContainerRecord],
        found: VMCPUs,
        target: SandboxSet,
        *,
        are_accepted: bool,
    ) -> None:
        """Record the CPUs read back for the threads, and the containers for which these are the planned ones."""
        for container in live:
            container.wrote(found.cpus, self._clock.text(), Path.AFFINITY)
            if found.cpus == target.cpus:
                container.was_right(target.cpus, seconds_in_vm(container, self._clock))
        if not target.is_reached(found.cpus, found.vcpus):
            record.retry.failed(_difference(found, target), self._clock.monotonic())
        elif are_accepted:
            record.retry.reset()
        else:
            record.retry.failed(NOT_TAKEN, self._clock.monotonic())


def _to_send(
    record: MachineRecord, live: list[ContainerRecord], found: VMCPUs | None, target: SandboxSet
) -> list[ContainerRecord]:
    """Return the containers whose new cpuset is sent to the runtime.

    If cpusets may change the number of vCPUs, only cpusets that the runtime already has are replaced, unless a thread
    still may run elsewhere.
    """
    if record.takes_cpusets or (found and not found.cpus <= target.cpus):
        return live
    return [container for container in live if container.sent]


def _difference(found: VMCPUs, target: SandboxSet) -> str:
    vcpus = f", its vCPUs {found.vcpus}" if found.vcpus else ""
    return f"{target.cpus} was written to its threads, and the kernel lets them use {found.cpus}{vcpus}"
