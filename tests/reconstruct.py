"""Write the trees of real machines that were not captured but whose numbering is known; each names its source.

`python -m tests.reconstruct` writes every `tree.txt`, and `lscpu.json` as the real lscpu prints it for that tree.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.lscpu import COMMAND
from tests.machines import DATA, as_text, materialise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

Key = TypeVar("Key", int, "int | None")


@dataclass(frozen=True)
class Thread:
    """One CPU and what it belongs to, in the firmware's own numbers."""

    cpu: int
    package: int
    node: int
    core: int  # unique in the machine; `core_id` is what the kernel shows
    core_id: int
    l2: int
    l3: int | None


@dataclass(frozen=True)
class Machine:
    """One machine; `comment` says which real one, and where its numbers were read."""

    name: str
    comment: str
    threads: Sequence[Thread]
    offline: CPUSet = EMPTY
    isolated: CPUSet = EMPTY
    empty_nodes: tuple[int, ...] = ()
    memory_nodes: str = ""
    core_types: tuple[tuple[str, str], ...] = ()
    numa: bool = True


def regular(
    packages: int,
    nodes: int,
    caches: int,
    cores: int,
    smt: int,
    number: Callable[[int, int, int], int],
    *,
    l3: bool = True,
    cores_per_l2: int = 1,
) -> list[Thread]:
    """Return packages x nodes x caches x cores x threads; `number(core, thread, cores)` gives the CPU."""
    threads = []
    total = packages * nodes * caches * cores
    for core in range(total):
        cache = core // cores
        node = cache // caches
        package = node // nodes
        core_id = core % (nodes * caches * cores)
        for thread in range(smt):
            cpu = number(core, thread, total)
            l2 = core // cores_per_l2
            threads.append(Thread(cpu, package, node, core, core_id, l2, cache if l3 else None))
    return threads


def split(core: int, thread: int, cores: int) -> int:
    """Return the CPU when siblings are N and N + cores: most x86 servers."""
    return core + thread * cores


def adjacent(smt: int) -> Callable[[int, int, int], int]:
    """Return the numbering with siblings next to each other: Hyper-V, POWER, P-cores of hybrid parts."""
    return lambda core, thread, _cores: core * smt + thread


def split_in_package(cores_per_package: int, smt: int) -> Callable[[int, int, int], int]:
    """Return the numbering with siblings N and N + cores of the package, one package after the other."""

    def number(core: int, thread: int, _cores: int) -> int:
        package, within = divmod(core, cores_per_package)
        return package * cores_per_package * smt + thread * cores_per_package + within

    return number


def _xeon_e5_2660_v2() -> list[Thread]:
    ids = [0, 1, 2, 3, 4, 8, 9, 10, 11, 12]  # the die's ids have a gap and repeat on the second socket
    return [replace(thread, core_id=ids[thread.core_id]) for thread in regular(2, 1, 1, 10, 2, split)]


def _xeon_6248_snc2() -> list[Thread]:
    """Cores alternate between the clusters in groups; CPUID says that the whole socket shares its L3."""
    first = CPUSet.parse("0-2,5-6,10-12,15-16")
    return [
        replace(thread, node=2 * thread.package + (thread.core_id not in first))
        for thread in regular(2, 1, 1, 20, 2, split)
    ]


