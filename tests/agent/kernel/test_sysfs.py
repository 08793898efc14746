"""The sysfs reader on captured machines: comparison with lscpu, hotplug, and invalid files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.kernel.sysfs import read_topology
from pinning.machine.cpuset import EMPTY, CPUSet
from pinning.machine.lscpu import read_lscpu
from pinning.machine.topology import BadTopology, Topology
from tests.machines import NAMES, capture, lscpu_text, materialise, quick_folder
from tests.tables import table

if TYPE_CHECKING:
    from pathlib import Path


def as_lscpu_tells(topology: Topology) -> Topology:
    """Remove the fields that lscpu does not have: core type, isolcpus and nodes with memory."""
    cores = tuple(replace(core, core_type=None) for core in topology.cores)
    return replace(topology, cores=cores, isolated=EMPTY, known_memory_nodes=None)


@pytest.fixture(scope="module", params=NAMES)
def machine(request: pytest.FixtureRequest) -> tuple[str, Topology]:
    """Return the name of each machine and its topology."""
    with quick_folder() as folder:
        return request.param, read_topology(materialise(request.param, folder))


def test_sysfs_and_lscpu_agree(machine: tuple[str, Topology]) -> None:
    """Both readers return the same topology for every machine."""
    name, read = machine

    assert as_lscpu_tells(read) == read_lscpu(lscpu_text(name))


# name: packages, NUMA nodes, last-level caches, L2 caches, cores, CPUs known, online, widest core
SHAPES = {
    "altra-q80-30": (1, [0], 1, 80, 80, 80, 80, 1),
    "azure-f72s-v2": (2, [0, 1], 2, 36, 36, 72, 72, 2),
    "core-i7-12700h": (1, [0], 1, 8, 14, 20, 20, 2),
    "core-ultra-9-185h": (1, [0], 2, 9, 16, 22, 22, 2),
    "epyc-7451": (2, list(range(8)), 16, 48, 48, 96, 96, 2),
    "epyc-7742-nps1": (2, [0, 1], 32, 128, 128, 256, 256, 2),
    "epyc-7742-nps4": (2, list(range(8)), 32, 128, 128, 256, 256, 2),
    "epyc-9754": (2, [0, 1], 32, 256, 256, 512, 512, 2),
    "kvm-xeon-2cpu": (1, [0], 1, 2, 2, 2, 2, 1),
    "opteron-drachma": (4, [0, 1, 2, 33, 34, 45, 72, 73], 8, 48, 48, 48, 48, 1),
    "power8-s822lc": (2, [0, 8], 20, 20, 20, 160, 160, 8),
    "power8-s822lc-smt-off": (2, [0, 8], 20, 20, 20, 20, 20, 1),
    "power9-ac922": (2, [0, 8], 20, 20, 40, 160, 160, 4),
    "qemu-2s4c2t": (2, [0, 1], 2, 8, 8, 16, 16, 2),
    "qemu-2s4c2t-offline": (2, [0, 1], 2, 7, 7, 13, 13, 2),
    "t2-micro": (1, [0], 1, 1, 1, 1, 1, 1),
    "thunderx2-cn9980": (2, [0, 1], 2, 64, 64, 256, 256, 4),
    "xeon-6248-snc2": (2, [0, 1, 2, 3], 2, 40, 40, 80, 80, 2),
    "xeon-8480-cxl": (2, [0, 1], 2, 112, 112, 224, 224, 2),
    "xeon-d-1541": (1, [0], 1, 8, 8, 16, 16, 2),
    "xeon-d-1541-offline": (1, [0], 1, 8, 8, 15, 15, 2),
    "xeon-e5-2660v2": (2, [0, 1], 2, 20, 20, 40, 40, 2),
}


def test_machines_have_their_known_shape(machine: tuple[str, Topology]) -> None:
    """Numbers of packages, nodes, caches and cores are those of the real machine."""
    name, read = machine

    shape = (
        len(read.packages),
        list(read.numa_nodes),
        len(read.uncore_caches),
        len(read.l2_caches),
        len(read.cores),
        len(read.cpus),
        len(read.online),
        read.smt,
    )
    assert shape == SHAPES[name]


@pytest.mark.parametrize("name", ["xeon-d-1541-offline", "core-ultra-9-185h", "qemu-2s4c2t-offline"])
def test_a_capture_keeps_the_tree(name: str, tmp_path: Path) -> None:
    """Capturing a materialised machine gives the same tree again."""
    root = materialise(name, tmp_path)

    assert sorted(capture(root).splitlines()) == sorted(
        capture(materialise(name, tmp_path / "again")).splitlines()
    )


@table(
    "name, memory_nodes",
    {
        "a node of memory alone": ("xeon-8480-cxl", "0-2"),
        "memory of GPUs": ("power9-ac922", "0,8,252-255"),
        "nothing is said: all that have CPUs": ("xeon-6248-snc2", "0-3"),
        "a kernel without NUMA": ("xeon-d-1541", "0"),
    },
)
def test_nodes_with_memory_are_read(name: str, memory_nodes: str, tmp_path: Path) -> None:
    """NUMA nodes with memory are read from the kernel, also those without CPUs."""
    assert str(read_topology(materialise(name, tmp_path)).memory_nodes) == memory_nodes


def test_sizes_of_memory_are_read_and_kept(tmp_path: Path) -> None:
    """Memory sizes are read, and kept while CPUs are offline; the record keeps only the nodes."""
    root = materialise("qemu-2s4c2t", tmp_path)
    for node, size in (("node0", 2048), ("node1", 0)):
        (root / f"sys/devices/system/node/{node}/meminfo").write_text(
            f"Node {node[4:]} MemTotal: {size:14} kB\nNode {node[4:]} MemFree: 1 kB\n"
        )
    (root / "sys/devices/system/node/has_memory").write_text("0\n")

    read = read_topology(root)

    assert (read.memory, str(read.memory_nodes)) == ({0: 2 * 2**20, 1: 0}, "0")
    fewer = read_topology(materialise("qemu-2s4c2t-offline", tmp_path / "fewer"))
    now = replace(fewer, known_memory_nodes=read.known_memory_nodes, memory=read.memory).remembering(read)
    assert (now.memory, now.memory_nodes) == (read.memory, read.memory_nodes)
    assert Topology.from_dict(read.to_dict()).memory_nodes == read.memory_nodes


_ROWS = ("10 21 24", "21 10 14", "24 14 10")


@table(
    "rows, known",
    {
        "a node of memory alone has a row too": (_ROWS, True),
        "a node went offline while they were read": (("10 21", "21 10 14", "24 14 10"), False),
        "no number": (("10 21 x", "21 10 14", "24 14 10"), False),
        "a negative number": (("10 21 -1", "21 10 14", "24 14 10"), False),
        "a node without the file": (_ROWS[:2], False),
        "a kernel without the files": ((), False),
    },
)
def test_distances_are_read(rows: tuple[str, ...], known: bool, tmp_path: Path) -> None:
    """Distances are known for all NUMA nodes or for none, and the record keeps them."""
    root = materialise("xeon-8480-cxl", tmp_path)
    for node, row in enumerate(rows):
        (root / f"sys/devices/system/node/node{node}/distance").write_text(row + "\n")

    read = read_topology(root)

    whole = {0: {0: 10, 1: 21, 2: 24}, 1: {0: 21, 1: 10, 2: 14}, 2: {0: 24, 1: 14, 2: 10}}
    assert read.distances == (whole if known else {})
    assert Topology.from_dict(read.to_dict()).distances == read.distances
    assert ("distances" in read.to_dict()) is known


def test_distances_of_an_offline_node_are_remembered(tmp_path: Path) -> None:
    """A NUMA node without memory goes offline with its last CPU, and its distances with it."""
    before = replace(
        read_topology(materialise("qemu-2s4c2t", tmp_path / "before")),
        distances={0: {0: 10, 1: 20}, 1: {0: 20, 1: 10}},
    )
    fewer = read_topology(materialise("qemu-2s4c2t-offline", tmp_path / "fewer"))

    assert replace(fewer, distances={0: {0: 10}}).remembering(before).distances == before.distances


def test_instruction_caches_are_not_read(tmp_path: Path) -> None:
    """At a cache level with data and instruction caches, as Itanium's second, only the data caches count."""
    root = materialise("xeon-d-1541", tmp_path)
    before = read_topology(root)
    for cache in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache"):
        (cache / "index2/type").write_text("Data\n")
        (cache / "index1/level").write_text("2\n")
        (cache / "index1/shared_cpu_list").write_text("0-15\n")

    assert read_topology(root).l2_caches == before.l2_caches


