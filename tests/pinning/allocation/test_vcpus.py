"""CPUs of a virtual machine's threads: KubeVirt's own cases, SMT policies on top, and refusals."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import pytest

from pinning.allocation import GuestTopology, place_vcpus
from pinning.contract import SMTPolicy
from pinning.errors import BadGuest, NotEnoughCPUs, PinningError
from pinning.machine.cpuset import CPUSet
from tests.pinning.machines import machine_of_nodes
from tests.tables import table

if TYPE_CHECKING:
    from pinning.machine.topology import Topology

POOL = "supplementalPool"


PAIRS = machine_of_nodes(
    [[core, core + 16] for core in range(8)], [[core, core + 16] for core in range(8, 16)]
)
PLAIN = machine_of_nodes([[cpu] for cpu in range(21)])

# KubeVirt's tests of vcpu.go. Their host reports its CPUs in this order; corepin's machines report theirs ascending,
# so that the N-th CPU reported is our CPU N.
REPORTED = (1, 7, 0, 6, 2, 8, 3, 9, 4, 10, 5, 11)


def host(cells: int, threads: int) -> Topology:
    """Return KubeVirt's test host: cores of `threads` CPUs, dealt to the cells as its tests deal them."""
    capacity = 12 // cells - 12 // cells % threads
    nodes: list[list[list[int]]] = [[] for _ in range(cells)]
    for first in range(0, 12, threads):
        nodes[first // capacity % cells].append(list(range(first, first + threads)))
    return machine_of_nodes(*nodes)


def in_our_order(*cpus: int) -> tuple[int, ...]:
    """Return CPUs of KubeVirt's test host as the CPUs of ours."""
    return tuple(REPORTED.index(cpu) for cpu in cpus)


IN_ORDER = REPORTED
EITHER_POLICY = [  # threads of a host core, cells, cores of the guest, their threads, where the vCPUs are
    *((1, cells, 12, 1, IN_ORDER) for cells in (1, 2, 3, 4)),
    *((1, cells, 6, 2, IN_ORDER) for cells in (1, 2, 3)),
    *((1, cells, 4, 3, IN_ORDER) for cells in (1, 2)),
    *((2, cells, 12, 1, IN_ORDER) for cells in (1, 2, 3)),
    (2, 4, 12, 1, (1, 7, 4, 10, 0, 6, 5, 11, 2, 8, 3, 9)),
    *((2, cells, 6, 2, IN_ORDER) for cells in (1, 2, 3)),
    *((2, cells, 4, 3, IN_ORDER) for cells in (1, 2)),
    *((3, cells, 12, 1, IN_ORDER) for cells in (1, 2, 4)),
    (3, 3, 12, 1, (1, 7, 0, 10, 5, 11, 6, 2, 8, 3, 9, 4)),
    *((3, cells, 6, 2, (1, 7, 6, 2, 3, 9, 10, 5, 0, 8, 4, 11)) for cells in (1, 2)),
    *((3, cells, 4, 3, IN_ORDER) for cells in (1, 2)),
    (3, 3, 4, 3, (1, 7, 0, 10, 5, 11, 6, 2, 8, 3, 9, 4)),
]
RELAXED_ONLY = [
    (1, 3, 4, 3, (1, 7, 0, 2, 8, 3, 4, 10, 5, 6, 9, 11)),
    (2, 3, 4, 3, (1, 7, 0, 2, 8, 3, 4, 10, 5, 6, 9, 11)),
    (3, 3, 6, 2, (1, 7, 10, 5, 6, 2, 3, 9, 0, 11, 8, 4)),
]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("siblings", "cells", "cores", "threads", "vcpus"), EITHER_POLICY)
def test_choices_of_kubevirt(
    siblings: int, cells: int, cores: int, threads: int, vcpus: tuple[int, ...], *, strict: bool
) -> None:
    """Placements equal those of KubeVirt's own tests, so that no vCPU moves where KubeVirt has pinned it."""
    topology, guest = host(cells, siblings), GuestTopology(1, cores, threads)

    assert place_vcpus(topology, topology.cpus, guest, strict=strict).vcpus == in_our_order(*vcpus)


@pytest.mark.parametrize(("siblings", "cells", "cores", "threads", "vcpus"), RELAXED_ONLY)
def test_only_strict_keeps_guest_cores_on_one_node(
    siblings: int, cells: int, cores: int, threads: int, vcpus: tuple[int, ...]
) -> None:
    """A guest core that no NUMA node can hold is split over nodes, as in KubeVirt, and refused under strict."""
    topology, guest = host(cells, siblings), GuestTopology(1, cores, threads)

    assert place_vcpus(topology, topology.cpus, guest).vcpus == in_our_order(*vcpus)
    with pytest.raises(NotEnoughCPUs, match="each on one NUMA node"):
        place_vcpus(topology, topology.cpus, guest, strict=True)


