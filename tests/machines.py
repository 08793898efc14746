"""Real machines as sysfs trees. One `tree.txt` each, a line being CPUS, FILE, CONTENT; "-" for a file of no CPU.

    0,8   topology/core_cpus_list   0,8        that file of CPUs 0 and 8
    0-15  node0                     ->         a link, as `cpuN/node0` is
    -     devices/system/cpu/online 0-15       a file of the machine, below /sys

The kernel shows most lists twice; the mask beside each list (`core_cpus` beside `core_cpus_list`) is derived.
`python -m tests.machines NAME` captures the machine it runs on. The first line of a tree that was written from a
published dump or from the kernel's numbering names its source.
"""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pinning.machine.cpuset import CPUSet
from pinning.machine.lscpu import read_lscpu

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pinning.machine.topology import Topology

DATA = Path(__file__).parent / "data" / "machines"
NAMES = sorted(path.parent.name for path in DATA.glob("*/tree.txt"))
MACHINE_FILES = ("cpu/online", "cpu/offline", "cpu/possible", "cpu/present", "cpu/isolated", "cpu/kernel_max")
TOPOLOGY_FILES = ("core_cpus_list", "package_cpus_list", "core_id", "physical_package_id")
CACHE_FILES = ("id", "level", "type", "shared_cpu_list")
MASKS = {"core_cpus": "core_cpus_list", "package_cpus": "package_cpus_list"}
OLD_NAMES = {"thread_siblings": "core_cpus", "core_siblings": "package_cpus"}  # the kernel still shows both
_MEMORY, _ROOM = Path("/dev/shm"), 2**30


@contextmanager
def quick_folder() -> Iterator[Path]:
    """Yield a folder in memory if that has room: a machine has up to 20,000 files, each of which costs a disk 0.2 ms."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    with TemporaryDirectory(dir=_MEMORY if has_room else None) as folder:
        yield Path(folder)


@cache
def captured(name: str) -> Topology:
    """Return a machine of the test data, as `lscpu` prints it."""
    return read_lscpu(lscpu_text(name))


def lscpu_text(name: str) -> str:
    """Return lscpu's output on the machine."""
    return (DATA / name / "lscpu.json").read_text()


def materialise(name: str, root: Path) -> Path:
    """Write the machine's files below `root`, which then stands for its `/`; return it."""
    for line in (DATA / name / "tree.txt").read_text().splitlines():
        if not line.startswith("#"):
            cpus, path, content = line.split(maxsplit=2) if len(line.split()) > 2 else (*line.split(), "")
            _write(root / "sys", cpus, path, content)
    return root


def _write(sys_dir: Path, cpus: str, path: str, content: str) -> None:
    if cpus == "-":
        _write_file(sys_dir / path, content)
        return
    for cpu in CPUSet.parse(cpus):
        target = sys_dir / f"devices/system/cpu/cpu{cpu}" / path
        if content == "->":
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(f"../../node/{path}")
        else:
            _write_file(target, content)


def _write_file(path: Path, content: str) -> None:
    """Write one attribute, and beside a list the mask and the older names that the kernel shows too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content + "\n")
    if path.name in {"core_cpus_list", "package_cpus_list", "shared_cpu_list", "cpulist"}:
        mask = (
            "cpumap"
            if path.name == "cpulist"
            else path.name.replace("cpu_list", "cpu_map").removesuffix("_list")
        )
        path.with_name(mask).write_text(_mask(CPUSet.parse(content)) + "\n")
        for old, new in OLD_NAMES.items():
            if mask == new:
                path.with_name(old).write_text(_mask(CPUSet.parse(content)) + "\n")
                path.with_name(f"{old}_list").write_text(content + "\n")


def _mask(cpus: CPUSet) -> str:
    """Return the kernel's mask format: groups of 32 bits with commas."""
    groups = max(1, -(-cpus.mask.bit_length() // 32))
    return ",".join(f"{cpus.mask >> 32 * group & 0xFFFFFFFF:08x}" for group in reversed(range(groups)))


def capture(root: Path) -> str:
    """Return the tree.txt of the machine whose `/` is `root`."""
    system = root / "sys/devices/system"
    files = [("-", f"devices/system/{name}", _content(system / name)) for name in MACHINE_FILES]
    files += [
        ("-", f"devices/system/node/{path.parent.name}/cpulist", _content(path))
        for path in sorted(system.glob("node/node*/cpulist"))
    ]
    if (system / "node/has_memory").exists():
        files.append(("-", "devices/system/node/has_memory", _content(system / "node/has_memory")))
    files += [
        ("-", f"devices/{device}/cpus", _content(root / f"sys/devices/{device}/cpus"))
        for device in ("cpu_core", "cpu_atom")
        if (root / f"sys/devices/{device}/cpus").exists()
    ]
    return as_text([*files, *_grouped(_cpu_files(system / "cpu"))])


def as_text(lines: Iterable[tuple[str, str, str]]) -> str:
    """Return the lines of a tree.txt."""
    return "".join(f"{cpus} {path} {content}".rstrip() + "\n" for cpus, path, content in lines)


def _cpu_files(cpu_dir: Path) -> Iterator[tuple[int, str, str]]:
    for folder in cpu_dir.glob("cpu[0-9]*"):
        cpu = int(folder.name.removeprefix("cpu"))
        for node in folder.glob("node[0-9]*"):
            yield cpu, node.name, "->"
        for name in TOPOLOGY_FILES:
            if (folder / "topology" / name).exists():
                yield cpu, f"topology/{name}", _content(folder / "topology" / name)
        for index in folder.glob("cache/index*"):
            for name in CACHE_FILES:
                if (index / name).exists():
                    yield cpu, f"cache/{index.name}/{name}", _content(index / name)


def _grouped(files: Iterable[tuple[int, str, str]]) -> list[tuple[str, str, str]]:
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for cpu, path, content in files:
        groups[path, content].append(cpu)
    ordered = sorted(groups.items(), key=lambda group: (group[0][0], min(group[1])))
    return [(str(CPUSet(cpus)), path, content) for (path, content), cpus in ordered]


def _content(path: Path) -> str:
    return path.read_text().strip()


if __name__ == "__main__":
    (DATA / sys.argv[1]).mkdir(parents=True)
    (DATA / sys.argv[1] / "tree.txt").write_text(capture(Path("/")))
