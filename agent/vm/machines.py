"""The virtual machines of this node: their threads found by what /proc says, and pinned by affinity (interface `VirtualMachines`)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone, Refused
from agent.kernel.affinity import KERNEL, Affinities
from agent.kernel.mover import Bound, Listing, move_threads
from agent.kernel.procfs import TIMES, read_stat
from agent.vm.find import Sandbox, find_container_vmm, find_sandbox_vmm, read_guest_shape
from agent.vm.housekeeping import Housekeeping, read_housekeeping
from agent.vm.node import Node
from agent.vm.outside import count_vhost_threads
from agent.vm.threads import count_threads, is_running, is_there, own_ids, read_threads, rescan_threads
from agent.vm_interfaces import VMPinned
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.planning.vm_masks import IOThread, VMSeen
from pinning.planning.vm_threads import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from agent.vm.node import Roots
    from agent.vm_interfaces import VMPlace
    from pinning.planning.vm_masks import VMMasks
    from pinning.planning.vm_threads import VMM, GuestShape, VMThread, VMThreads

NODE_SECONDS: Final = (
    2.0  # that what all machines share is read once for: a sweep may take some on a busy node
)
# Until a sandbox is searched for again, among all processes of the node: twice as long each time, for the machines of
# some are on another node.
MISSING_SECONDS: Final = 0.5
LONGEST_MISSING_SECONDS: Final = 60.0
ROUNDS: Final = 8  # of pinning while new threads come: the next look has the rest
MOST_PUT: Final = 8_192  # threads, counted again in each round: after as many too the next look has the rest
BOUND: Final = Bound(ROUNDS, MOST_PUT)
HAS_RUN_TICKS: Final = 5  # of CPU time of a vCPU: making it takes less
NO_HOUSEKEEPING: Final = Housekeeping(EMPTY, frozenset())
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # a second


class _Absent(NamedTuple):
    """A machine that was not found, and until when, for how long, it is not looked for again."""

    until: float
    seconds: float


@dataclass(slots=True)
class _Machine:
    """One machine as it was read last."""

    vmm: VMM
    shape: GuestShape | None
    threads: VMThreads
    has_run: bool = False  # its guest: a vCPU has used the CPU
    masks: dict[int, CPUSet] = field(default_factory=dict)  # where each thread may run, unless it ended
    bound: set[int] = field(default_factory=set)  # threads that cannot be moved
    unlisted: str = ""  # why its threads are those of an earlier look
    settled_at: int = 0  # how many threads there were when two listings were the same; 0: they were not
    unplugged: tuple[int, ...] = ()  # the vCPUs that a full look confirmed, fewer than were there before

    def take(self, threads: VMThreads, count: int) -> None:
        """Take over a listing of about so many threads; one that is new may get its name a moment later."""
        is_settled = bool(threads.told_by) and threads == self.threads
        self.threads, self.unlisted = threads, ""
        self.settled_at = count if is_settled and not self.missing_vcpus else 0

    def take_masks(self, masks: Mapping[int, CPUSet]) -> None:
        """Take over where its threads may run; those that ended have no mask."""
        self.masks = {tid: cpus for tid, cpus in masks.items() if cpus}
        self.bound &= self.masks.keys()

    def has_strayed(self, affinities: Affinities) -> bool:
        """Say whether its first thread or a vCPU may run elsewhere than it was read."""
        pinned = (self.vmm.pid, *self.threads.vcpus)
        return any(affinities.read(tid) != self.masks.get(tid, EMPTY) for tid in pinned)

    def confirm(self, before: VMThreads) -> None:
        """Take a smaller number of vCPUs for true when a full look finds the same ones as the look before it."""
        if self.missing_vcpus and self.threads.vcpus == before.vcpus:
            self.unplugged = self.threads.vcpus

    @property
    def expected_vcpus(self) -> int:
        """Return how many vCPUs it has: as its arguments and KVM say, until a full look confirmed fewer."""
        found = self.threads.vcpus
        if found and found == self.unplugged:
            return len(found)
        return max(len(found), self.shape.vcpus if self.shape else 0, self.threads.kvm_vcpus)

    @property
    def missing_vcpus(self) -> int:
        """Return how many of its vCPUs are not found, while others are; 0 when all are."""
        found = len(self.threads.vcpus)
        return self.expected_vcpus - found if found else 0

    def of(self, *roles: Role) -> Iterator[CPUSet]:
        """Yield where the threads of some roles may run."""
        return (
            self.masks[thread.tid]
            for thread in self.threads.threads
            if thread.role in roles and thread.tid in self.masks
        )

    def ranked(self) -> Iterator[tuple[VMThread, int]]:
        """Yield every thread with its rank among those of its role."""
        ranks = {tid: rank for rank, tid in enumerate(self.threads.vcpus)}
        ranks |= {tid: rank for rank, tid in enumerate(self.threads.of(Role.IOTHREAD))}
        for thread in self.threads.threads:
            yield thread, ranks.get(thread.tid, 0)


class KernelVirtualMachines:
    """Finds, reads and pins the machines of a node."""

    def __init__(
        self,
        roots: Roots,
        affinities: Affinities = KERNEL,
        monotonic: Callable[[], float] = time.monotonic,
        cpu_seconds: Callable[[], float] = time.thread_time,
    ) -> None:
        self._roots = roots
        self._affinities = affinities
        self._monotonic = monotonic
        self._cpu_seconds = cpu_seconds
        self._machines: dict[VMPlace, _Machine] = {}
        self._missing: dict[VMPlace, _Absent] = {}
        self._node = Node(roots)
        self._node_until = 0.0

    def kind(self, place: VMPlace) -> str:
        """Return what runs the machine, e.g. "qemu"; empty while nothing does."""
        machine = self._machines.get(place)
        return machine.vmm.kind if machine else ""

    def count(self, place: VMPlace) -> int:
        """Return how many threads it has now, cheaply; 0 when it is not there."""
        machine = self._machines.get(place)
        if machine is None:
            return 0
        own = self._count_own(machine)
        return own and own + count_vhost_threads(self._look(), machine.masks)

    def _count_own(self, machine: _Machine) -> int:
        """Return how many threads its process has."""
        try:
            return count_threads(self._roots, machine.vmm)
        except AgentError:
            return 0

    def has_strayed(self, place: VMPlace) -> bool:
        """Say whether its first thread or a vCPU may run elsewhere than it was seen last, or it has other threads."""
        machine = self._machines.get(place)
        if machine is None:
            return False
        if machine.has_strayed(self._affinities):
            return True
        try:  # after the masks were read: an id that is not listed now may have been another process's
            return own_ids(self._roots, machine.vmm) != machine.threads.own_ids and not machine.unlisted
        except AgentError:
            return False

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Return its threads and where each may run; `fully` looks again for those outside of its process.

        A machine that cannot be listed is still there, with the threads that it had: it is not given up as one that
        ended, whose CPUs others get.
        """
        try:
            machine = self._listed(place, fully=fully)
        except Refused as refused:
            if place not in self._machines:
                return None
            machine = self._machines[place]
            machine.unlisted = str(refused)
        except AgentError:
            self._machines.pop(place, None)
            return None
        machine.take_masks(_read_masks(self._look(), machine, self._affinities))
        if not (machine.has_run or place.is_sandbox):  # no boot of a guest to wait for in a sandbox
            machine.has_run = any(
                _ticks(self._roots.proc / str(tid)) >= HAS_RUN_TICKS for tid in machine.threads.vcpus
            )
        return self._seen(place, machine)

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Pin all threads, listing again until none is to be moved; None when the VMM exited."""
        machine = self._machines.get(place)
        if machine is None:
            return None
        if not is_running(self._roots, machine.vmm):
            return None
        turn = _Turn(machine, masks, lambda: self.read(place) is not None, self._look())
        try:
            moved = move_threads(turn, turn.target, self._affinities, BOUND, self._cpu_seconds)
        except Gone:
            return None
        machine.masks |= moved.masks
        wrong = {tid for tid, (_, wanted) in turn.asked.items() if moved.masks.get(tid, wanted) != wanted}
        machine.bound |= {tid for tid in wrong if not self._affinities.is_movable(tid)}
        seen = self._seen(place, machine)
        refused = frozenset(turn.asked[tid][0] for tid in wrong)
        return VMPinned(seen, refused, is_settled=moved.is_settled) if seen else None

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return the ids of its threads as they were last seen."""
        machine = self._machines.get(place)
        return frozenset(machine.masks) if machine else frozenset()

    def keep(self, places: Collection[VMPlace]) -> None:
        """Forget all other machines."""
        self._machines = {place: self._machines[place] for place in places if place in self._machines}
        self._missing = {place: self._missing[place] for place in places if place in self._missing}

    def _listed(self, place: VMPlace, *, fully: bool) -> _Machine:
        """Return a machine with its threads as they are now; raise AgentError when it is not there."""
        node, cgroups = self._look(fully=fully), place.cgroups
        sandbox_id = place.key if place.is_sandbox else ""
        machine = self._machines.get(place)
        if machine:
            # The count first: a thread that starts during the look changes it.
            known, count = machine.threads, self.count(place)
            if not fully:
                if (
                    count
                    and count == machine.settled_at
                    and own_ids(self._roots, machine.vmm) == machine.threads.own_ids
                ):
                    return machine
                machine.take(rescan_threads(node, known, sandbox_id=sandbox_id), count)
            if fully or len(machine.threads.vcpus) < len(known.vcpus) or machine.missing_vcpus:
                threads = read_threads(node, machine.vmm, cgroups, sandbox_id=sandbox_id, known=known)
                machine.take(threads, count)
            if fully:
                machine.confirm(known)
            return machine
        vmm = self._find(node, place)
        threads = read_threads(node, vmm, cgroups, sandbox_id=sandbox_id)
        self._machines[place] = _Machine(vmm, read_guest_shape(self._roots, vmm), threads)
        return self._machines[place]

    def _find(self, node: Node, place: VMPlace) -> VMM:
        """Return what runs a machine; raise Gone when it is not there."""
        vmm = self._find_in_sandbox(node, place) if place.is_sandbox else _find_in_container(node, place)
        if vmm is None:
            raise Gone(f"no virtual machine of {place.key}")
        return vmm

    def _find_in_sandbox(self, node: Node, place: VMPlace) -> VMM | None:
        now, missing = self._monotonic(), self._missing.pop(place, None)
        if missing and now < missing.until:
            self._missing[place] = missing
            return None
        vmm = find_sandbox_vmm(node, Sandbox(place.key, place.pid, place.cgroups))
        if vmm is None:
            seconds = min(2 * missing.seconds, LONGEST_MISSING_SECONDS) if missing else MISSING_SECONDS
            self._missing[place] = _Absent(now + seconds, seconds)
        return vmm

    def _look(self, *, fully: bool = False) -> Node:
        """Return what all machines share; many are read one after the other, and need it once."""
        if self._monotonic() >= self._node_until:
            self._node = Node(self._roots) if fully else self._node.again()
            self._node_until = self._monotonic() + NODE_SECONDS
        return self._node

    def _seen(self, place: VMPlace, machine: _Machine) -> VMSeen | None:
        """Return a machine by the masks that were read last; None when its first thread has ended."""
        main, shape = machine.masks.get(machine.vmm.pid), machine.shape
        if main is None:
            return None
        house = self._housekeeping(place)
        vcpus = [tid for tid in machine.threads.vcpus if tid in machine.masks]
        missing = _missing(len(vcpus), machine)
        return VMSeen(
            vcpus=() if missing else tuple(machine.masks[tid] for tid in vcpus),
            main=main,
            allowed=union(cpus for tid, cpus in machine.masks.items() if tid not in machine.bound),
            iothreads=tuple(
                IOThread(machine.masks[tid], tid in house.tasks)
                for tid in machine.threads.of(Role.IOTHREAD)
                if tid in machine.masks
            ),
            cores=shape.cores if shape else 1,
            threads=shape.threads if shape else 1,
            is_strict=shape is not None and shape.strict,
            has_pool=shape is not None and shape.iothread_pool,
            housekeeping=house.cpus,
            seconds=time.clock_gettime(time.CLOCK_BOOTTIME) - machine.vmm.started / _TICKS,
            has_run=machine.has_run,
            is_fixed=_is_fixed(machine.vmm, shape),
            reason=missing or machine.threads.reason,
            vhost=union(machine.of(Role.VHOST)),
            notes=(*machine.threads.notes, *filter(None, [machine.unlisted])),
            guest_ids=machine.threads.guest_ids(shape.cores, shape.threads) if shape else (),
        )

    def _housekeeping(self, place: VMPlace) -> Housekeeping:
        """Return what is in KubeVirt's cgroup for the emulator."""
        hierarchy = self._roots.hierarchy
        if place.is_sandbox or place.cgroup is None or hierarchy is None:
            return NO_HOUSEKEEPING
        try:
            return read_housekeeping(hierarchy, place.cgroup) or NO_HOUSEKEEPING
        except AgentError:
            return NO_HOUSEKEEPING