def test_other_cases_of_kubevirt() -> None:
    """Three cores of two threads on two nodes of three siblings, and one CPU too few."""
    topology = machine_of_nodes([[0, 1, 2]], [[3, 4, 5]])
    assert place_vcpus(topology, topology.cpus, GuestTopology(1, 3, 2)).vcpus == (0, 1, 3, 4, 2, 5)
    with pytest.raises(NotEnoughCPUs, match="wanted 3 cores of 2 threads, each on one NUMA node, found 2"):
        place_vcpus(topology, topology.cpus, GuestTopology(1, 3, 2), strict=True)
    with pytest.raises(NotEnoughCPUs, match="wanted 12 CPUs for vCPUs, found 11"):
        place_vcpus(host(1, 2), range(11), GuestTopology(1, 12, 1))


@table(
    "cpus, vcpus, parity, emulator",
    {
        "one": ("5-7", 2, False, "7"),
        "odd-vcpus": ("5-10", 5, True, "10"),
        "even-vcpus": ("5-12", 6, True, "11-12"),
    },
)
def test_emulator_of_kubevirt(cpus: str, vcpus: int, emulator: str, *, parity: bool) -> None:
    """An isolated emulator has a CPU of its own, and two where the parity annotation makes the sum even."""
    guest = GuestTopology(1, vcpus, 1)
    placement = place_vcpus(PLAIN, CPUSet.parse(cpus), guest, isolate_emulator=True, even_parity=parity)

    assert str(placement.emulator) == emulator


@table(
    "cpus, vcpus, parity, message",
    {
        "none": ("5-6", 2, False, "wanted 1 CPU for the emulator, found 0 besides 2 vCPUs"),
        "none-odd": ("5-7", 3, True, "wanted 1 CPU for the emulator, found 0 besides 3 vCPUs"),
        "no-second": ("5-7", 2, True, "wanted 2 CPUs for the emulator, found 1 besides 2 vCPUs"),
    },
)
def test_emulator_without_room(cpus: str, vcpus: int, message: str, *, parity: bool) -> None:
    """A machine whose emulator gets too few CPUs is refused, as KubeVirt starts none."""
    guest = GuestTopology(1, vcpus, 1)
    with pytest.raises(NotEnoughCPUs, match=message):
        place_vcpus(PLAIN, CPUSet.parse(cpus), guest, isolate_emulator=True, even_parity=parity)


@table(
    "cpus, vcpus, count, pins",
    {
        "fewer-than-vcpus": ("5-20", 16, 6, ["5-7", "8-10", "11-13", "14-16", "17-18", "19-20"]),
        "more-than-vcpus": ("5-6", 2, 6, ["6", "5", "6", "5", "6", "5"]),
    },
)
@pytest.mark.parametrize("policy", [None, "shared", "auto"])
def test_iothreads_of_kubevirt(
    cpus: str, vcpus: int, count: int, pins: list[str], policy: str | None
) -> None:
    """Without CPUs of their own I/O threads share those of vCPUs, in KubeVirt's order."""
    placement = place_vcpus(
        PLAIN, CPUSet.parse(cpus), GuestTopology(vcpus, 1, 1), iothreads=count, iothreads_policy=policy
    )

    assert [str(cpus) for cpus in placement.iothread_pins] == pins
    assert placement.iothreads == placement.emulator == CPUSet.parse(cpus)


def test_iothreads_beside_an_isolated_emulator() -> None:
    """I/O threads run on the CPU of an isolated emulator, while KubeVirt pins only the first one there."""
    placement = place_vcpus(
        PAIRS, CPUSet.parse("0-1,16"), GuestTopology(1, 2, 1), isolate_emulator=True, iothreads=3
    )

    assert (placement.vcpus, placement.iothread_pins) == ((0, 16), (CPUSet([1]),) * 3)


@table(
    "count, parity, pins, emulator",
    {
        "one": (1, False, ["1"], "17"),
        "two": (2, False, ["1", "17"], "2"),
        "two-even": (2, True, ["1", "17"], "2,18"),
        "one-odd": (1, True, ["1"], "17"),
    },
)
def test_pool_of_iothreads(count: int, pins: list[str], emulator: str, *, parity: bool) -> None:
    """Each pooled I/O thread has a CPU, the emulator has some of the others, and both count for the parity."""
    placement = place_vcpus(
        PAIRS,
        CPUSet.parse("0-2,16-18"),
        GuestTopology(1, 1, 2),
        isolate_emulator=True,
        even_parity=parity,
        iothreads=count,
        iothreads_policy=POOL,
    )

    assert placement.vcpus == (0, 16)
    assert [str(cpus) for cpus in placement.iothread_pins] == pins
    assert str(placement.emulator) == emulator


