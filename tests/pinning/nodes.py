"""Machines for table tests, small enough to count on fingers."""

from __future__ import annotations

from dataclasses import replace

from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, Topology, assemble


def smt_machine(cores: int, sockets: int = 1, isolated: str = "", threads: int = 2) -> Topology:
    """Return a machine whose core N has the CPUs N, N + cores...; a socket is a NUMA node."""
    per_socket = cores // sockets
    facts = [
        CPUFacts(core + thread * cores, core=core, package=core // per_socket, numa_node=core // per_socket)
        for core in range(cores)
        for thread in range(threads)
    ]
    return assemble(facts, CPUSet(range(cores * threads)), CPUSet.parse(isolated))


# Two packages of two nodes, and node 4, which has memory alone and lies beside node 3.
SNC = replace(
    assemble([CPUFacts(cpu, cpu // 2, cpu // 8, cpu // 4) for cpu in range(16)], CPUSet(range(16))),
    distances={
        0: {0: 10, 1: 12, 2: 21, 3: 21, 4: 31},
        1: {0: 12, 1: 10, 2: 21, 3: 21, 4: 31},
        2: {0: 21, 1: 21, 2: 10, 3: 12, 4: 22},
        3: {0: 21, 1: 21, 2: 12, 3: 10, 4: 14},
        4: {0: 31, 1: 31, 2: 22, 3: 14, 4: 10},
    },
)