def _core_ultra_9_185h() -> list[Thread]:
    """Six P-cores that are numbered anyhow, eight E-cores in two clusters, two LP E-cores without an L3."""
    performance = [(0, 5), (1, 2), (3, 4), (6, 7), (8, 9), (10, 11)]
    core_ids, l2 = [16, 8, 12, 20, 24, 28], [4, 2, 3, 5, 6, 7]
    threads = [
        Thread(cpu, 0, 0, core, core_ids[core], l2[core], 0)
        for core, siblings in enumerate(performance)
        for cpu in siblings
    ]
    threads += [Thread(12 + core, 0, 0, 6 + core, core, core // 4, 0) for core in range(8)]
    return threads + [Thread(20 + core, 0, 0, 14 + core, 32 + core, 8, None) for core in range(2)]


def _core_i7_12700h() -> list[Thread]:
    """Six P-cores with adjacent siblings, then eight E-cores, four to an L2."""
    threads = regular(1, 1, 1, 6, 2, adjacent(2))
    threads = [replace(thread, core_id=thread.core * 4) for thread in threads]
    return threads + [Thread(12 + core, 0, 0, 6 + core, 24 + core, 6 + core // 4, 0) for core in range(8)]


def _power9() -> list[Thread]:
    """Two cores share an L2 and an L3; chips and their nodes are 0 and 8."""
    return [
        replace(
            thread, package=8 * thread.package, node=8 * thread.node, core_id=4 * thread.core, l3=thread.l2
        )
        for thread in regular(2, 1, 1, 20, 4, adjacent(4), cores_per_l2=2)
    ]


def _power8() -> list[Thread]:
    return [
        replace(
            thread, package=8 * thread.package, node=8 * thread.node, core_id=8 * thread.core, l3=thread.core
        )
        for thread in regular(2, 1, 1, 10, 8, adjacent(8))
    ]


def _thunderx2() -> list[Thread]:
    package_ids = (36, 3180)  # offsets into the firmware's PPTT
    threads = regular(2, 1, 1, 32, 4, split_in_package(32, 4))
    return [replace(thread, package=package_ids[thread.package]) for thread in threads]


def _magny_cours() -> list[Thread]:
    nodes = (0, 1, 2, 33, 34, 45, 72, 73)
    return [
        replace(thread, node=nodes[thread.node], core_id=thread.core_id % 6)
        for thread in regular(4, 2, 1, 6, 1, split)
    ]


MACHINES = [
    Machine("t2-micro", "Amazon EC2 t2.micro: one CPU of a Xeon E5-2676 v3", regular(1, 1, 1, 1, 1, split)),
    Machine(
        "core-i7-12700h",
        "Intel Core i7-12700H (Alder Lake, laptop): 6 P-cores, 8 E-cores that share L2 by fours",
        _core_i7_12700h(),
        core_types=(("cpu_core", "0-11"), ("cpu_atom", "12-19")),
    ),
    Machine(
        "core-ultra-9-185h",
        "Intel Core Ultra 9 185H (Meteor Lake, laptop), numbers as in util-linux's dump lscpu-x86_64-meteor_lake",
        _core_ultra_9_185h(),
        core_types=(("cpu_core", "0-11"), ("cpu_atom", "12-21")),
    ),
    Machine(
        "xeon-d-1541",
        "Intel Xeon D-1541, 8 cores, siblings N and N+8, isolcpus=0-3,8-11, kernel without NUMA: CMK's test machine",
        regular(1, 1, 1, 8, 2, split),
        isolated=CPUSet.parse("0-3,8-11"),
        numa=False,
    ),
    Machine(
        "xeon-d-1541-offline",
        "The same with CPU 9, the sibling of 1, taken offline: no topology/, and gone from every list",
        regular(1, 1, 1, 8, 2, split),
        offline=CPUSet([9]),
    ),
    Machine(
        "xeon-e5-2660v2",
        "2 x Intel Xeon E5-2660 v2, split siblings, raw core ids 0-4,8-12 in both sockets",
        _xeon_e5_2660_v2(),
    ),
    Machine(
        "azure-f72s-v2",
        "Azure F72s v2: Hyper-V guest on 2 x Intel Xeon Platinum 8168, siblings adjacent",
        regular(2, 1, 1, 18, 2, adjacent(2)),
    ),
    Machine(
        "xeon-6248-snc2",
        "2 x Intel Xeon Gold 6248, Sub-NUMA Clustering on: node0 0-2,5,6,10-12,15,16 and siblings, L3 spans nodes",
        _xeon_6248_snc2(),
    ),
    Machine(
        "xeon-8480-cxl",
        "2 x Intel Xeon Platinum 8480+ with a CXL memory expander: node 2 has memory and no CPU",
        regular(2, 1, 1, 56, 2, split),
        empty_nodes=(2,),
        memory_nodes="0-2",
    ),
    Machine(
        "epyc-7451",
        "2 x AMD EPYC 7451 (Naples): 8 nodes, two caches of three cores each; util-linux's dump lscpu-x86_64-epyc_7451",
        regular(2, 4, 2, 3, 2, split),
    ),
    Machine(
        "epyc-7742-nps1",
        "2 x AMD EPYC 7742 (Rome), one node per socket, sixteen L3 of four cores in each",
        regular(2, 1, 16, 4, 2, split),
    ),
    Machine(
        "epyc-7742-nps4",
        "2 x AMD EPYC 7742 (Rome), four nodes per socket: node0 is 0-15,128-143",
        regular(2, 4, 4, 4, 2, split),
    ),
    Machine(
        "epyc-9754",
        "2 x AMD EPYC 9754 (Bergamo): 512 CPUs, sixteen L3 of eight cores per socket",
        regular(2, 1, 16, 8, 2, split),
    ),
    Machine(
        "opteron-drachma",
        "4 x AMD Opteron (Magny-Cours), nodes 0,1,2,33,34,45,72,73: hwloc's 48amd64-4d2n6c-sparse",
        _magny_cours(),
    ),
    Machine(
        "power8-s822lc",
        "IBM Power S822LC: 2 x POWER8, 10 cores, SMT8, nodes 0 and 8, an L3 for each core",
        _power8(),
    ),
    Machine(
        "power8-s822lc-smt-off",
        "The same as a KVM host, `ppc64_cpu --smt=off`: CPUs 0,8,16... run, the others are offline",
        _power8(),
        offline=CPUSet(cpu for cpu in range(160) if cpu % 8),
    ),
    Machine(
        "power9-ac922",
        "IBM AC922: 2 x POWER9, 20 cores, SMT4, nodes 0 and 8, GPU memory as nodes 252-255; two cores share L2 and L3",
        _power9(),
        empty_nodes=(252, 253, 254, 255),
        memory_nodes="0,8,252-255",
    ),
    Machine(
        "thunderx2-cn9980",
        "2 x Marvell ThunderX2 CN9980: 32 cores, four threads N, N+32, N+64, N+96; package ids are PPTT offsets",
        _thunderx2(),
    ),
    Machine(
        "altra-q80-30",
        "Ampere Altra Q80-30: 80 cores, one thread each, no L3 told by the firmware",
        regular(1, 1, 1, 80, 1, split, l3=False),
    ),
]


def tree(machine: Machine) -> str:
    """Return the machine's tree.txt."""
    every = CPUSet(thread.cpu for thread in machine.threads)
    online = every - machine.offline
    system = "devices/system"
    lines = [
        ("-", f"{system}/cpu/online", str(online)),
        ("-", f"{system}/cpu/offline", str(machine.offline)),
        ("-", f"{system}/cpu/possible", str(every)),
        ("-", f"{system}/cpu/present", str(every)),
        ("-", f"{system}/cpu/isolated", str(machine.isolated)),
        ("-", f"{system}/cpu/kernel_max", "8191"),
    ]
    running = [thread for thread in machine.threads if thread.cpu in online]
    if machine.numa:
        lines += _nodes(machine, online)
    lines += [("-", f"devices/{device}/cpus", cpus) for device, cpus in machine.core_types]
    return f"# {machine.comment}\n" + as_text([*lines, *_topology(running), *_caches(running)])


def _nodes(machine: Machine, online: CPUSet) -> list[tuple[str, str, str]]:
    groups = _by(machine.threads, lambda thread: thread.node) | dict.fromkeys(machine.empty_nodes, EMPTY)
    lists = [
        ("-", f"devices/system/node/node{node}/cpulist", str(cpus & online)) for node, cpus in groups.items()
    ]
    if machine.memory_nodes:
        lists.append(("-", "devices/system/node/has_memory", machine.memory_nodes))
    return lists + [(str(cpus), f"node{node}", "->") for node, cpus in groups.items() if cpus]


def _topology(running: Iterable[Thread]) -> list[tuple[str, str, str]]:
    threads = list(running)
    packages = _by(threads, lambda thread: thread.package)
    lines = [(str(cpus), "topology/physical_package_id", str(number)) for number, cpus in packages.items()]
    lines += [(str(cpus), "topology/package_cpus_list", str(cpus)) for cpus in packages.values()]
    ids = _by(threads, lambda thread: thread.core_id)
    lines += [(str(cpus), "topology/core_id", str(number)) for number, cpus in ids.items()]
    cores = _by(threads, lambda thread: thread.core)
    return lines + [(str(cpus), "topology/core_cpus_list", str(cpus)) for cpus in cores.values()]


def _caches(running: Iterable[Thread]) -> list[tuple[str, str, str]]:
    threads = list(running)
    lines = []
    for index, (level, kind, key) in enumerate(_CACHES):
        groups = {number: cpus for number, cpus in _by(threads, key).items() if number is not None}
        if not groups:
            continue
        having = str(CPUSet(cpu for cpus in groups.values() for cpu in cpus))
        lines += [(having, f"cache/index{index}/level", level), (having, f"cache/index{index}/type", kind)]
        for number, cpus in groups.items():
            lines.append((str(cpus), f"cache/index{index}/id", str(number)))
            lines.append((str(cpus), f"cache/index{index}/shared_cpu_list", str(cpus)))
    return lines


_CACHES: list[tuple[str, str, Callable[[Thread], int | None]]] = [
    ("1", "Data", lambda thread: thread.core),
    ("1", "Instruction", lambda thread: thread.core),
    ("2", "Unified", lambda thread: thread.l2),
    ("3", "Unified", lambda thread: thread.l3),
]


def _by(threads: Iterable[Thread], key: Callable[[Thread], Key]) -> dict[Key, CPUSet]:
    groups: defaultdict[Key, list[int]] = defaultdict(list)
    for thread in threads:
        groups[key(thread)].append(thread.cpu)
    return {number: CPUSet(cpus) for number, cpus in groups.items()}


def lscpu(name: str) -> str:
    """Return the real lscpu's output for the machine's tree, one row per line."""
    with tempfile.TemporaryDirectory() as folder:
        root = materialise(name, Path(folder))
        (root / "proc").mkdir()
        (root / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: reconstructed\n")
        printed = subprocess.run(
            [*COMMAND.split(), "--sysroot", folder], check=True, capture_output=True, text=True
        )
    return rows(printed.stdout)


def rows(printed: str) -> str:
    """Return lscpu's text with one CPU a line, a third of its size; it is not always JSON, so only spaces change."""
    return printed.replace("\n         ", " ").replace("\n      }", " }").replace("},{", "},\n      {")


def write(machine: Machine) -> None:
    """Write the two files of a machine."""
    (DATA / machine.name).mkdir(parents=True, exist_ok=True)
    (DATA / machine.name / "tree.txt").write_text(tree(machine))
    (DATA / machine.name / "lscpu.json").write_text(lscpu(machine.name))


if __name__ == "__main__":
    for machine in MACHINES:
        write(machine)
