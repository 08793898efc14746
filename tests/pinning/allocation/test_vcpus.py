"""CPUs of a virtual machine's threads: KubeVirt's own cases, SMT policies on top, and refusals.

A row of `vcpus.txt` has the machine, its CPUs for the guest, the guest's sockets, cores and threads, the options, the
CPUs of vCPUs, emulator and I/O threads or the refusal, and what is special about it.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pinning.allocation import GuestTopology, place_vcpus
from pinning.errors import BadGuest, NotEnoughCPUs, PinningError
from pinning.machine.cpuset import CPUSet
from tests.pinning.machines import machine_of_nodes
from tests.tables import sections

if TYPE_CHECKING:
    from pinning.machine.topology import Topology

POOL = "supplementalPool"
MACHINES = {
    "PAIRS": machine_of_nodes(*([[core, core + 16] for core in range(at, at + 8)] for at in (0, 8))),
    "PLAIN": machine_of_nodes([[cpu] for cpu in range(21)]),
    "TRIPLES": machine_of_nodes([[0, 1, 2]], [[3, 4, 5]]),
    "OFFLINE": machine_of_nodes([[0, 4], [1, 5], [2, 6], [3, 7]], offline="0-1"),
}
POLICIES = "shared", "prefer", "require", "isolate", "none"


ROWS = [
    pytest.param(*words, id=f"{rule}: {case}")
    for rule, (*words, case) in sections(Path(__file__).with_name("vcpus.txt"))
]


@pytest.mark.parametrize(("machine", "cpus", "guest", "options", "expected"), ROWS)
def test_vcpus(machine: str, cpus: str, guest: str, options: str, expected: str) -> None:
    """A guest gets the CPUs of its row, or the refusal."""
    assert outcome(MACHINES[machine], cpus, guest, options) == expected


def outcome(topology: Topology, cpus: str, guest: str, options: str) -> str:
    """Return the CPUs of the guest's threads, or the refusal."""
    given = topology.cpus if cpus == "all" else CPUSet.parse(cpus)
    try:
        placed = place_vcpus(topology, given, GuestTopology(*map(int, guest.split("x"))), **meant(options))
    except PinningError as error:
        return f"{type(error).__name__}: {error}"
    vcpus, pins = ",".join(map(str, placed.vcpus)), "+".join(map(str, placed.iothread_pins))
    io = f" io {placed.iothreads}={pins}" if pins else ""
    return " warns ".join((f"{vcpus} emulator {placed.emulator}{io}", *placed.warnings))


def meant(options: str) -> dict[str, Any]:
    """Return the keyword arguments of the options."""
    given = dict(option.partition("=")[::2] for option in options.split())
    meant: dict[str, Any] = {}
    for name, value in given.items():
        match name:
            case "pool":
                meant |= {"iothreads": int(value), "iothreads_policy": POOL}
            case "io":
                meant["iothreads"] = int(value)
            case "policy":
                meant["iothreads_policy"] = value
            case "isolate-emulator" | "parity" | "strict":
                meant[{"isolate-emulator": "isolate_emulator", "parity": "even_parity"}.get(name, name)] = (
                    True
                )
            case _:
                meant["smt"] = name
    return meant


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


def test_one_cpu_too_few_is_refused() -> None:
    """A guest of all CPUs of KubeVirt's host is refused one CPU less."""
    with pytest.raises(NotEnoughCPUs, match="wanted 12 CPUs for vCPUs, found 11"):
        place_vcpus(host(1, 2), range(11), GuestTopology(1, 12, 1))


def test_an_endless_number_of_threads_is_refused() -> None:
    """A number of thousands of digits is refused, not converted."""
    with pytest.raises(BadGuest, match="threads of a guest"):
        place_vcpus(MACHINES["PAIRS"], MACHINES["PAIRS"].cpus, GuestTopology(1, 1, 10**5000))


def test_the_order_of_the_given_cpus_does_not_matter() -> None:
    """CPUs in any order are placed as in ascending order."""
    assert place_vcpus(MACHINES["PAIRS"], [17, 0, 1, 16], GuestTopology(4, 1, 1)).vcpus == (0, 16, 1, 17)


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
