"""Create, enter, list and remove the cgroups of local containers. Other modules choose the CPUs of these cgroups.

The cgroups are /corepin-local/POD_UID/CONTAINER below the cpuset hierarchy, v1 or v2. A new one has the CPUs of its
parent.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, Protocol

from agent.errors import Gone, Refused
from agent.kernel.cgroupfs import CPUS, MEMS, PROCS, V1, V2, read_text, subfolders, write_text
from agent.kernel.procfs import is_alive

if TYPE_CHECKING:
    from pathlib import Path

    from agent.kernel.cgroupfs import Hierarchy
    from pinning.machine.cpuset import CPUSet

ROOT: Final = "/corepin-local"
_SUBTREE: Final = "cgroup.subtree_control"


class ContainerCgroups(Protocol):
    """The cgroups of local containers, named ROOT/POD_UID/CONTAINER."""

    def make(self, cgroup: str) -> None:
        """Create a cgroup unless it exists; raise Refused."""
        ...

    def enter(self, cgroup: str, pid: int) -> None:
        """Move a process into a cgroup, with the cgroup's CPUs; raise Gone, Refused."""
        ...

    def bind_memory(self, cgroup: str, mems: CPUSet) -> None:
        """Bind a cgroup's memory to these NUMA nodes; raise Gone, Refused."""
        ...

    def pids(self, cgroup: str) -> list[int]:
        """Return the processes of a cgroup and its children; none if the cgroup does not exist."""
        ...

    def remove(self, cgroup: str) -> bool:
        """Remove an empty cgroup and its empty ancestors; return whether the cgroup was removed."""
        ...

    def found(self) -> list[str]:
        """Return every existing cgroup, including those of an earlier agent."""
        ...


class KernelContainerCgroups:
    """Cgroups in the cpuset hierarchy of the kernel (interface `ContainerCgroups`)."""

    def __init__(self, hierarchy: Hierarchy, root: str = ROOT) -> None:
        self._hierarchy = hierarchy
        self._root = root

    def make(self, cgroup: str) -> None:
        """Create a cgroup unless it exists; raise Refused."""
        path = PurePosixPath(cgroup)
        for cgroup_path in (*reversed(path.parents), path):
            folder = self._hierarchy.folder(str(cgroup_path))
            if folder != self._hierarchy.cpuset:
                self._make(folder)

    def _make(self, folder: Path) -> None:
        if self._hierarchy.version == V2:
            _enable_cpuset(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise Refused(
                f"{folder} cannot be made ({error.strerror}): run the agent as root, with writable cgroups"
            ) from error
        if self._hierarchy.version == V1:
            for name in (CPUS, MEMS):  # on v1 no process can enter while one of them is empty
                if not read_text(folder / name):
                    write_text(folder / name, read_text(folder.parent / name))

    def enter(self, cgroup: str, pid: int) -> None:
        """Move a process into a cgroup, with the cgroup's CPUs; raise Gone, Refused."""
        write_text(self._hierarchy.folder(cgroup) / PROCS, str(pid))

    def bind_memory(self, cgroup: str, mems: CPUSet) -> None:
        """Bind a cgroup's memory to these NUMA nodes; raise Gone, Refused."""
        write_text(self._hierarchy.folder(cgroup) / MEMS, str(mems))

    def pids(self, cgroup: str) -> list[int]:
        """Return the processes of a cgroup and its children, without zombies; none if it does not exist."""
        folder = self._hierarchy.folder(cgroup)
        listed = {pid for place in (folder, *self._below(folder)) for pid in _processes(place)}
        return sorted(pid for pid in listed if is_alive(pid))

    def remove(self, cgroup: str) -> bool:
        """Remove an empty cgroup and its empty ancestors; return whether the cgroup was removed."""
        path = PurePosixPath(cgroup)
        for below in reversed(self._below(self._hierarchy.folder(cgroup))):
            _remove(below)
        is_gone = _remove(self._hierarchy.folder(cgroup))
        for above in path.parents:
            if str(above) == "/" or not _remove(self._hierarchy.folder(str(above))):
                break
        return is_gone

    def _below(self, folder: Path) -> list[Path]:
        """Return the child cgroups that a container created, outer ones first."""
        children = subfolders(folder)
        return [*children, *(inner for child in children for inner in self._below(child))]

    def found(self) -> list[str]:
        """Return every existing cgroup, including those of an earlier agent."""
        return [
            f"{self._root}/{pod.name}/{container.name}"
            for pod in subfolders(self._hierarchy.folder(self._root))
            for container in subfolders(pod)
        ]


def _processes(folder: Path) -> list[int]:
    with suppress(Gone, Refused):  # a threaded cgroup lists no processes; its parent does
        return [int(pid) for pid in read_text(folder / PROCS).split()]
    return []


def _enable_cpuset(folder: Path) -> None:
    if "cpuset" not in read_text(folder / _SUBTREE).split():
        write_text(folder / _SUBTREE, "+cpuset")


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
