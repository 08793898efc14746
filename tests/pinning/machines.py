"""Small machines with names, for allocation by hand. Siblings of core N are N and N + the number of cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble

if TYPE_CHECKING:
    from collections.abc import Callable

Place = tuple[int, int, int]  # package, NUMA node, last-level cache


def machine(cores: int, smt: int, place: Callable[[int], Place]) -> Topology:
    """Return a machine of equal cores; `place` says where core N lies."""
    facts = [
        CPUFacts(core + thread * cores, core, *place(core)) for core in range(cores) for thread in range(smt)
    ]
    return assemble(facts, CPUSet(range(cores * smt)))


def machine_of_cores(*cores: str) -> Topology:
    """Return a machine of one NUMA node with these sets of siblings."""
    facts = [CPUFacts(cpu, text, 0, 0) for text in cores for cpu in CPUSet.parse(text)]
    return assemble(facts, CPUSet(fact.cpu for fact in facts))


def machine_of_nodes(*nodes: list[list[int]], offline: str = "") -> Topology:
    """Return a machine of the CPUs of each core of each NUMA node."""
    facts = [
        CPUFacts(cpu, min(core), number, number)
        for number, cores in enumerate(nodes)
        for core in cores
        for cpu in core
    ]
    return assemble(facts, CPUSet(fact.cpu for fact in facts) - CPUSet.parse(offline))


def isolating(topology: Topology, text: str) -> Topology:
    """Return the machine with these CPUs isolated from the kernel's scheduler."""
    return Topology(topology.cores, topology.online, CPUSet.parse(text))


FLAT = machine(4, 2, lambda _: (0, 0, 0))  # pairs 0,4 1,5 2,6 3,7
WITHOUT_SMT = machine(4, 1, lambda _: (0, 0, 0))
DUAL = machine(6, 2, lambda core: (core % 2, core % 2, core % 2))  # even CPUs on socket 0, pairs 0,6 1,7 ...
SNC = machine(
    8, 2, lambda core: (core // 4, core // 2, core // 4)
)  # 2 sockets x 2 nodes x 2 cores, pairs N,N+8
GLUED = machine(8, 1, lambda core: (core // 2, core // 4, core // 2))  # 2 nodes x 2 sockets x 2 CPUs
CACHES = machine(8, 2, lambda core: (0, 0, core // 2))  # 4 caches of 2 cores, pairs N,N+8
FOUR_NODES = machine(8, 2, lambda core: (core // 2, core // 2, core // 2))  # 4 sockets = nodes of 2 cores
WIDE = machine(18, 1, lambda core: (core // 6, core // 6, core // 6))  # 3 sockets = nodes of 6 CPUs
OCTETS = machine(24, 1, lambda core: (core // 8, core // 8, core // 8))  # 3 sockets = nodes of 8 CPUs
SIX_CORES = machine(6, 2, lambda _: (0, 0, 0))  # pairs N,N+6
TWELVE_CORES = machine(12, 2, lambda _: (0, 0, 0))
HALVED = machine(40, 2, lambda core: (core // 20, core // 10, core // 20))  # 2 sockets x 2 nodes x 10 cores
QUAD = machine(24, 4, lambda core: (core % 4, core % 4, core % 4))  # 4 sockets x 6 cores of 4 CPUs
EIGHT_NODES = machine(16, 1, lambda core: (core // 2, core // 2, core // 2))
FIVE_NODES = machine(40, 1, lambda core: (core // 8, core // 8, core // 8))
TRIPLES = machine(12, 2, lambda core: (core // 3, core // 3, core // 3))  # 4 nodes of 3 cores
FOUR_CACHES = machine(16, 1, lambda core: (0, 0, core // 4))
NINE_NODES = machine(9, 1, lambda core: (core // 3, core, core))
FOUR_WAY = machine_of_cores("0-3", "4-7", "8-11")
HYBRID = machine_of_cores("0-1", "2-3", "4", "5", "6", "7")
ONE_OFFLINE = FLAT.with_online(CPUSet.parse("0-4,6-7"))  # CPU 5, sibling of 1
L2_PAIRS = assemble([CPUFacts(core, core, 0, 0, 0, l2=core % 2) for core in range(4)], CPUSet(range(4)))
ADJACENT = assemble(  # CMK's test machine: two sockets of four cores, pairs 0-1 2-3 ...
    [CPUFacts(cpu, cpu // 2, cpu // 8, 0) for cpu in range(16)], CPUSet(range(16))
)
