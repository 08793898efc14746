"""Read the machine's topology from sysfs.

The files are described in Documentation/admin-guide/cputopology.rst and ABI/testing/sysfs-devices-system-cpu. A CPU
with incomplete attributes is left out, because a CPU that goes offline during the read loses its `topology/` directory.
`pinning.machine.topology` builds the cores.
"""

from __future__ import annotations

import errno
import os
import re
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from pinning.errors import BadCPUList
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.topology import (
    EFFICIENCY,
    PERFORMANCE,
    BadTopology,
    CPUFacts,
    Topology,
    assemble,
    distances_of,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from pathlib import Path

# The second name is that of kernels before Linux 5.3.
_SIBLINGS: Final = ("core_cpus_list", "thread_siblings_list")
_PACKAGE: Final = ("package_cpus_list", "core_siblings_list")
_CHUNK: Final = 65536  # bytes of one read; most files are shorter
_LAST_LEVEL: Final = 3  # level of a cache domain; without an L3 it is the package, as an L2 belongs to a core
_TOTAL: Final = re.compile(r"MemTotal: *([0-9]+) kB")
_CORE_TYPES: Final = {"cpu_core": PERFORMANCE, "cpu_atom": EFFICIENCY, "cpu_lowpower": EFFICIENCY}


def read_topology(root: Path) -> Topology:
    """Return the topology of the machine whose `/` is `root`; raise BadTopology naming the faulty file."""
    system = root / "sys/devices/system"
    online = read_cpus(system / "cpu/online")
    if online is None:
        raise BadTopology(
            f"{system / 'cpu/online'} is missing: mount sysfs below {root}, or name another root"
        )
    nodes = _numa_nodes(system / "node")
    types = _core_types(root / "sys/devices") or _types_by_capacity(system / "cpu")
    facts = []
    for folder in (system / "cpu").glob("cpu[0-9]*"):
        fact = _read_facts(folder, int(folder.name.removeprefix("cpu")), nodes, types)
        if fact:
            facts.append(fact)
    topology = assemble(facts, online, read_cpus(system / "cpu/isolated") or EMPTY)
    memory = _memory(system / "node")
    with_memory = read_cpus(system / "node/has_memory") or None  # a list of NUMA nodes, in the same text form
    return replace(
        topology, known_memory_nodes=with_memory, memory=memory, distances=_distances(system / "node")
    )


def read_cpus(path: Path) -> CPUSet | None:
    """Return the CPU list in a file, None if the file does not exist; raise BadTopology for any other text."""
    text = _read(path)
    try:
        return None if text is None else _parsed(text)
    except BadCPUList as error:
        raise BadTopology(f"{path} is not a CPU list such as 0-3,8 ({error})") from error


@lru_cache(maxsize=64)
def _parsed(text: str) -> CPUSet:
    """Parse a CPU list; cached, because the list of online CPUs is read every second."""
    return CPUSet.parse(text)


def read_int(path: Path) -> int | None:
    """Return the number in a file, None if the file does not exist; raise BadTopology for any other text."""
    text = _read(path)
    try:
        return None if text is None else int(text)
    except ValueError as error:
        raise BadTopology(
            f"{path} says {text!r}, which is not a number: report this with the kernel's version"
        ) from error


def _read(path: Path) -> str | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a tenth of the time of Path.read_text
        try:
            return b"".join(iter(lambda: os.read(file, _CHUNK), b"")).decode("ascii", "replace").strip()
        finally:
            os.close(file)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENOTDIR):  # ENODEV: the CPU went offline
            return None
        raise BadTopology(f"{path} cannot be read ({error.strerror}): let the agent read it") from error


def _read_first(folder: Path, names: tuple[str, ...]) -> CPUSet:
    return next((cpus for name in names if (cpus := read_cpus(folder / name)) is not None), EMPTY)


