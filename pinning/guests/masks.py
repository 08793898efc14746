"""Affinity masks for the threads of virtual machines: KubeVirt launchers and Kata sandboxes. Pure: time is a parameter.

In a launcher libvirt pins first, and its one-to-one pins are kept; if it pinned nothing, vCPUs get the CPUs that
KubeVirt would choose. A Kata sandbox runs on all CPUs of its containers, with one vCPU per CPU if the counts match.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.allocation.vcpus import GuestTopology, place_vcpus
from pinning.contract import IOThreadsPolicy
from pinning.errors import PinningError
from pinning.guests.threads import Role
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.pods.eligible import OWN_CORES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinning.contract import SMTPolicy
    from pinning.guests.threads import GuestID
    from pinning.machine.topology import Topology

STABLE_SECONDS: Final = 2.0  # libvirt pins hotplugged vCPUs within this time after the last new one
BOOT_SECONDS: Final = 30.0  # time in which libvirt pins the vCPUs of a guest that does not run yet


class IOThread(NamedTuple):
    """One iothread: its present mask, and whether KubeVirt moved it to its `housekeeping` cgroup."""

    cpus: CPUSet
    is_housed: bool = False


@dataclass(frozen=True, slots=True)
class VMSeen:
    """The threads of one virtual machine as read from the kernel."""

    vcpus: tuple[CPUSet, ...]  # masks in order of the vCPUs; empty if these are not identified
    main: CPUSet  # mask of the first thread
    allowed: CPUSet  # union of the masks of all threads
    iothreads: tuple[IOThread, ...] = ()
    cores: int = 1  # cores per socket of the guest
    threads: int = 1  # threads per core of the guest
    is_strict: bool = False  # the guest has NUMA nodes, so no guest core may cross a host node
    has_pool: bool = False  # its iothreads form a pool with CPUs of its own
    housekeeping: CPUSet = EMPTY  # CPUs of KubeVirt's cgroup for the emulator; empty if there is none
    seconds: float = 0.0  # seconds since the start of the machine
    has_run: bool = False  # whether the guest has run for a while
    is_fixed: bool = False  # no vCPU can be hotplugged
    reason: str = ""  # why vCPUs are not identified
    vhost: CPUSet = EMPTY  # union of the masks of its vhost threads; empty if it has none
    notes: tuple[str, ...] = ()  # threads left unchanged, with the reason
    # The guest's ids of each vCPU; empty: the guest's topology is not known.
    guest_ids: tuple[GuestID, ...] = ()


@dataclass(frozen=True, slots=True)
class VMMasks:
    """Planned masks of the threads of one virtual machine."""

    vcpus: tuple[CPUSet, ...]  # CPUs of each vCPU, in order of the vCPUs
    emulator: CPUSet  # CPUs of threads without another role: main thread, workers, vhost
    iothreads: tuple[CPUSet, ...]
    pit: CPUSet  # CPUs of the kernel's timer thread kvm-pit
    aside: CPUSet  # CPUs of helper processes: the shim and virtiofsd
    is_one_to_one: bool = False
    reason: str = ""  # why the vCPUs have no CPUs of their own
    note: str = ""  # a further message for its user

    def of(self, role: Role, rank: int = 0) -> CPUSet:
        """Return the mask of a thread, the rank-th of its role; a vCPU added in the meantime runs with the emulator."""
        match role:
            case Role.VCPU if rank < len(self.vcpus):
                return self.vcpus[rank]
            case Role.IOTHREAD if rank < len(self.iothreads):
                return self.iothreads[rank]
            case Role.PIT:
                return self.pit
            case Role.SHIM | Role.VIRTIOFSD:
                return self.aside
        return self.emulator

    @property
    def pins(self) -> CPUSet:
        """CPUs that carry exactly one vCPU each."""
        return union(self.vcpus) if self.is_one_to_one else EMPTY

    @property
    def is_isolated(self) -> bool:
        """Return whether the emulator runs on none of the vCPUs' CPUs."""
        return self.is_one_to_one and self.emulator.isdisjoint(self.pins)


@dataclass(frozen=True, slots=True)
class Launcher:
    """Facts about a launcher besides its threads."""

    topology: Topology
    cpus: CPUSet  # CPUs its container holds
    smt: SMTPolicy | None = None  # None: as KubeVirt chose
    before: VMMasks | None = None  # the masks this agent set last
    unchanged_seconds: float = 0.0  # seconds since its number of vCPUs last changed


