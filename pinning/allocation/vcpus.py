"""Which CPU each vCPU of a virtual machine runs on, and where its emulator and its I/O threads run. Pure.

Without an SMT policy the choice is KubeVirt's own, so that nothing moves where KubeVirt has pinned already: guest
siblings on host siblings, NUMA nodes and cores in the machine's order. vCPUs and I/O threads are given by rank: what
numbers the guest gives them does not matter. What does not fit is an error, never a part of a virtual machine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

from pinning.contract import IOThreadsPolicy, SMTPolicy
from pinning.errors import BadGuest, NotEnoughCPUs
from pinning.machine.cpuset import EMPTY, MAX_CPU, CPUSet, union

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.machine.topology import Topology

MAX_COUNT: Final = 2**32 - 1  # KubeVirt's counts are uint32
MAX_IO_THREADS: Final = MAX_CPU + 1

Core = tuple[int, ...]  # the CPUs of one core that the virtual machine may use, ascending


@dataclass(frozen=True, slots=True)
class GuestTopology:
    """The CPUs that a guest sees, without sockets that are not plugged in."""

    sockets: int
    cores: int
    threads: int

    @property
    def all_cores(self) -> int:
        """The cores of all sockets."""
        return self.sockets * self.cores

    @property
    def vcpus(self) -> int:
        """The vCPUs: the N-th is a thread of core N // threads."""
        return self.all_cores * self.threads


@dataclass(frozen=True, slots=True)
class VCPUPlacement:
    """The one CPU of each vCPU, and the CPUs on which the rest of a virtual machine runs."""

    vcpus: tuple[int, ...]  # in the order of vCPUs
    emulator: CPUSet  # its own CPUs where it is isolated
    iothread_pins: tuple[CPUSet, ...] = ()  # in the order of I/O threads
    warnings: tuple[str, ...] = ()  # what the SMT policy wants and these CPUs do not allow

    @property
    def iothreads(self) -> CPUSet:
        """The CPUs of all I/O threads."""
        return union(self.iothread_pins)


def place_vcpus(
    topology: Topology,
    cpus: Iterable[int],
    guest: GuestTopology,
    *,
    strict: bool = False,
    isolate_emulator: bool = False,
    even_parity: bool = False,
    iothreads: int = 0,
    iothreads_policy: str | None = None,
    smt: str | None = None,
) -> VCPUPlacement:
    """Return a place among the CPUs for each thread of a virtual machine.

    `strict` keeps every core of the guest on one NUMA node. `isolate_emulator` gives the emulator a CPU that no other
    thread has, and with `even_parity` two where the sum would be odd else. I/O threads have CPUs of their own under
    `supplementalPool`. Under `require` and `isolate` emulator and I/O threads keep off the cores of vCPUs as far as
    the CPUs allow it; under `isolate` every vCPU has a core of its own; `prefer` changes nothing.
    Raise BadGuest for what contradicts itself, and NotEnoughCPUs for what does not fit.
    """
    policy = _policy(guest, iothreads, iothreads_policy, smt)
    pool = iothreads if iothreads_policy == IOThreadsPolicy.SUPPLEMENTAL_POOL else 0
    emulators = 0
    if isolate_emulator:
        emulators = 2 if even_parity and (guest.vcpus + pool) % 2 == 0 else 1
    usable = _usable(topology, cpus, policy)
    return _VM(topology, usable, guest, policy, strict, emulators, pool, iothreads).placed()


def _policy(guest: GuestTopology, iothreads: int, iothreads_policy: str | None, smt: str | None) -> SMTPolicy:
    """Return the SMT policy; raise BadGuest for a virtual machine that no CPUs could satisfy."""
    for name in ("sockets", "cores", "threads"):
        if not 1 <= getattr(guest, name) <= MAX_COUNT:
            raise BadGuest(f"{name} of a guest must be 1 to {MAX_COUNT}: give what its topology states")
    if not 0 <= iothreads <= MAX_IO_THREADS:
        raise BadGuest(f"a virtual machine may have 0 to {MAX_IO_THREADS} I/O threads: use fewer")
    if iothreads_policy is not None and iothreads_policy not in list(IOThreadsPolicy):
        raise BadGuest(
            f"ioThreadsPolicy {iothreads_policy[:40]!r} is unknown: use one of {', '.join(IOThreadsPolicy)}"
        )
    if smt is not None and smt not in list(SMTPolicy):
        raise BadGuest(f"smt-policy {smt[:40]!r} is unknown: use one of {', '.join(SMTPolicy)}")
    if smt == SMTPolicy.ISOLATE and guest.threads > 1:
        raise BadGuest(
            f"the guest has {guest.threads} threads per core, and smt-policy isolate gives every vCPU a core of its own:"
            " set threads to 1, or choose smt-policy require"
        )
    return SMTPolicy.PREFER if smt is None else SMTPolicy(smt)


