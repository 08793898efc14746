"""Paths and file access of the cpuset and cpu controllers, cgroup v1 and v2.

Kernel errors become the agent's errors here.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.errors import AgentError, Gone, Refused
from pinning.machine.cpuset import CPUSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

V1: Final = 1
V2: Final = 2
DEFAULT_ROOT: Final = Path("/sys/fs/cgroup")
CPUS: Final = "cpuset.cpus"
MEMS: Final = "cpuset.mems"
PROCS: Final = "cgroup.procs"
# ENODEV: removed while the file was open
_GONE: Final = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
# link count of a folder without subfolders; 1 on file systems that do not count links
_NO_SUBFOLDERS: Final = 2
# Cgroups read below one container: each takes 20 to 28 us of CPU time, which blocks the event loop.
MOST_CGROUPS: Final = 1024
CHUNK: Final = 65536  # bytes of one read; most cgroups' task lists are shorter
_ONLINE: Final = "choose CPUs that are online"
_REASONS: Final = {  # reason and remedy, by errno
    errno.EACCES: (
        "no right to write it, or on cgroup v1 the cgroup above lacks one of the CPUs",
        "run the agent as root, and see that every CPU is online",
    ),
    errno.EPERM: ("not permitted", "run the agent as root with the host's cgroups mounted"),
    errno.EROFS: ("mounted read-only", "mount the host's /sys/fs/cgroup writable into the agent"),
    errno.ENOSPC: ("its tasks would be left without a CPU or a memory node", _ONLINE),
    errno.EINVAL: ("a CPU is offline, or the cgroup above has none of them", _ONLINE),
    errno.ERANGE: ("this kernel has no CPU of that number", "choose CPUs that exist"),
    errno.EBUSY: (
        "a cgroup below it or a real-time task still needs a CPU that is taken away",
        "try again",
    ),
}


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """The mounts of the cpuset and cpu controllers. A cgroup's path is the same below both."""

    version: int
    cpuset: Path
    cpu: Path

    @property
    def effective(self) -> tuple[str, ...]:
        """The file names with a cgroup's effective CPUs, best first."""
        # both have the same content unless the hierarchy is mounted with v2_mode
        v1 = (
            "cpuset.effective_cpus",
            CPUS,
        )
        return v1 if self.version == V1 else ("cpuset.cpus.effective",)

    @property
    def effective_mems(self) -> str:
        """The name of the file with the NUMA nodes that a cgroup may allocate memory from."""
        return "cpuset.effective_mems" if self.version == V1 else "cpuset.mems.effective"

    @property
    def tasks(self) -> str:
        """The name of the file that lists every task of one cgroup, including threads of the kernel."""
        return "tasks" if self.version == V1 else "cgroup.threads"

    def is_writable(self) -> bool:
        """Return whether this process may change cgroups."""
        return os.access(self.cpuset / PROCS, os.W_OK)

    def folder(self, cgroup: str) -> Path:
        """Return the cpuset folder of a cgroup."""
        return self.cpuset / cgroup.lstrip("/")

    def has(self, cgroup: str) -> bool:
        """Return whether a cgroup exists, in a quarter of the time of `folder(cgroup).is_dir()`."""
        return os.path.isdir(f"{self.cpuset}/{cgroup.lstrip('/')}")  # noqa: PTH112


def find_hierarchy(root: Path) -> Hierarchy:
    """Return the controllers below `root` (/sys/fs/cgroup); raise Refused if there is no cpuset controller.

    A hybrid host mounts v1 hierarchies and a v2 hierarchy without controllers: then v1 is returned.
    """
    if (root / "cpuset" / CPUS).exists():
        joint = root / "cpu,cpuacct"
        return Hierarchy(V1, root / "cpuset", joint if joint.exists() else root / "cpu")
    for unified in (root, root / "unified"):
        if "cpuset" in (_read_or_none(unified / "cgroup.controllers") or "").split():
            return Hierarchy(V2, unified, unified)
    raise Refused(f"{root} has no cpuset controller: mount the host's /sys/fs/cgroup there")


def read_text(path: Path | str) -> str:
    """Return a cgroup file's text without the newline; raise Gone or Refused.

    The path is a string because joining a Path costs more than reading the file.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a tenth of the time of Path.read_text
        try:
            return b"".join(iter(lambda: os.read(file, CHUNK), b"")).decode("ascii").strip()
        finally:
            os.close(file)
    except OSError as error:
        raise translated(error, path) from error


def read_cpus(path: Path | str) -> CPUSet:
    """Return a cgroup file's CPU list; raise Gone or Refused."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parsed(read_line(file))
        finally:
            os.close(file)
    except OSError as error:
        raise translated(error, path) from error