def test_siblings_and_isolated_cpus_of_a_xeon_d(tmp_path: Path) -> None:
    """Siblings are N and N+8, isolcpus is read, and without NUMA there is one node 0."""
    read = read_topology(materialise("xeon-d-1541", tmp_path))

    assert [str(core.cpus) for core in read.cores] == [f"{cpu},{cpu + 8}" for cpu in range(8)]
    assert read.isolated == CPUSet.parse("0-3,8-11")
    assert list(read.numa_nodes) == [0]


def test_core_types_of_a_hybrid_part(tmp_path: Path) -> None:
    """P-cores are performance; E-cores and low-power E-cores are efficiency."""
    read = read_topology(materialise("core-ultra-9-185h", tmp_path))

    assert read.core_types == {"performance": CPUSet.parse("0-11"), "efficiency": CPUSet.parse("12-21")}


def test_core_types_by_capacity(tmp_path: Path) -> None:
    """Without lists of types cores with the largest capacity are performance; equal ones have no type."""
    root = materialise("altra-q80-30", tmp_path)
    cpus = sorted((root / "sys/devices/system/cpu").glob("cpu[0-9]*"), key=lambda path: int(path.name[3:]))
    for cpu in cpus:
        (cpu / "cpu_capacity").write_text("1024\n")
    assert read_topology(root).core_types == {}

    for cpu in cpus[:8]:
        (cpu / "cpu_capacity").write_text("446\n")
    (cpus[8] / "cpu_capacity").write_text("770\n")
    types = read_topology(root).core_types
    assert types == {"performance": CPUSet(range(9, len(cpus))), "efficiency": CPUSet(range(9))}


