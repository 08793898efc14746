"""What each thread of a virtual machine may run on: KubeVirt's launcher, Kata's sandbox. Pure: time comes in as seconds.

Inside a launcher libvirt pins first, and what it pinned one to one is left as it is; where nobody did, vCPUs get the
CPUs that KubeVirt would choose. A sandbox of Kata runs on the CPUs of its containers together, one vCPU on each where
there are as many of these as of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from pinning.allocation.vcpus import GuestTopology, place_vcpus
from pinning.contract import IOThreadsPolicy
from pinning.errors import PinningError
from pinning.machine.cpuset import EMPTY, CPUSet, union
from pinning.pods.claims import OWN_CORES
from pinning.vm_threads import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinning.contract import SMTPolicy
    from pinning.machine.topology import Topology
    from pinning.vm_threads import GuestID

STABLE_SECONDS: Final = 2.0  # without another vCPU: libvirt pins those that it adds within this
PATIENCE_SECONDS: Final = 30.0  # for a guest that does not run yet


class IOThread(NamedTuple):
    """One iothread: where it may run now, and whether KubeVirt moved it to its `housekeeping` cgroup."""

    cpus: CPUSet
    is_housed: bool = False


@dataclass(frozen=True, slots=True)
class VMSeen:
    """The threads of one virtual machine, as the kernel has them now."""

    vcpus: tuple[
        CPUSet, ...
    ]  # where each vCPU may run, in order of the vCPUs; empty: they cannot be told apart
    main: CPUSet  # the same of the first thread
    allowed: CPUSet  # where any of its threads may run
    iothreads: tuple[IOThread, ...] = ()
    cores: int = 1  # of a socket of the guest
    threads: int = 1  # of a core of the guest
    is_strict: bool = False  # the guest sees NUMA nodes, so that no core of it may cross one
    has_pool: bool = False  # its iothreads are a pool with CPUs of their own
    housekeeping: CPUSet = EMPTY  # of KubeVirt's cgroup for the emulator; empty: there is none
    seconds: float = 0.0  # since the machine was started
    has_run: bool = False  # the guest, for some time
    is_fixed: bool = False  # no vCPU can be added
    reason: str = ""  # why vCPUs cannot be told apart
    vhost: CPUSet = EMPTY  # where any of its vhost threads may run; empty: it has none
    notes: tuple[str, ...] = ()  # what was left as it is, and why
    guest_ids: tuple[GuestID, ...] = ()  # of each vCPU, where the shape of the guest is known


@dataclass(frozen=True, slots=True)
class VMMasks:
    """Where the threads of one virtual machine are to run."""

    vcpus: tuple[CPUSet, ...]  # in order of the vCPUs
    emulator: CPUSet  # everything that is nothing else: main thread, workers, vhost
    iothreads: tuple[CPUSet, ...]
    pit: CPUSet  # the kernel's timer
    aside: CPUSet  # processes beside the VMM: the shim and virtiofsd
    is_one_to_one: bool = False
    reason: str = ""  # why it is not
    note: str = ""  # what its user has to know besides

    def of(self, role: Role, rank: int = 0) -> CPUSet:
        """Return where a thread is to run, the rank-th of its role; a vCPU that came meanwhile with the emulator."""
        ranked = {Role.VCPU: self.vcpus, Role.IOTHREAD: self.iothreads}.get(role, ())
        if rank < len(ranked):
            return ranked[rank]
        single = {Role.PIT: self.pit, Role.SHIM: self.aside, Role.VIRTIOFSD: self.aside}
        return single.get(role, self.emulator)

    @property
    def pins(self) -> CPUSet:
        """The CPUs that carry one vCPU each."""
        return union(self.vcpus) if self.is_one_to_one else EMPTY

    @property
    def is_isolated(self) -> bool:
        """Say whether the emulator keeps off the CPUs of the vCPUs."""
        return self.is_one_to_one and self.emulator.isdisjoint(self.pins)


@dataclass(frozen=True, slots=True)
class Launcher:
    """What the agent knows of a launcher besides its threads."""

    topology: Topology
    cpus: CPUSet  # that its container holds
    smt: SMTPolicy | None = None  # None: KubeVirt's own choice
    before: VMMasks | None = None  # what it was put on last, by this agent
    unchanged_seconds: float = 0.0  # since its number of vCPUs changed


def launcher_masks(seen: VMSeen, launcher: Launcher) -> VMMasks | None:
    """Return where the threads of a launcher's machine are to run; None while libvirt may still pin them."""
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
    """Say whether whoever starts the machine has had the time to pin it."""
    patience = STABLE_SECONDS if seen.has_run else PATIENCE_SECONDS
    return unchanged_seconds >= patience


def _pinned(masks: Sequence[CPUSet], cpus: CPUSet) -> tuple[CPUSet, ...]:
    """Return the masks if they are one CPU each, no two the same, all among `cpus`; else nothing."""
    together = union(masks)
    is_whole = len(together) == len(masks) == sum(map(len, masks))
    return tuple(masks) if is_whole and together <= cpus else ()


