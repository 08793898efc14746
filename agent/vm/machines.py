"""The virtual machines of this node: threads read from /proc and pinned by affinity (`VirtualMachines`)."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.errors import AgentError, Gone, Refused
from agent.kernel.affinity import KERNEL, Affinities
from agent.kernel.mover import Bound, Listing, Moved, move_threads
from agent.kernel.procfs import TIMES, read_stat
from agent.vm.find import Sandbox, find_container_vmm, find_sandbox_vmm, read_guest_shape
from agent.vm.host_threads import count_vhost_threads
from agent.vm.housekeeping import Housekeeping, read_housekeeping
from agent.vm.shared_reads import SharedReads
from agent.vm.threads import count_threads, is_running, is_there, own_ids, read_threads, rescan_threads
from agent.vm_interfaces import VMPinned
from pinning.guests.masks import IOThread, VMSeen
from pinning.guests.threads import Role
from pinning.machine.cpuset import EMPTY, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from agent.vm.shared_reads import Roots
    from agent.vm_interfaces import VMPlace
    from pinning.guests.masks import VMMasks
    from pinning.guests.threads import VMM, GuestShape, VMThread, VMThreads

# time for which shared reads are reused; to read all machines may take seconds on a busy node
NODE_SECONDS: Final = 2.0
# Backoff of the search for a sandbox among all processes of the node, because the machines of some runtimes are on
# another node.
MISSING_SECONDS: Final = 0.5
LONGEST_MISSING_SECONDS: Final = 60.0
ROUNDS: Final = 8  # rounds of pinning while new threads appear; the next poll pins the rest
MOST_PUT: Final = 8_192  # threads pinned at once, counted again in each round; the next poll pins the rest
BOUND: Final = Bound(ROUNDS, MOST_PUT)
HAS_RUN_TICKS: Final = 5  # CPU time of a vCPU, in ticks, that proves a running guest; its creation takes less
NO_HOUSEKEEPING: Final = Housekeeping(EMPTY, frozenset())
_TICKS: Final = os.sysconf("SC_CLK_TCK")  # clock ticks per second


class _Absent(NamedTuple):
    """A machine that was not found, with the time of the next search and the backoff in seconds."""

    until: float
    seconds: float


@dataclass(slots=True)
class _CachedMachine:
    """The last reading of one machine."""

    vmm: VMM
    shape: GuestShape | None
    threads: VMThreads
    has_run: bool = False  # whether a vCPU has used CPU time, so that the guest runs
    masks: dict[int, CPUSet] = field(default_factory=dict)  # affinity of each thread that has not exited
    bound: set[int] = field(default_factory=set)  # ids of threads that cannot be moved
    unlisted: str = ""  # why its threads could not be listed at the last reading; empty: they were
    settled_at: int = 0  # number of threads if the last two listings were equal; 0: they were not
    unplugged: tuple[int, ...] = ()  # vCPUs that a full reading confirmed after some were unplugged

    def take(self, threads: VMThreads, count: int) -> None:
        """Store a listing and its thread count; it is settled once two are equal, as new threads get names later."""
        is_settled = bool(threads.identified_by) and threads == self.threads
        self.threads, self.unlisted = threads, ""
        self.settled_at = count if is_settled and not self.missing_vcpus else 0

    def take_masks(self, masks: Mapping[int, CPUSet]) -> None:
        """Store the affinities by thread id; those of exited threads are empty and left out."""
        self.masks = {tid: cpus for tid, cpus in masks.items() if cpus}
        self.bound &= self.masks.keys()

    def has_strayed(self, affinities: Affinities) -> bool:
        """Return whether the affinity of the first thread or of a vCPU changed since it was read."""
        read, masks = affinities.read, self.masks
        return any(read(tid) != masks.get(tid, EMPTY) for tid in (self.vmm.pid, *self.threads.vcpus))

    def confirm(self, before: VMThreads) -> None:
        """Accept a smaller number of vCPUs if a full reading finds the same ones as the reading before it."""
        if self.missing_vcpus and self.threads.vcpus == before.vcpus:
            self.unplugged = self.threads.vcpus

    @property
    def expected_vcpus(self) -> int:
        """Return the number of vCPUs by QEMU's arguments and KVM, or a smaller one that a full reading confirmed."""
        found = self.threads.vcpus
        if found and found == self.unplugged:
            return len(found)
        return max(len(found), self.shape.vcpus if self.shape else 0, self.threads.kvm_vcpus)

    @property
    def missing_vcpus(self) -> int:
        """Return how many vCPUs were not found; 0 if all or none were found."""
        found = len(self.threads.vcpus)
        return self.expected_vcpus - found if found else 0

    def of(self, *roles: Role) -> Iterator[CPUSet]:
        """Yield the affinities of the threads with the given roles."""
        return (
            self.masks[thread.tid]
            for thread in self.threads.threads
            if thread.role in roles and thread.tid in self.masks
        )

    def ranked(self) -> Iterator[tuple[VMThread, int]]:
        """Yield every thread with its index among the vCPUs or I/O threads; 0 for other roles."""
        ranks = {tid: rank for rank, tid in enumerate(self.threads.vcpus)}
        ranks |= {tid: rank for rank, tid in enumerate(self.threads.of(Role.IOTHREAD))}
        for thread in self.threads.threads:
            yield thread, ranks.get(thread.tid, 0)