def read_line(file: int) -> bytes:
    """Return the current content of an open cgroup file of one line; the kernel returns it in one read."""
    return os.pread(file, CHUNK, 0)


@lru_cache(maxsize=1024)
def parsed(line: bytes) -> CPUSet:
    """Parse a CPU list; cached, because hundreds of containers share a few lists."""
    return CPUSet.parse(line.decode("ascii"))


def write_text(path: Path | str, text: str) -> None:
    """Write a cgroup file that exists; raise Gone, or Refused with the meaning of the errno."""
    try:
        # never O_CREAT: cgroupfs answers EACCES
        file = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(file, text.encode("ascii"))
        finally:
            os.close(file)
    except OSError as error:
        raise translated(error, path, text) from error


def subfolders(folder: Path, most: int | None = None) -> list[Path]:
    """Return a cgroup's direct children, by name; none if the cgroup does not exist.

    If there are more than `most`, return the first ones that the kernel lists.
    """
    return [folder / name for name in child_names(folder, most)]


def child_names(folder: Path, most: int | None = None) -> list[str]:
    """Return the sorted names of a cgroup's direct children, in a quarter of the time of `subfolders`."""
    try:
        if os.stat(folder).st_nlink == _NO_SUBFOLDERS:  # noqa: PTH116 a fifth of the time of a scan
            return []
        with os.scandir(folder) as entries:
            folders = (entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            names = list(islice(folders, most))
    except OSError as error:
        if error.errno in _GONE:
            return []
        raise translated(error, folder) from error
    return sorted(names)


def ids_below(folder: Path, file: str) -> Iterator[int]:
    """Yield the process or thread ids in a file of a cgroup and of those below it, of at most MOST_CGROUPS in all."""
    yield from ids_in(islice(walk(folder), MOST_CGROUPS), file)


def ids_in(folders: Iterable[Path], file: str) -> Iterator[int]:
    """Yield the process or thread ids in a file of these cgroups; skip removed cgroups."""
    for folder in folders:
        with suppress(AgentError):  # removed, or threaded (cgroup v2), where the parent lists the processes
            yield from map(int, read_text(folder / file).split())


def is_crowded(folder: Path) -> bool:
    """Return whether a cgroup has MOST_CGROUPS cgroups or more below it."""
    return len(list(walk(folder))) > MOST_CGROUPS


def walk(folder: Path) -> Iterator[Path]:
    """Yield a cgroup and those below it, parents first, at most one more than MOST_CGROUPS.

    A container that may write its cgroup can make any number of children, nested or flat. So this function does not
    recurse, and lists no more cgroups than it yields.
    """
    waiting, left = [folder], MOST_CGROUPS
    while waiting:
        found = waiting.pop()
        yield found
        children = subfolders(found, left) if left else []
        left -= len(children)
        waiting += children[::-1]


def _read_or_none(path: Path) -> str | None:
    try:
        return read_text(path)
    except Gone:
        return None


def translated(error: OSError, file: Path | str, text: str = "") -> Gone | Refused:
    """Return the agent's error for a kernel error on reading a file, or on writing `text` to it."""
    if error.errno not in _GONE:
        return Refused(_refusal(error, f"{file} refuses {text}" if text else f"{file} cannot be read"))
    folder, _, name = str(file).rpartition("/")
    if name == CPUS and _lacks_controller(folder):
        remedy = "the kubelet or the runtime must enable it (+cpuset in cgroup.subtree_control above)"
        return Refused(f"{file} is missing because the cpuset controller is off for this cgroup: {remedy}")
    return Gone(f"{folder} does not exist any more")


def _refusal(error: OSError, tried: str) -> str:
    if error.errno not in _REASONS:
        return f"{tried} ({error.strerror})"
    reason, remedy = _REASONS[error.errno]
    return f"{tried} ({reason}): {remedy}"


def _lacks_controller(folder: str) -> bool:
    """Return whether a v2 cgroup lacks the cpuset controller.

    If it has the controller, a missing file means that the cgroup is being created or removed.
    """
    try:
        return "cpuset" not in read_text(f"{folder}/cgroup.controllers").split()
    except AgentError:
        return False
