"""A sysfs tree for any topology, rewritten after CPU hotplug."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from pinning.machine.topology import CPUFacts, assemble

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pinning.machine.topology import Core, Topology

NODES_PER_PACKAGE = 2
CORES_PER_CACHE = 4
L2, L3 = 2, 3


def regular(cpus: int, threads: int = 2) -> Topology:
    """Return a machine of 2 packages x 2 NUMA nodes with caches of up to 4 cores; core N has CPUs N, N + cores..."""
    cores = cpus // threads
    per_node = max(1, cores // (2 * NODES_PER_PACKAGE))
    facts = [
        CPUFacts(
            core + thread * cores,
            core=core,
            package=core // (per_node * NODES_PER_PACKAGE),
            numa_node=core // per_node,
            uncore_cache=(core // per_node, core % per_node // CORES_PER_CACHE),
        )
        for core in range(cores)
        for thread in range(threads)
    ]
    return assemble(facts, CPUSet(range(cores * threads)))


def write_tree(root: Path, topology: Topology) -> None:
    """Write /sys/devices/system below `root`; an offline CPU has no `topology/`, no caches, and no entry."""
    system = root / "sys/devices/system"
    for path, content in _files(topology):
        _write(system / path, content)
    for cpu in topology.cpus - topology.online:
        for gone in ("topology", "cache"):
            shutil.rmtree(system / f"cpu/cpu{cpu}" / gone, ignore_errors=True)


def _files(topology: Topology) -> Iterator[tuple[str, str]]:
    online = topology.online
    yield "cpu/online", str(online)
    yield "cpu/offline", str(topology.cpus - online)
    yield "cpu/isolated", str(topology.isolated)
    for node, cpus in topology.numa_nodes.items():
        yield f"node/node{node}/cpulist", str(cpus & online)
    for core in topology.cores:
        for cpu in core.cpus:
            yield (
                f"cpu/cpu{cpu}/node{core.numa_node}/cpulist",
                str(topology.numa_nodes[core.numa_node] & online),
            )
        for cpu in core.cpus & online:
            yield from _of_cpu(topology, core, f"cpu/cpu{cpu}")


def _of_cpu(topology: Topology, core: Core, folder: str) -> Iterator[tuple[str, str]]:
    online = topology.online
    yield f"{folder}/topology/core_id", str(core.id)
    yield f"{folder}/topology/physical_package_id", str(core.package)
    yield f"{folder}/topology/core_cpus_list", str(core.cpus & online)
    yield f"{folder}/topology/package_cpus_list", str(topology.packages[core.package] & online)
    for index, level, shared in (
        (2, L2, topology.l2_caches[core.l2]),
        (3, L3, topology.uncore_caches[core.uncore_cache]),
    ):
        yield f"{folder}/cache/index{index}/level", str(level)
        yield f"{folder}/cache/index{index}/type", "Unified"
        yield f"{folder}/cache/index{index}/shared_cpu_list", str(shared & online)


def _write(path: Path, content: str) -> None:
    """Replace a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(f"{content}\n")
    new.replace(path)
