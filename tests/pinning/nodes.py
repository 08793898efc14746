"""Machines for table tests, small enough to count on fingers."""

from __future__ import annotations

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