def _read_facts(
    cpu_dir: Path, cpu: int, nodes: Mapping[int, int], types: Mapping[int, str]
) -> CPUFacts | None:
    siblings = _read_first(cpu_dir / "topology", _SIBLINGS)
    package = _package(cpu_dir / "topology")
    if cpu not in siblings or package is None:
        return None
    caches = _caches(cpu_dir / "cache")
    last = max(caches, default=0)
    return CPUFacts(
        cpu,
        core=siblings.lowest(),
        package=package,
        numa_node=nodes[cpu] if cpu in nodes else _linked_node(cpu_dir),
        uncore_cache=(last, caches[last]) if last >= _LAST_LEVEL else None,
        l2=caches.get(2),
        core_type=types.get(cpu),
    )


def _package(topology_dir: Path) -> Hashable:
    """Return an id that distinguishes packages: the physical id, or the package's CPUs if firmware reports -1."""
    number = read_int(topology_dir / "physical_package_id")
    if number is not None and number < 0:
        return _read_first(topology_dir, _PACKAGE)
    return number


def _caches(cache_dir: Path) -> dict[int, int]:
    """Return, for each cache level, the lowest CPU that shares the CPU's data or unified cache."""
    caches: dict[int, int] = {}
    for index in cache_dir.glob("index[0-9]*"):
        level, shared = read_int(index / "level"), read_cpus(index / "shared_cpu_list")
        if level and shared and _read(index / "type") != "Instruction":
            caches[level] = shared.lowest()
    return caches


def _numa_nodes(nodes_dir: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU; the lowest if the kernel lists several (numa=fake)."""
    nodes = sorted(
        (int(path.name.removeprefix("node")) for path in nodes_dir.glob("node[0-9]*")), reverse=True
    )
    return {cpu: node for node in nodes for cpu in read_cpus(nodes_dir / f"node{node}" / "cpulist") or EMPTY}


def _memory(nodes_dir: Path) -> dict[int, int]:
    """Return the bytes of memory of each NUMA node that reports them: "Node 0 MemTotal: 16318480 kB"."""
    memory = {}
    for path in nodes_dir.glob("node[0-9]*/meminfo"):
        found = _TOTAL.search(_read(path) or "")
        if found:
            memory[int(path.parent.name.removeprefix("node"))] = int(found[1]) * 1024
    return memory


def _distances(nodes_dir: Path) -> dict[int, dict[int, int]]:
    """Return the distances between NUMA nodes, including nodes without CPUs; none if one node does not report them."""
    folders = nodes_dir.glob("node[0-9]*")
    rows = {int(folder.name.removeprefix("node")): _read(folder / "distance") or "" for folder in folders}
    return distances_of(rows)


def _linked_node(cpu_dir: Path) -> int:
    """Return the NUMA node linked in a CPU's directory, which offline CPUs keep; 0 on a kernel without NUMA."""
    return min((int(path.name.removeprefix("node")) for path in cpu_dir.glob("node[0-9]*")), default=0)


def _types_by_capacity(cpus_dir: Path) -> dict[int, str]:
    """Return the type of each core by its capacity, the largest being performance; empty if all are equal."""
    folders = cpus_dir.glob("cpu[0-9]*")
    read = {int(path.name.removeprefix("cpu")): read_int(path / "cpu_capacity") for path in folders}
    capacities = {cpu: capacity for cpu, capacity in read.items() if capacity is not None}
    largest = max(capacities.values(), default=0)
    types = {cpu: PERFORMANCE if capacity == largest else EFFICIENCY for cpu, capacity in capacities.items()}
    return types if EFFICIENCY in types.values() else {}


def _core_types(devices_dir: Path) -> dict[int, str]:
    """Return the type of each core of a hybrid machine, by its performance counter units."""
    return {
        cpu: core_type
        for device, core_type in _CORE_TYPES.items()
        for cpu in read_cpus(devices_dir / device / "cpus") or EMPTY
    }