def test_listed_core_types_win_over_capacity(tmp_path: Path) -> None:
    """The kernel's lists of types are preferred to capacities."""
    root = materialise("core-ultra-9-185h", tmp_path)
    for cpu in (root / "sys/devices/system/cpu").glob("cpu[0-9]*"):
        (cpu / "cpu_capacity").write_text(f"{cpu.name[3:]}\n")
    assert read_topology(root).core_types["performance"] == CPUSet.parse("0-11")


def test_an_offline_sibling_is_remembered(tmp_path: Path) -> None:
    """With the earlier topology the core of CPU 1 still has its offline sibling 9."""
    before = read_topology(materialise("xeon-d-1541", tmp_path / "before"))
    now = read_topology(materialise("xeon-d-1541-offline", tmp_path / "now"))

    remembered = now.remembering(before)

    assert now.siblings(1) == CPUSet([1])
    assert remembered.siblings(1) == CPUSet([1, 9])
    assert 9 not in remembered.online


def test_an_smt_mode_is_remembered(tmp_path: Path) -> None:
    """CPUs that `ppc64_cpu --smt=off` removed from sysfs stay in the topology as offline."""
    before = read_topology(materialise("power8-s822lc", tmp_path / "before"))
    now = read_topology(materialise("power8-s822lc-smt-off", tmp_path / "now"))

    assert now.remembering(before) == before.with_online(now.online)