def test_pool_without_room() -> None:
    """A pool that gets too few CPUs is refused; so is the even sum for which KubeVirt sizes its pod too small."""
    with pytest.raises(NotEnoughCPUs, match="wanted 2 CPUs for I/O threads, found 1 besides 2 vCPUs"):
        place_vcpus(PAIRS, {0, 1, 16}, GuestTopology(1, 2, 1), iothreads=2, iothreads_policy=POOL)
    with pytest.raises(NotEnoughCPUs, match="wanted 2 CPUs for the emulator, found 1 besides 3 vCPUs"):
        place_vcpus(
            PAIRS,
            range(5),
            GuestTopology(1, 3, 1),
            isolate_emulator=True,
            even_parity=True,
            iothreads=1,
            iothreads_policy=POOL,
        )


def test_no_machine_is_half_pinned() -> None:
    """Two cores of two threads on three CPUs are refused: KubeVirt leaves the last vCPU unpinned."""
    with pytest.raises(NotEnoughCPUs, match="wanted 4 CPUs for vCPUs, found 3"):
        place_vcpus(PAIRS, {0, 16, 1}, GuestTopology(1, 2, 2))


def test_siblings_and_leftovers() -> None:
    """Guests without threads fill whole cores first, then fragments; the order of the given CPUs does not matter."""
    assert place_vcpus(PAIRS, [17, 0, 1, 16], GuestTopology(4, 1, 1)).vcpus == (0, 16, 1, 17)
    assert place_vcpus(PAIRS, CPUSet.parse("0,1,2,17,3,19"), GuestTopology(1, 3, 2)).vcpus == (
        1,
        17,
        3,
        19,
        0,
        2,
    )


def test_leftover_of_a_lower_node_comes_first() -> None:
    """An isolated emulator gets the first CPU without a vCPU, as in KubeVirt, on whichever NUMA node."""
    placement = place_vcpus(PAIRS, {0, 8, 24}, GuestTopology(1, 1, 2), isolate_emulator=True)

    assert (placement.vcpus, placement.emulator) == ((8, 24), CPUSet([0]))


def test_offline_and_unknown_cpus_run_nothing() -> None:
    """Offline and unknown CPUs get no vCPU; a core whose lowest CPU is offline is ordered by its other CPU."""
    topology = machine_of_nodes([[0, 4], [1, 5], [2, 6], [3, 7]], offline="0-1")
    assert place_vcpus(topology, {0, 4, 2, 6, 99}, GuestTopology(1, 3, 1)).vcpus == (2, 6, 4)
    with pytest.raises(NotEnoughCPUs, match="found 3"):
        place_vcpus(topology, {0, 4, 2, 6, 99}, GuestTopology(1, 4, 1))


def test_prefer_is_the_choice_of_kubevirt() -> None:
    """Under prefer, the default of a node, vCPUs are placed as by KubeVirt."""
    cpus, guest = CPUSet.parse("0,16,1,17"), GuestTopology(1, 3, 1)

    assert place_vcpus(PAIRS, cpus, guest, isolate_emulator=True, smt="prefer") == place_vcpus(
        PAIRS, cpus, guest, isolate_emulator=True
    )


@pytest.mark.parametrize(
    ("cpus", "vcpus", "pool", "expected", "pins", "emulator"),
    [
        pytest.param("0-1,16-18,2", 3, 0, (0, 16, 1), [], "2", id="another-core"),
        pytest.param(
            "0,1,17", 2, 0, (1, 17), [], "0", id="other-vcpus"
        ),  # Nova's cell of one and two siblings
        pytest.param("0-2,16-17", 3, 1, (0, 16, 2), ["1"], "17", id="pool-too"),
        pytest.param("0-1,16-17", 2, 1, (0, 16), ["1"], "17", id="as-kubevirt"),
    ],
)
def test_require_keeps_the_rest_off_cores_of_vcpus(
    cpus: str, vcpus: int, pool: int, expected: tuple[int, ...], pins: list[str], emulator: str
) -> None:
    """Emulator and I/O threads get cores without vCPUs where the CPUs allow it, for which vCPUs may move."""
    placement = place_vcpus(
        PAIRS,
        CPUSet.parse(cpus),
        GuestTopology(1, vcpus, 1),
        isolate_emulator=True,
        iothreads=pool,
        iothreads_policy=POOL,
        smt="require",
    )

    assert placement.vcpus == expected
    assert [str(cpus) for cpus in placement.iothread_pins] == pins
    assert str(placement.emulator) == emulator
    assert placement.warnings == ()