def _usable(topology: Topology, cpus: Iterable[int], policy: SMTPolicy) -> CPUSet:
    """Return those of the CPUs that may run threads: online ones, under `isolate` one of each core."""
    online = CPUSet(cpus) & topology.online
    if policy is not SMTPolicy.ISOLATE:
        return online
    first: dict[int, int] = {}
    for cpu in online:
        first.setdefault(topology.core_of(cpu).id, cpu)
    return CPUSet(first.values())


@dataclass(frozen=True, slots=True)
class _VM:
    """One virtual machine and the CPUs that it may use; those of the emulator and of the pool run nothing else."""

    topology: Topology
    usable: CPUSet
    guest: GuestTopology
    policy: SMTPolicy
    strict: bool
    emulators: int
    pool: int
    iothreads: int

    def placed(self) -> VCPUPlacement:
        """Place all of it, or raise NotEnoughCPUs."""
        self._refuse_too_few()
        vcpus, spare = self._fitted()
        busy = self._busy(vcpus)
        spare.sort(key=busy.__contains__)
        own = CPUSet(spare[self.pool : self.pool + self.emulators])
        emulator = own or self.usable - busy or self.usable
        pins = self._iothread_pins(vcpus, spare, emulator)
        return VCPUPlacement(tuple(vcpus), emulator, pins, self._warnings(busy, emulator, union(pins)))

    def _refuse_too_few(self) -> None:
        needs = {"vCPUs": self.guest.vcpus, "I/O threads": self.pool, "the emulator": self.emulators}
        found, beside = len(self.usable), ""
        for name, count in needs.items():
            if count > found:
                unit = "core" if self.policy is SMTPolicy.ISOLATE else "CPU"
                detail = f"wanted {count} {unit}{'s' * (count > 1)} for {name}, found {found}{beside}"
                raise NotEnoughCPUs(sum(needs.values()), len(self.usable), detail)
            found -= count
            beside = beside or f" beside {count} vCPUs"

    def _fitted(self) -> tuple[list[int], list[int]]:
        """Return the CPUs of the vCPUs, and what is left; under an SMT policy with cores left for the others.

        With `strict` and cores of more than two threads, which KubeVirt has not, not every way is tried.
        """
        nodes = self._nodes()
        vcpus, spare = _fit(nodes, self.guest, strict=self.strict)
        if len(vcpus) < self.guest.vcpus:
            raise self._crossing(len(vcpus))
        wanted = max(1, self.pool + self.emulators)
        if len(self.usable - self._busy(vcpus)) >= wanted:
            return vcpus, spare
        free = _left_free(nodes, self.guest, wanted)
        others = [[core for core in node if core[0] not in free] for node in nodes]
        moved, rest = _fit(others, self.guest, strict=self.strict)
        return (moved, [*free, *rest]) if len(moved) == self.guest.vcpus else (vcpus, spare)

    def _nodes(self) -> list[list[Core]]:
        """Return the usable CPUs of each core, by NUMA node; both in the order of CPUs that the kernel runs."""
        nodes: defaultdict[int, list[Core]] = defaultdict(list)
        cores = {core.id: core for core in map(self.topology.core_of, self.usable)}
        order = sorted(
            (core.numa_node, self.topology.online_cpus_of(core).lowest(), core.id) for core in cores.values()
        )
        for number, _, identity in order:
            nodes[number].append(tuple(cores[identity].cpus & self.usable))
        return list(nodes.values())

    def _busy(self, vcpus: list[int]) -> CPUSet:
        """Return the cores of vCPUs, where an SMT policy wants nothing beside them."""
        return EMPTY if self.policy is SMTPolicy.PREFER else self.topology.siblings_of(CPUSet(vcpus))

    def _iothread_pins(self, vcpus: list[int], spare: list[int], emulator: CPUSet) -> tuple[CPUSet, ...]:
        """Return the CPUs of each I/O thread: its own, the emulator's, or some on which vCPUs run."""
        if self.pool:
            return tuple(CPUSet([cpu]) for cpu in spare[: self.pool])
        if emulator.isdisjoint(CPUSet(vcpus)):
            return (emulator,) * self.iothreads
        return tuple(_slices(tuple(self.usable), len(vcpus), self.iothreads))

    def _warnings(self, busy: CPUSet, emulator: CPUSet, iothreads: CPUSet) -> tuple[str, ...]:
        threads = {"the emulator": emulator & busy, "I/O threads": iothreads & busy}
        names = " and ".join(name for name, beside in threads.items() if beside)
        if not names:
            return ()
        remedy = "let the vCPUs fill whole cores" if self.emulators else "set isolateEmulatorThread"
        cpus = union(threads.values())
        return (f"{names} may run on CPU{'s' * (len(cpus) > 1)} {cpus}, on cores of vCPUs: {remedy}",)

    def _crossing(self, found: int) -> NotEnoughCPUs:
        cores, threads = self.guest.all_cores, self.guest.threads
        detail = f"wanted {cores} cores of {threads} threads, each on one NUMA node, found {found // threads}"
        return NotEnoughCPUs(self.guest.vcpus, found, detail, ("do without guestMappingPassthrough",))