def test_cpus_taken_offline_on_a_real_kernel_are_remembered(tmp_path: Path) -> None:
    """Captured before and after one sibling and one whole core went offline."""
    before = read_topology(materialise("qemu-2s4c2t", tmp_path / "before"))
    now = read_topology(materialise("qemu-2s4c2t-offline", tmp_path / "now"))

    assert now.cpus == before.cpus - CPUSet.parse("3,8-9")
    assert now.remembering(before).cores == before.cores
    assert now.isolated == CPUSet.parse("4-5,12-13")


def test_names_stay_while_the_lowest_cpu_is_offline(tmp_path: Path) -> None:
    """Core, caches and package named after CPU 0 keep their names while it is offline."""
    root = materialise("core-i7-12700h", tmp_path)
    before = read_topology(root)
    take_offline(root, 0)

    assert read_topology(root).remembering(before).cores == before.cores


def take_offline(root: Path, cpu: int) -> None:
    """Change the tree as the kernel does when a CPU goes offline."""
    cpu_dir = root / "sys/devices/system/cpu"
    for name in ("topology", "cache"):
        (cpu_dir / f"cpu{cpu}" / name).rename(cpu_dir / f"{name}-of-{cpu}")
    for path in (root / "sys").rglob("*list"):
        left = CPUSet.parse(path.read_text()) - CPUSet([cpu])
        path.write_text(f"{left}\n")
    online = cpu_dir / "online"
    online.write_text(f"{CPUSet.parse(online.read_text()) - CPUSet([cpu])}\n")


def test_old_kernels_with_fewer_files(tmp_path: Path) -> None:
    """Old file names, no cache folder, no package id (-1) and only the node link are enough."""
    cpu_dir = tmp_path / "sys/devices/system/cpu"
    for cpu in (0, 1):
        topology = cpu_dir / f"cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text("0-1\n")
        (topology / "core_siblings_list").write_text("0-1\n")
        (topology / "physical_package_id").write_text("-1\n")
        (cpu_dir / f"cpu{cpu}/node3").mkdir()
    (cpu_dir / "online").write_text("0-1\n")

    read = read_topology(tmp_path)

    assert [core.cpus for core in read.cores] == [CPUSet([0, 1])]
    assert (list(read.packages), list(read.numa_nodes)) == ([0], [3])


def test_cpu_with_a_missing_attribute_is_ignored(tmp_path: Path) -> None:
    """A CPU that loses an attribute during the read counts as offline."""
    root = materialise("xeon-d-1541", tmp_path)
    (root / "sys/devices/system/cpu/cpu3/topology/physical_package_id").unlink()

    read = read_topology(root)

    assert 3 not in read.cpus
    assert 3 not in read.online


@table(
    "file, text, message",
    {
        "list": ("online", "0-", "online is not a CPU list .*'0-'"),
        "int": (
            "cpu0/topology/physical_package_id",
            "x",
            "physical_package_id says 'x', which is not a number",
        ),
        "level": ("cpu0/cache/index3/level", "", "index3/level says '', which is not a number"),
    },
)
def test_wrong_files_are_named(file: str, text: str, message: str, tmp_path: Path) -> None:
    """An invalid file is refused with its path and content."""
    root = materialise("xeon-d-1541", tmp_path)
    (root / "sys/devices/system/cpu" / file).write_text(text)

    with pytest.raises(BadTopology, match=message):
        read_topology(root)


def test_no_sysfs_is_named(tmp_path: Path) -> None:
    """The error for a missing sysfs names the file and the remedy."""
    with pytest.raises(BadTopology, match=r"cpu/online is missing: mount sysfs below"):
        read_topology(tmp_path)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """An unreadable file is refused and not treated as missing."""
    (tmp_path / "sys/devices/system/cpu/online").mkdir(parents=True)

    with pytest.raises(
        BadTopology, match=r"cpu/online cannot be read \(Is a directory\): let the agent read it"
    ):
        read_topology(tmp_path)