def _ids_now(roots: Roots, machine: _Machine) -> frozenset[int] | None:
    """Return the ids of the threads of its process, the known ones where they cannot be listed; None when it exited."""
    try:
        return own_ids(roots, machine.vmm)
    except Refused:
        return machine.threads.own_ids
    except AgentError:
        return None


def _read_masks(node: Node, machine: _Machine, affinities: Affinities) -> dict[int, CPUSet]:
    """Read where its threads may run. Only what is still its own afterwards counts: an id may be another's by now."""
    threads = machine.threads
    read = {thread.tid: affinities.read(thread.tid) for thread in threads.threads}
    inside, known = _ids_now(node.roots, machine) or frozenset(), machine.threads.own_ids
    return {
        thread.tid: read[thread.tid]
        for thread in threads.threads
        if (thread.tid in inside if thread.tid in known else is_there(node, threads, thread))
    }


class _Turn:
    """One pinning of a machine: its threads as the mover has them, and what was asked for each."""

    def __init__(self, machine: _Machine, masks: VMMasks, read_again: Callable[[], bool], node: Node) -> None:
        self.asked: dict[int, tuple[Role, CPUSet]] = {}
        self._machine = machine
        self._masks = masks
        self._read_again = read_again
        self._node = node
        self._rounds = 0
        self._ranked: dict[int, tuple[VMThread, int]] = {}

    def list(self) -> Listing:
        """Return the threads that were read just now; read them again from the second round on."""
        self._rounds += 1
        if self._rounds > 1 and not self._read_again():
            raise Gone(f"process {self._machine.vmm.pid} exited")
        self._ranked = {thread.tid: (thread, rank) for thread, rank in self._machine.ranked()}
        return Listing(tuple(self._machine.masks))

    def has(self, task: int) -> bool:
        """Say whether an id is still that of the thread; where it is not, the next round lists them all again."""
        if is_there(self._node, self._machine.threads, self._ranked[task][0]):
            return True
        self._machine.settled_at = 0
        return False

    def target(self, task: int, mask: CPUSet) -> CPUSet | None:
        """Return where a thread is to run; None where it does.

        While there are other vCPUs than the masks are for, it is not known which mask is whose.
        """
        thread, rank = self._ranked[task]
        wanted = self._masks.of(thread.role, rank)
        is_known = len(self._machine.threads.vcpus) == len(self._masks.vcpus)
        if mask == wanted or (thread.role is Role.VCPU and not is_known):
            return None
        self.asked[task] = (thread.role, wanted)
        return wanted


def _missing(count: int, machine: _Machine) -> str:
    """Return why the vCPUs found are not all; empty when they are, or cannot be distinguished."""
    expected = machine.expected_vcpus
    if not machine.threads.told_by or count >= expected:
        return ""
    return f"{count} of its {expected} vCPUs are found: the others start or end just now"


def _find_in_container(node: Node, place: VMPlace) -> VMM | None:
    return find_container_vmm(node, place.cgroup) if place.cgroup else None


def _ticks(task: Path) -> int:
    """Return the CPU time of a thread."""
    try:
        return sum(int(ticks) for ticks in read_stat(task)[1][TIMES])
    except OSError:
        return 0


def _is_fixed(vmm: VMM, shape: GuestShape | None) -> bool:
    """Say whether no vCPU can be added to a machine."""
    return vmm.kind == "firecracker" or (shape is not None and shape.most_vcpus <= shape.vcpus)
