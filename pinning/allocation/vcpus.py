"""CPU of each vCPU of a virtual machine, and CPUs of its emulator and I/O threads. Pure.

Without an SMT policy the choice equals KubeVirt's, so that pins made by KubeVirt stay: guest siblings on host
siblings, NUMA nodes and cores in the machine's order. vCPUs and I/O threads are identified by rank, independent of
the guest's numbers. A virtual machine is placed completely or not at all.
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
    """The topology of a guest, without sockets that may be hotplugged later."""

    sockets: int
    cores: int
    threads: int

    @property
    def all_cores(self) -> int:
        """Number of cores of all sockets."""
        return self.sockets * self.cores

    @property
    def vcpus(self) -> int:
        """The number of vCPUs; vCPU N is a thread of core N // threads."""
        return self.all_cores * self.threads


@dataclass(frozen=True, slots=True)
class VCPUPlacement:
    """The CPU of each vCPU, and the CPUs of all other threads of a virtual machine."""

    vcpus: tuple[int, ...]  # one CPU for each vCPU, in order of the vCPUs
    emulator: CPUSet  # no vCPU runs on these CPUs if the emulator is isolated
    iothread_pins: tuple[CPUSet, ...] = ()  # CPUs for each I/O thread, in order of the threads
    warnings: tuple[str, ...] = ()  # parts of the SMT policy that these CPUs cannot satisfy

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
    """Return the CPUs of each thread of a virtual machine, among the given CPUs.

    `strict` keeps every guest core on one NUMA node. `isolate_emulator` gives the emulator a CPU without other
    threads, and with `even_parity` a second one if the sum would be odd. I/O threads have CPUs of their own under
    `supplementalPool`. `require` and `isolate` keep emulator and I/O threads off the vCPUs' cores as far as the
    CPUs suffice; `isolate` gives every vCPU a core of its own; `prefer` changes nothing. Raise BadGuest for
    contradictory arguments, and NotEnoughCPUs if the machine does not fit.
    """
    policy = _policy(guest, iothreads, iothreads_policy, smt)
    pool = iothreads if iothreads_policy == IOThreadsPolicy.SUPPLEMENTAL_POOL else 0
    emulators = 0
    if isolate_emulator:
        emulators = 2 if even_parity and (guest.vcpus + pool) % 2 == 0 else 1
    usable = _usable(topology, cpus, policy)
    return _VM(topology, usable, guest, policy, strict, emulators, pool, iothreads).placed()


def _policy(guest: GuestTopology, iothreads: int, iothreads_policy: str | None, smt: str | None) -> SMTPolicy:
    """Return the SMT policy; raise BadGuest for a virtual machine that no set of CPUs could satisfy."""
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
            f"the guest has {guest.threads} threads per core, and smt-policy isolate gives every vCPU a core of its"
            " own: set threads to 1, or choose smt-policy require"
        )
    return SMTPolicy.PREFER if smt is None else SMTPolicy(smt)


def _usable(topology: Topology, cpus: Iterable[int], policy: SMTPolicy) -> CPUSet:
    """Return the CPUs that may run threads: online ones, for `isolate` one per core."""
    online = CPUSet(cpus) & topology.online
    if policy is not SMTPolicy.ISOLATE:
        return online
    first: dict[int, int] = {}
    for cpu in online:
        first.setdefault(topology.core_of(cpu).id, cpu)
    return CPUSet(first.values())