def test_require_keeps_floating_threads_off_too() -> None:
    """An emulator without CPUs of its own runs where no vCPU does, as long as there is such a core."""
    placement = place_vcpus(
        PAIRS, CPUSet.parse("0-1,17"), GuestTopology(1, 2, 1), iothreads=2, smt=SMTPolicy.REQUIRE
    )

    assert (placement.vcpus, placement.emulator, placement.iothreads) == ((1, 17), CPUSet([0]), CPUSet([0]))


@pytest.mark.parametrize(
    ("isolate", "vcpus", "warning"),
    [
        (
            True,
            3,
            "the emulator and I/O threads may run on CPU 17, on cores of vCPUs: let the vCPUs fill whole cores",
        ),
        (
            False,
            4,
            "the emulator and I/O threads may run on CPUs 0-1,16-17, on cores of vCPUs: set isolateEmulatorThread",
        ),
    ],
)
def test_require_warns_about_shared_cores(vcpus: int, warning: str, *, isolate: bool) -> None:
    """Where every core runs a vCPU, emulator and I/O threads run as in KubeVirt, with a warning."""
    cpus, guest = CPUSet.parse("0-1,16-17"), GuestTopology(1, vcpus, 1)
    required = place_vcpus(PAIRS, cpus, guest, isolate_emulator=isolate, iothreads=1, smt="require")
    kubevirt = place_vcpus(PAIRS, cpus, guest, isolate_emulator=isolate, iothreads=1)

    assert required.warnings == (warning,)
    assert (required.vcpus, required.emulator, required.iothreads) == (
        kubevirt.vcpus,
        kubevirt.emulator,
        kubevirt.iothreads,
    )


def test_isolate_gives_every_thread_a_core() -> None:
    """Siblings of all threads idle, also those of emulator and I/O threads."""
    placement = place_vcpus(
        PAIRS,
        CPUSet.parse("0-5,16-21"),
        GuestTopology(1, 3, 1),
        isolate_emulator=True,
        iothreads=2,
        iothreads_policy=POOL,
        smt="isolate",
    )

    assert (placement.vcpus, placement.iothreads, placement.emulator) == (
        (0, 1, 2),
        CPUSet([3, 4]),
        CPUSet([5]),
    )
    assert placement.warnings == ()


def test_isolate_without_room() -> None:
    """Under isolate a guest that needs more cores than there are is refused, even if there are enough CPUs."""
    with pytest.raises(NotEnoughCPUs, match="wanted 3 cores for vCPUs, found 2"):
        place_vcpus(PAIRS, CPUSet.parse("0-1,16-17"), GuestTopology(1, 3, 1), smt="isolate")


@table(
    "guest, options, message",
    {
        "isolated-threads": ((1, 2, 2), {"smt": "isolate"}, "2 threads per core.*set threads to 1"),
        "no-sockets": ((0, 2, 1), {}, "sockets of a guest must be 1 to"),
        "negative": ((1, -2, 1), {}, "cores of a guest"),
        "endless": ((1, 1, 10**5000), {}, "threads of a guest"),
        "negative-threads": ((1, 1, 1), {"iothreads": -1}, "0 to 8192 I/O threads"),
        "endless-threads": ((1, 1, 1), {"iothreads": 10**9}, "0 to 8192 I/O threads"),
        "policy": ((1, 1, 1), {"iothreads_policy": "pool"}, "use one of shared, auto"),
        "smt-policy": ((1, 1, 1), {"smt": "none"}, "use one of prefer, require, isolate"),
    },
)
def test_contradictions(guest: tuple[int, int, int], options: dict[str, object], message: str) -> None:
    """Options that contradict the guest's topology are refused on any CPUs, with the remedy."""
    with pytest.raises(BadGuest, match=message):
        place_vcpus(PAIRS, PAIRS.cpus, GuestTopology(*guest), **options)  # type: ignore[arg-type]


def test_absurd_guests_cost_nothing() -> None:
    """Guests of more vCPUs than any machine has CPUs are refused before anything is built of them."""
    with pytest.raises(PinningError, match="wanted 79228162458924105385300197375 CPUs for vCPUs, found 32"):
        place_vcpus(PAIRS, PAIRS.cpus, GuestTopology(*[2**32 - 1] * 3))


def test_the_largest_machine_of_nodes() -> None:
    """On 512 CPUs each vCPU, each I/O thread and the emulator has one CPU of its own, without a warning."""
    nodes = [[[core, core + 256] for core in range(first, first + 32)] for first in range(0, 256, 32)]
    topology = machine_of_nodes(*nodes)
    placement = place_vcpus(
        topology,
        topology.cpus,
        GuestTopology(2, 127, 1),
        isolate_emulator=True,
        iothreads=257,
        iothreads_policy=POOL,
        smt="require",
    )

    used = [*placement.vcpus, *chain.from_iterable(placement.iothread_pins), *placement.emulator]
    assert sorted(used) == list(range(512))
    assert placement.warnings == ()