def launcher_masks(seen: VMSeen, launcher: Launcher) -> VMMasks | None:
    """Return the planned masks of a launcher's machine; None while libvirt may still pin it."""
    pins = _pinned_by_libvirt(seen, launcher.cpus) or _pinned_before(seen, launcher)
    if pins:
        return _one_to_one(seen, launcher, pins)
    if not _is_settled(seen, launcher.unchanged_seconds):
        return None
    house = _house(seen, launcher, EMPTY)
    if not seen.vcpus:
        return _together(seen, launcher.cpus, house, seen.reason)
    try:
        return _place(seen, launcher, house)
    except PinningError as error:
        return _together(seen, launcher.cpus, house, str(error))


def _is_settled(seen: VMSeen, unchanged_seconds: float) -> bool:
    """Return whether libvirt has had the time to pin the machine."""
    settled = STABLE_SECONDS if seen.has_run else BOOT_SECONDS
    return unchanged_seconds >= settled


def _pinned(masks: Sequence[CPUSet], cpus: CPUSet) -> tuple[CPUSet, ...]:
    """Return the masks if each is a single CPU of `cpus` and all of them differ; otherwise an empty tuple."""
    together = union(masks)
    is_whole = len(together) == len(masks) == sum(map(len, masks))
    return tuple(masks) if is_whole and together <= cpus else ()


def _pinned_by_libvirt(seen: VMSeen, cpus: CPUSet) -> tuple[CPUSet, ...]:
    """Return the vCPU masks if they are pins; a hotplugged vCPU may still have the mask of the first thread."""
    inherited = seen.main if len(seen.main) == 1 and _has_room(seen, cpus - seen.main) else EMPTY
    return _pinned(seen.vcpus, cpus - seen.housekeeping - inherited)


def _pinned_before(seen: VMSeen, launcher: Launcher) -> tuple[CPUSet, ...]:
    """Return the last pins, which the kernel may have reset, with lost CPUs replaced by new ones."""
    before, cpus = launcher.before, launcher.cpus
    if not seen.vcpus or before is None or not before.is_one_to_one or len(before.vcpus) != len(seen.vcpus):
        return ()
    kept = before.emulator if before.is_isolated else EMPTY
    new = iter(_by_core(cpus - before.pins - kept, launcher.topology))
    pins = [pin if pin <= cpus else next(new, EMPTY) for pin in before.vcpus]
    return tuple(pins) if all(pins) else ()


def _by_core(cpus: CPUSet, topology: Topology) -> list[CPUSet]:
    """Return each CPU as a set, siblings in sequence as the guest's threads are."""
    ordered = sorted(cpus, key=lambda cpu: (topology.core_of(cpu).id, cpu))
    return [CPUSet([cpu]) for cpu in ordered]


def _house(seen: VMSeen, launcher: Launcher, pins: CPUSet) -> CPUSet:
    """Return the emulator's own CPUs: of KubeVirt's housekeeping cgroup, its affinity or the last masks; else empty."""
    cpus, before = launcher.cpus, launcher.before
    if own := seen.housekeeping & cpus:
        return own
    own = seen.main & cpus
    if own and own.isdisjoint(pins) and (pins or len(own) <= 2) and _has_room(seen, cpus - own):
        return own
    own = (before.emulator & cpus) - pins or cpus - pins if before and before.is_isolated else EMPTY
    return own if _has_room(seen, cpus - own) else EMPTY


def _has_room(seen: VMSeen, cpus: CPUSet) -> bool:
    """Return whether these CPUs suffice for the vCPUs."""
    return len(cpus) >= max(1, len(seen.vcpus))


def _one_to_one(seen: VMSeen, launcher: Launcher, pins: tuple[CPUSet, ...]) -> VMMasks:
    """Return masks that keep these pins, which are the present or the previous ones."""
    house = _house(seen, launcher, union(pins))
    others = _others(seen, launcher, union(pins), house)
    taken = union(pins) if others.isdisjoint(union(pins)) else EMPTY
    before = launcher.before.iothreads if launcher.before else ()
    iothreads = tuple(
        _iothread(thread, before[at] if at < len(before) else EMPTY, launcher.cpus - taken, others)
        for at, thread in enumerate(seen.iothreads)
    )
    return _masks(seen, launcher, pins, others, iothreads)


def _others(seen: VMSeen, launcher: Launcher, pins: CPUSet, house: CPUSet) -> CPUSet:
    """Return the mask of all other threads: the CPUs without pins, on other cores if the SMT policy requires that."""
    if house:
        return house
    spare = EMPTY if seen.has_pool else launcher.cpus - pins
    if launcher.smt in OWN_CORES:
        spare = (launcher.cpus - launcher.topology.siblings_of(pins)) or spare
    return spare or launcher.cpus