@dataclass(frozen=True, slots=True)
class _VM:
    """One virtual machine and its CPUs; an isolated emulator and an I/O pool have CPUs without other threads."""

    topology: Topology
    usable: CPUSet
    guest: GuestTopology
    policy: SMTPolicy
    strict: bool
    emulators: int
    pool: int
    iothreads: int

    def placed(self) -> VCPUPlacement:
        """Return the whole placement, or raise NotEnoughCPUs."""
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
            beside = beside or f" besides {count} vCPUs"

    def _fitted(self) -> tuple[list[int], list[int]]:
        """Return the CPUs of the vCPUs, and the remaining ones; with an SMT policy whole cores remain if possible.

        With `strict` and cores of more than two threads, which KubeVirt does not support, the search is not
        exhaustive.
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
        """Return the usable CPUs of each core by NUMA node, both in order of online CPUs."""
        nodes: defaultdict[int, list[Core]] = defaultdict(list)
        cores = {core.id: core for core in map(self.topology.core_of, self.usable)}
        order = sorted(
            (core.numa_node, self.topology.online_cpus_of(core).lowest(), core.id) for core in cores.values()
        )
        for number, _, identity in order:
            nodes[number].append(tuple(cores[identity].cpus & self.usable))
        return list(nodes.values())

    def _busy(self, vcpus: list[int]) -> CPUSet:
        """Return the cores of vCPUs if an SMT policy excludes other threads from them."""
        return EMPTY if self.policy is SMTPolicy.PREFER else self.topology.siblings_of(CPUSet(vcpus))

    def _iothread_pins(self, vcpus: list[int], spare: list[int], emulator: CPUSet) -> tuple[CPUSet, ...]:
        """Return the CPUs of each I/O thread: its own, the emulator's, or a part of the vCPUs'."""
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
    """Free CPUs of a NUMA node: cores that can hold a guest core, and single threads of the other cores."""

    threads: int  # threads per core of the guest
    cores: deque[Core]
    fragments: deque[int]

    @classmethod
    def of(cls, cores: list[Core], threads: int) -> _Node:
        """Return a node with all its cores free."""
        small = (core for core in cores if len(core) < threads)
        return cls(
            threads, deque(core for core in cores if len(core) >= threads), deque(chain.from_iterable(small))
        )

    def take_core(self) -> Core:
        """Take a guest core from one host core; return an empty core if there is none."""
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
        """Take a guest core from several host cores of the node; return an empty core if too few threads are left."""
        if len(self.fragments) < self.threads:
            return ()
        return tuple(self.fragments.popleft() for _ in range(self.threads))


def _fit(nodes: list[list[Core]], guest: GuestTopology, *, strict: bool) -> tuple[list[int], list[int]]:
    """Return the CPUs of the vCPUs that fit, and all others, in KubeVirt's order."""
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
    """Return whole cores with up to `wanted` CPUs that the vCPUs do not need.

    Dynamic programming over the cores from the last one on: for each sum of CPUs it keeps the cores that leave the
    most room for whole guest cores.
    """
    cores = [core for node in reversed(nodes) for core in reversed(node)]
    unused = sum(map(len, cores)) - guest.vcpus
    surplus = max(0, sum(len(core) // guest.threads for core in cores) - guest.all_cores)
    best = {0: (0, EMPTY)}  # by number of CPUs: the guest cores that no longer fit, and the CPUs
    for core in cores:
        for count, (lost, cpus) in tuple(best.items()):
            more, loses = count + len(core), lost + len(core) // guest.threads
            fits = count < wanted and more <= unused and loses <= surplus
            if fits and (more not in best or loses < best[more][0]):
                best[more] = loses, cpus | CPUSet(core)
    chosen = min(best, key=lambda count: (-min(count, wanted), best[count][0], count))
    return best[chosen][1]


def _slices(cpus: Core, vcpus: int, iothreads: int) -> Iterator[CPUSet]:
    """Yield the CPUs of I/O threads that share CPUs with vCPUs, as KubeVirt distributes the first vCPUs' CPUs."""
    if iothreads >= vcpus:
        yield from (CPUSet([cpus[number % vcpus]]) for number in range(1, iothreads + 1))
        return
    size, larger = divmod(vcpus, iothreads) if iothreads else (0, 0)
    end = 0
    for number in range(iothreads):
        start, end = end, end + size + (number < larger)
        yield CPUSet(cpus[start:end])
