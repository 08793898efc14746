"""Machines and devices for tests of CPUs near devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pinning.contract import CoreType, CPUPolicy, NUMAPolicy, SMTPolicy
from pinning.machine.cpuset import CPUSet
from pinning.machine.near import Device
from pinning.machine.topology import CPUFacts, Topology, assemble
from pinning.planning.allocator import EffectivePolicies
from pinning.pods.claims import Claim, Origin
from pinning.pods.resources import Role
from tests.machines import captured
from tests.pinning.nodes import SNC

if TYPE_CHECKING:
    from random import Random

GPU = "nvidia.com/gpu"
_HBM = {
    node: {other: 10 if node == other else 40 - 20 * (node % 2 == other % 2) for other in range(8)}
    for node in range(8)
}
SUPERCHIP = (
    replace(  # nodes 0 and 1 have CPUs; nodes 2 to 7 are the memory of GPUs, the even ones beside node 0
        assemble([CPUFacts(cpu, cpu, cpu // 36, cpu // 36) for cpu in range(72)], CPUSet(range(72))),
        distances=_HBM,
    )
)
WITH_DISTANCES = {"snc": SNC, "superchip": SUPERCHIP}


def machine(name: str) -> Topology:
    """Return a machine by its name."""
    return WITH_DISTANCES.get(name) or captured(name)


def given_devices(random: Random, topology: Topology) -> list[Device]:
    """Return one to four devices: on one node, on two, on none, on a node that the machine lacks or of memory alone."""
    nodes = [*(topology.distances or topology.numa_nodes), 77]
    told = (
        [random.choice(nodes) for _ in range(random.choice([0, 1, 1, 1, 2]))]
        for _ in range(random.randint(1, 4))
    )
    return [Device(random.choice([GPU, "nic", "fpga"]), CPUSet(told_nodes)) for told_nodes in told]


def random_claim(random: Random) -> tuple[Claim, EffectivePolicies]:
    """Return an exclusive claim of 1 to 10 CPUs or cores, with policies that its origin can have."""
    origin = random.choice([Origin.ANNOTATION, Origin.ANNOTATION, Origin.CMK])
    smt = SMTPolicy.REQUIRE if origin is Origin.CMK else random.choice(list(SMTPolicy))
    numa = random.choice(list(NUMAPolicy))
    policies = EffectivePolicies(CPUPolicy.EXCLUSIVE, smt, numa, CoreType.ANY)
    return Claim("c", Role.MAIN, origin, CPUPolicy.EXCLUSIVE, random.randint(1, 10)), policies


def room(topology: Topology, cpus: CPUSet, claim: Claim, policies: EffectivePolicies) -> int:
    """Return the largest claim of its kind that fits on the CPUs."""
    if policies.numa is NUMAPolicy.SINGLE:
        anywhere = policies._replace(numa=NUMAPolicy.PACKED)
        return max(room(topology, cpus & node, claim, anywhere) for node in topology.numa_nodes.values())
    if policies.smt is SMTPolicy.PREFER:
        return len(cpus)
    whole = [core.cpus for core in topology.cores_of(cpus) if core.cpus <= cpus]
    is_cores = policies.smt is SMTPolicy.ISOLATE or claim.origin is Origin.CMK
    return len(whole) if is_cores else sum(map(len, whole))