@dataclass(slots=True)
class _Node:
    """What is left of a NUMA node: cores that can hold a core of the guest, and threads of the others."""

    threads: int  # of a core of the guest
    cores: deque[Core]
    fragments: deque[int]

    @classmethod
    def of(cls, cores: list[Core], threads: int) -> _Node:
        """Return a node of which nothing is taken."""
        small = (core for core in cores if len(core) < threads)
        return cls(
            threads, deque(core for core in cores if len(core) >= threads), deque(chain.from_iterable(small))
        )

    def take_core(self) -> Core:
        """Take a core of the guest from one core of the host; return nothing when there is none."""
        if not self.cores:
            return ()
        core = self.cores.popleft()
        rest = core[self.threads :]
        if len(rest) >= self.threads:
            self.cores.appendleft(rest)
        else:
            self.fragments.extend(rest)
        return core[: self.threads]

    def take_fragments(self) -> Core:
        """Take a core of the guest from several cores of the node; return nothing when there are too few threads."""
        if len(self.fragments) < self.threads:
            return ()
        return tuple(self.fragments.popleft() for _ in range(self.threads))


def _fit(nodes: list[list[Core]], guest: GuestTopology, *, strict: bool) -> tuple[list[int], list[int]]:
    """Return the CPUs of the vCPUs, as far as they fit, and all others, in KubeVirt's order."""
    left = [_Node.of(cores, guest.threads) for cores in nodes]
    vcpus: list[int] = []
    for take in (_Node.take_core, _Node.take_fragments):
        for node in left:
            while len(vcpus) < guest.vcpus and (core := take(node)):
                vcpus += core
    for node in () if strict else left:
        while len(vcpus) < guest.vcpus and node.fragments:
            vcpus.append(node.fragments.popleft())
    return vcpus, [cpu for node in left for cpu in (*node.fragments, *chain.from_iterable(node.cores))]


def _left_free(nodes: list[list[Core]], guest: GuestTopology, wanted: int) -> CPUSet:
    """Return whole cores with `wanted` CPUs, or as many as can be, without which the vCPUs fit as well as with them.

    Cores are added to sums from the last one on; for each sum those are kept that leave most room for whole cores of
    the guest.
    """
    cores = [core for node in reversed(nodes) for core in reversed(node)]
    unused = sum(map(len, cores)) - guest.vcpus
    surplus = max(0, sum(len(core) // guest.threads for core in cores) - guest.all_cores)
    best = {0: (0, EMPTY)}  # number of CPUs -> cores of the guest that have no room then, and the CPUs
    for core in cores:
        for count, (lost, cpus) in tuple(best.items()):
            more, loses = count + len(core), lost + len(core) // guest.threads
            fits = count < wanted and more <= unused and loses <= surplus
            if fits and (more not in best or loses < best[more][0]):
                best[more] = loses, cpus | CPUSet(core)
    chosen = min(best, key=lambda count: (-min(count, wanted), best[count][0], count))
    return best[chosen][1]


def _slices(cpus: Core, vcpus: int, iothreads: int) -> Iterator[CPUSet]:
    """Yield the CPUs of I/O threads that have none of their own, as KubeVirt deals those of the first vCPUs to them."""
    if iothreads >= vcpus:
        yield from (CPUSet([cpus[number % vcpus]]) for number in range(1, iothreads + 1))
        return
    size, larger = divmod(vcpus, iothreads) if iothreads else (0, 0)
    end = 0
    for number in range(iothreads):
        start, end = end, end + size + (number < larger)
        yield CPUSet(cpus[start:end])