class KernelVirtualMachines:
    """Finds, reads and pins the virtual machines of a node."""

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
        self._machines: dict[VMPlace, _CachedMachine] = {}
        self._missing: dict[VMPlace, _Absent] = {}
        self._reads = SharedReads(roots)
        self._node_until = 0.0

    def kind(self, place: VMPlace) -> str:
        """Return the kind of VMM, e.g. "qemu"; empty if none runs."""
        machine = self._machines.get(place)
        return machine.vmm.kind if machine else ""

    def count(self, place: VMPlace) -> int:
        """Return the current number of a machine's threads, with vhost threads, in one call; 0 if it is not known."""
        machine = self._machines.get(place)
        if machine is None:
            return 0
        own = self._count_own(machine)
        return own and own + count_vhost_threads(self._look(), machine.masks)

    def _count_own(self, machine: _CachedMachine) -> int:
        """Return the number of threads of a machine's process; 0 if it cannot be read."""
        try:
            return count_threads(self._roots, machine.vmm)
        except AgentError:
            return 0

    def has_strayed(self, place: VMPlace) -> bool:
        """Return whether the first thread or a vCPU changed its affinity, or the set of threads changed."""
        machine = self._machines.get(place)
        if machine is None:
            return False
        if machine.has_strayed(self._affinities):
            return True
        try:  # list after reading the affinities: an id that is missing now may have belonged to another process then
            return own_ids(self._roots, machine.vmm) != machine.threads.own_ids and not machine.unlisted
        except AgentError:
            return False

    def read(self, place: VMPlace, *, fully: bool = False) -> VMSeen | None:
        """Return a machine with its threads' affinities; `fully` searches again for threads outside of its process.

        If its threads cannot be listed, those of the last reading are returned. It must not count as exited,
        because its CPUs would then be given to other containers.
        """
        masks = None
        try:
            masks = None if fully else self._settled_masks(place)
            machine = self._machines[place] if masks else self._listed(place, fully=fully)
        except Refused as refused:
            if place not in self._machines:
                return None
            machine = self._machines[place]
            machine.unlisted = str(refused)
        except AgentError:
            self._machines.pop(place, None)
            return None
        machine.take_masks(masks or _read_masks(self._look(), machine, self._affinities))
        if not (machine.has_run or place.is_sandbox):  # a sandbox is listed after its guest has booted
            machine.has_run = any(
                _ticks(self._roots.proc / str(tid)) >= HAS_RUN_TICKS for tid in machine.threads.vcpus
            )
        return self._seen(place, machine)

    def pin(self, place: VMPlace, masks: VMMasks) -> VMPinned | None:
        """Pin all threads to the CPUs of their roles, re-listing until no new one appears; None if the VMM exited."""
        machine = self._machines.get(place)
        if machine is None:
            return None
        if not is_running(self._roots, machine.vmm):
            return None
        turn = _Turn(machine, masks, lambda: self.read(place) is not None, self._look())
        try:
            moved = turn.move(self._affinities, self._cpu_seconds)
        except Gone:
            return None
        machine.masks |= moved.masks
        wrong = {tid for tid, (_, wanted) in turn.asked.items() if moved.masks.get(tid, wanted) != wanted}
        machine.bound |= {tid for tid in wrong if not self._affinities.is_movable(tid)}
        seen = self._seen(place, machine)
        refused = frozenset(turn.asked[tid][0] for tid in wrong)
        return VMPinned(seen, refused, is_settled=moved.is_settled) if seen else None

    def tasks(self, place: VMPlace) -> frozenset[int]:
        """Return the ids of a machine's threads at the last reading."""
        machine = self._machines.get(place)
        return frozenset(machine.masks) if machine else frozenset()

    def keep(self, places: Collection[VMPlace]) -> None:
        """Forget all machines except those at these places."""
        self._machines = {place: self._machines[place] for place in places if place in self._machines}
        self._missing = {place: self._missing[place] for place in places if place in self._missing}

    def _settled_masks(self, place: VMPlace) -> Mapping[int, CPUSet] | None:
        """Return the affinities by thread id if the last listing is still valid; None if threads must be listed."""
        machine = self._machines.get(place)
        if machine is None or not machine.settled_at or self.count(place) != machine.settled_at:
            return None
        read = {thread.tid: self._affinities.read(thread.tid) for thread in machine.threads.threads}
        if own_ids(self._roots, machine.vmm) != machine.threads.own_ids:
            return None
        return _still_there(read, self._look(), machine, machine.threads.own_ids)

    def _listed(self, place: VMPlace, *, fully: bool) -> _CachedMachine:
        """Return a machine with its current threads; raise AgentError if it does not exist."""
        reads, cgroups = self._look(fully=fully), place.cgroups
        sandbox_id = place.key if place.is_sandbox else ""
        machine = self._machines.get(place)
        if machine:
            # The count is read first: if a thread starts during the reading, the next poll sees another count.
            known, count = machine.threads, self.count(place)
            if not fully:
                machine.take(rescan_threads(reads, known, sandbox_id=sandbox_id), count)
            if fully or len(machine.threads.vcpus) < len(known.vcpus) or machine.missing_vcpus:
                threads = read_threads(reads, machine.vmm, cgroups, sandbox_id=sandbox_id, known=known)
                machine.take(threads, count)
            if fully:
                machine.confirm(known)
            return machine
        vmm = self._find(reads, place)
        threads = read_threads(reads, vmm, cgroups, sandbox_id=sandbox_id)
        self._machines[place] = _CachedMachine(vmm, read_guest_shape(self._roots, vmm), threads)
        return self._machines[place]

    def _find(self, reads: SharedReads, place: VMPlace) -> VMM:
        """Return the VMM of a machine; raise Gone if there is none."""
        vmm = self._find_in_sandbox(reads, place) if place.is_sandbox else _find_in_container(reads, place)
        if vmm is None:
            raise Gone(f"no virtual machine of {place.key}")
        return vmm

    def _find_in_sandbox(self, reads: SharedReads, place: VMPlace) -> VMM | None:
        now, missing = self._monotonic(), self._missing.pop(place, None)
        if missing and now < missing.until:
            self._missing[place] = missing
            return None
        vmm = find_sandbox_vmm(reads, Sandbox(place.key, place.pid, place.cgroups))
        if vmm is None:
            seconds = min(2 * missing.seconds, LONGEST_MISSING_SECONDS) if missing else MISSING_SECONDS
            self._missing[place] = _Absent(now + seconds, seconds)
        return vmm

    def _look(self, *, fully: bool = False) -> SharedReads:
        """Return the reads shared by all machines, at most NODE_SECONDS old."""
        if self._monotonic() >= self._node_until:
            self._reads = SharedReads(self._roots) if fully else self._reads.again()
            self._node_until = self._monotonic() + NODE_SECONDS
        return self._reads

    def _seen(self, place: VMPlace, machine: _CachedMachine) -> VMSeen | None:
        """Return a machine with the affinities of the last reading; None if its first thread has exited."""
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
        """Return the content of KubeVirt's housekeeping cgroup; an empty one if it cannot be read."""
        hierarchy = self._roots.hierarchy
        if place.is_sandbox or place.cgroup is None or hierarchy is None:
            return NO_HOUSEKEEPING
        try:
            return read_housekeeping(hierarchy, place.cgroup) or NO_HOUSEKEEPING
        except AgentError:
            return NO_HOUSEKEEPING