def _pinned_by_libvirt(seen: VMSeen, cpus: CPUSet) -> tuple[CPUSet, ...]:
    """Return the masks of the vCPUs if they are pins; a vCPU that was just added has the mask of the first thread."""
    inherited = seen.main if len(seen.main) == 1 and _has_room(seen, cpus - seen.main) else EMPTY
    return _pinned(seen.vcpus, cpus - seen.housekeeping - inherited)


def _pinned_before(seen: VMSeen, launcher: Launcher) -> tuple[CPUSet, ...]:
    """Return the pins of before, which the kernel may have erased; for CPUs that are lost, those that came instead."""
    before, cpus = launcher.before, launcher.cpus
    if not seen.vcpus or before is None or not before.is_one_to_one or len(before.vcpus) != len(seen.vcpus):
        return ()
    kept = before.emulator if before.is_isolated else EMPTY
    new = iter(_by_core(cpus - before.pins - kept, launcher.topology))
    pins = [pin if pin <= cpus else next(new, EMPTY) for pin in before.vcpus]
    return tuple(pins) if all(pins) else ()


def _by_core(cpus: CPUSet, topology: Topology) -> list[CPUSet]:
    """Return each CPU as a set, siblings one after the other as the guest's threads are."""
    ordered = sorted(cpus, key=lambda cpu: (topology.core_of(cpu).id, cpu))
    return [CPUSet([cpu]) for cpu in ordered]


def _house(seen: VMSeen, launcher: Launcher, pins: CPUSet) -> CPUSet:
    """Return the emulator's own CPUs, empty if it has none: KubeVirt's cgroup for it says so, or its mask, or `before`."""
    cpus, before = launcher.cpus, launcher.before
    if own := seen.housekeeping & cpus:
        return own
    own = seen.main & cpus
    if own and own.isdisjoint(pins) and (pins or len(own) <= 2) and _has_room(seen, cpus - own):
        return own
    own = (before.emulator & cpus) - pins or cpus - pins if before and before.is_isolated else EMPTY
    return own if _has_room(seen, cpus - own) else EMPTY


def _has_room(seen: VMSeen, cpus: CPUSet) -> bool:
    """Say whether CPUs are enough for the vCPUs: what would leave too few is not the emulator's own."""
    return len(cpus) >= max(1, len(seen.vcpus))


def _one_to_one(seen: VMSeen, launcher: Launcher, pins: tuple[CPUSet, ...]) -> VMMasks:
    """Return masks around pins that are there already, or were."""
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
    """Return where everything runs that is no vCPU: on spare CPUs, of other cores where the SMT policy says so."""
    if house:
        return house
    spare = EMPTY if seen.has_pool else launcher.cpus - pins
    if launcher.smt in OWN_CORES:
        spare = (launcher.cpus - launcher.topology.siblings_of(pins)) or spare
    return spare or launcher.cpus


def _iothread(thread: IOThread, before: CPUSet, cpus: CPUSet, others: CPUSet) -> CPUSet:
    """Return where one iothread runs: as libvirt pinned it on some of `cpus`, else with the emulator.

    Beside an emulator that is apart from the vCPUs, libvirt pins no iothread to a vCPU's CPU: `cpus` lack these then.
    """
    if not thread.is_housed:
        for pinned in (thread.cpus, before):
            if pinned and pinned <= cpus and pinned != cpus:
                return pinned
    return others


def _place(seen: VMSeen, launcher: Launcher, house: CPUSet) -> VMMasks:
    """Choose a CPU for each vCPU; raise PinningError where the shape of the guest cannot be had."""
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
    """Say where the emulator shares cores with vCPUs against the SMT policy."""
    crowded = launcher.topology.siblings_of(pins) & others
    if crowded and launcher.smt in OWN_CORES:
        yield f"its emulator runs on CPUs {crowded} of the vCPUs' cores, for its CPUs leave no others"


def _together(seen: VMSeen, cpus: CPUSet, house: CPUSet, reason: str) -> VMMasks:
    """Let all vCPUs run on all CPUs but the emulator's."""
    vcpus, others = (cpus - house) or cpus, house or cpus
    return VMMasks(
        (vcpus,) * len(seen.vcpus), others, (others,) * len(seen.iothreads), others, others, reason=reason
    )


def sandbox_masks(seen: VMSeen, cpus: CPUSet, others: CPUSet, doubt: str = "") -> VMMasks:
    """Return where the threads of a Kata sandbox run: vCPUs on `cpus`, which its containers hold together.

    Where nobody can tell vCPUs from other threads all of them run there; where `cpus` are none, all on `others`.
    `doubt` says why nobody knows whether the CPUs are its own: then no vCPU is kept on one of them.
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
        " with Kata's settings default_vcpus = 0 and overhead_vcpus = 0 they are as many"
    )