def _iothread(thread: IOThread, before: CPUSet, cpus: CPUSet, others: CPUSet) -> CPUSet:
    """Return the mask of one iothread: libvirt's pin if it is among `cpus`, else the emulator's mask.

    If the emulator has CPUs of its own, libvirt never pins an iothread to a vCPU's CPU, so `cpus` excludes these.
    """
    if not thread.is_housed:
        for pinned in (thread.cpus, before):
            if pinned and pinned <= cpus and pinned != cpus:
                return pinned
    return others


def _place(seen: VMSeen, launcher: Launcher, house: CPUSet) -> VMMasks:
    """Choose a CPU for each vCPU; raise PinningError if the guest's topology cannot be mapped onto the CPUs."""
    count, of_socket = len(seen.vcpus), seen.cores * seen.threads
    if count % of_socket:
        raise PinningError(
            f"its {count} vCPUs are no whole sockets of {seen.cores} cores with {seen.threads} threads"
        )
    placed = place_vcpus(
        launcher.topology,
        launcher.cpus - house,
        GuestTopology(count // of_socket, seen.cores, seen.threads),
        strict=seen.is_strict,
        iothreads=sum(not thread.is_housed for thread in seen.iothreads),
        iothreads_policy=IOThreadsPolicy.SUPPLEMENTAL_POOL if seen.has_pool else None,
        smt=launcher.smt,
    )
    pins = tuple(CPUSet([cpu]) for cpu in placed.vcpus)
    others = _others(seen, launcher, union(pins), house)
    own = iter(() if others.isdisjoint(union(pins)) and not seen.has_pool else placed.iothread_pins)
    iothreads = tuple(others if thread.is_housed else next(own, others) for thread in seen.iothreads)
    return _masks(seen, launcher, pins, others, iothreads)


def _masks(
    seen: VMSeen,
    launcher: Launcher,
    pins: tuple[CPUSet, ...],
    others: CPUSet,
    iothreads: tuple[CPUSet, ...],
) -> VMMasks:
    notes = [*_housed(seen, others), *_crowded(launcher, union(pins), others)]
    return VMMasks(pins, others, iothreads, pins[0], others, is_one_to_one=True, note="; ".join(notes))


def _housed(seen: VMSeen, cpus: CPUSet) -> Iterable[str]:
    count = sum(thread.is_housed for thread in seen.iothreads)
    if count:
        yield f"{count} of its iothreads run with the emulator on CPUs {cpus}, where KubeVirt moved them"


def _crowded(launcher: Launcher, pins: CPUSet, others: CPUSet) -> Iterable[str]:
    """Yield a note if the emulator shares cores with vCPUs against the SMT policy."""
    crowded = launcher.topology.siblings_of(pins) & others
    if crowded and launcher.smt in OWN_CORES:
        yield f"its emulator runs on CPUs {crowded} of the vCPUs' cores, because its CPUs include no others"


def _together(seen: VMSeen, cpus: CPUSet, house: CPUSet, reason: str) -> VMMasks:
    """Return masks that let all vCPUs run on all CPUs except the emulator's."""
    vcpus, others = (cpus - house) or cpus, house or cpus
    return VMMasks(
        (vcpus,) * len(seen.vcpus), others, (others,) * len(seen.iothreads), others, others, reason=reason
    )


def sandbox_masks(seen: VMSeen, cpus: CPUSet, others: CPUSet, doubt: str = "") -> VMMasks:
    """Return the masks of a Kata sandbox's threads: vCPUs on `cpus`, which its containers hold together.

    If vCPUs are not identified, all threads run on `cpus`; if `cpus` is empty, all run on `others`. `doubt` is the
    reason why the ownership of the CPUs is uncertain: then no vCPU is pinned to one of them.
    """
    if not cpus:
        return _alike(seen, others, others)
    if not seen.vcpus:
        return _alike(seen, cpus, cpus, seen.reason)
    if doubt:
        return _alike(seen, cpus, others, doubt)
    if len(seen.vcpus) != len(cpus):
        return _alike(seen, cpus, others, _no_match(len(seen.vcpus), len(cpus)))
    pins = _pinned(seen.vcpus, cpus) or tuple(CPUSet([cpu]) for cpu in cpus)
    return VMMasks(pins, others, (others,) * len(seen.iothreads), others, others, is_one_to_one=True)


def _alike(seen: VMSeen, vcpus: CPUSet, others: CPUSet, reason: str = "") -> VMMasks:
    return VMMasks(
        (vcpus,) * len(seen.vcpus), others, (others,) * len(seen.iothreads), others, others, reason=reason
    )


def _no_match(vcpus: int, cpus: int) -> str:
    return (
        f"it has {vcpus} vCPU{'s' * (vcpus != 1)} and its containers hold {cpus} CPU{'s' * (cpus != 1)}:"
        " with Kata's settings default_vcpus = 0 and overhead_vcpus = 0 the numbers are equal"
    )