def _ids_now(roots: Roots, machine: _CachedMachine) -> frozenset[int] | None:
    """Return the current thread ids of a machine's process, the last ones if it cannot be listed; None if it exited."""
    try:
        return own_ids(roots, machine.vmm)
    except Refused:
        return machine.threads.own_ids
    except AgentError:
        return None


def _read_masks(reads: SharedReads, machine: _CachedMachine, affinities: Affinities) -> dict[int, CPUSet]:
    """Return the affinities of a machine's threads by id.

    Only threads that exist before and after the read are included, because ids are reused.
    """
    read = {thread.tid: affinities.read(thread.tid) for thread in machine.threads.threads}
    return _still_there(read, reads, machine, _ids_now(reads.roots, machine) or frozenset())


def _still_there(
    read: Mapping[int, CPUSet], reads: SharedReads, machine: _CachedMachine, inside: frozenset[int]
) -> dict[int, CPUSet]:
    """Return the affinities of threads that still exist; `inside` are the current thread ids of the VMM process."""
    threads, known = machine.threads, machine.threads.own_ids
    return {
        thread.tid: read[thread.tid]
        for thread in threads.threads
        if (thread.tid in inside if thread.tid in known else is_there(reads, threads, thread))
    }


class _Turn:
    """One pinning of a machine: its threads for the mover, and the requested mask of each."""

    def __init__(
        self, machine: _CachedMachine, masks: VMMasks, read_again: Callable[[], bool], reads: SharedReads
    ) -> None:
        self.asked: dict[int, tuple[Role, CPUSet]] = {}
        self._machine = machine
        self._masks = masks
        self._read_again = read_again
        self._reads = reads
        self._rounds = 0
        self._ranked: dict[int, tuple[VMThread, int]] = {}

    def list(self) -> Listing:
        """Return the ids of the threads; from the second round on read the threads again."""
        self._rounds += 1
        if self._rounds > 1 and not self._read_again():
            raise Gone(f"process {self._machine.vmm.pid} exited")
        self._ranked = {thread.tid: (thread, rank) for thread, rank in self._machine.ranked()}
        return Listing(tuple(self._machine.masks))

    def move(self, affinities: Affinities, cpu_seconds: Callable[[], float]) -> Moved:
        """Move the threads; do nothing if the last reading found each of them on its CPUs; raise Gone.

        A move reads every affinity once more, so it is skipped then.
        """
        masks = self._machine.masks
        found = ((thread, rank, masks.get(thread.tid)) for thread, rank in self._machine.ranked())
        if all(self._wanted(thread, rank, mask) is None for thread, rank, mask in found if mask):
            return Moved({}, is_settled=True)
        return move_threads(self, self.target, affinities, BOUND, cpu_seconds)

    def has(self, task: int) -> bool:
        """Return whether an id still belongs to the listed thread; if not, the next round lists all threads again."""
        if is_there(self._reads, self._machine.threads, self._ranked[task][0]):
            return True
        self._machine.settled_at = 0
        return False

    def target(self, task: int, mask: CPUSet) -> CPUSet | None:
        """Return the CPUs to which to move a thread with this affinity; None if it already has them."""
        thread, rank = self._ranked[task]
        wanted = self._wanted(thread, rank, mask)
        if wanted is not None:
            self.asked[task] = (thread.role, wanted)
        return wanted

    def _wanted(self, thread: VMThread, rank: int, mask: CPUSet) -> CPUSet | None:
        """Return a thread's wanted CPUs; None if it has them, or is a vCPU and the masks are for another vCPU count."""
        wanted = self._masks.of(thread.role, rank)
        is_known = len(self._machine.threads.vcpus) == len(self._masks.vcpus)
        return None if mask == wanted or (thread.role is Role.VCPU and not is_known) else wanted


def _missing(count: int, machine: _CachedMachine) -> str:
    """Return why some vCPUs were not found; empty if all were, or if vCPUs cannot be identified."""
    expected = machine.expected_vcpus
    if not machine.threads.identified_by or count >= expected:
        return ""
    return f"{count} of its {expected} vCPUs are found: the others are starting or ending"


def _find_in_container(reads: SharedReads, place: VMPlace) -> VMM | None:
    return find_container_vmm(reads, place.cgroup) if place.cgroup else None


def _ticks(task: Path) -> int:
    """Return the CPU time of a thread in clock ticks; 0 if it exited."""
    try:
        return sum(int(ticks) for ticks in read_stat(task)[1][TIMES])
    except OSError:
        return 0


def _is_fixed(vmm: VMM, shape: GuestShape | None) -> bool:
    """Return whether no vCPU can be hotplugged into the machine."""
    return vmm.kind == "firecracker" or (shape is not None and shape.most_vcpus <= shape.vcpus)
